import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fit_folders import SECTIONS, class_rows, fitted_for, picture_samples, write_folder

from l2i.fit.report import write_report
from l2i.fit.report.confidence import MAX_MATRIX_CLASSES
from waiting import PATIENCE

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium to look at the page with")
MEASURE = """<script>
const box = document.querySelector("#metrics .box"); box.scrollLeft = 10000;
const last = box.querySelector("th:last-child").getBoundingClientRect().right;
parent.postMessage([document.documentElement.scrollWidth, Math.ceil(last)], "*")
</script></body>"""
PHONE = """<body><iframe src="page.html" width="375" height="800"></iframe>
<script>onmessage = event => document.body.dataset.width = event.data</script></body>"""


def dumped(page: Path, profile: Path, *options: str) -> tuple[str, str]:
    """The document as the browser has it, and what it logged."""
    usual = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={profile}",
        "--enable-logging=stderr",
        "--v=0",
    ]
    command = [
        str(CHROMIUM),
        *usual,
        *options,
        "--virtual-time-budget=2000",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return done.stdout, done.stderr


def requests(log: Path) -> list[str]:
    """What the page itself asked for; the browser's own requests have another initiator, null."""
    events = json.loads(log.read_text())["events"]
    actual = [event.get("params", {}) for event in events]
    return [params["url"] for params in actual if params.get("initiator") == "null"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = class_rows(classes=MAX_MATRIX_CLASSES)
    names = tuple(f"a class with quite a long name, number {i}" for i in range(MAX_MATRIX_CLASSES))
    notes = ("An-unbroken-word-" * 30,)
    fitted = fitted_for(
        rows, classes=names, previews=picture_samples(rows), notes=notes, covariate_shift_auc=0.9
    )
    return write_folder(tmp_path / "fit", rows, fitted)


def test_a_browser_shows_all_sections_without_errors_or_requests(
    folder: Path, tmp_path: Path
) -> None:
    log = tmp_path / "net.json"
    document, said = dumped(write_report(folder), tmp_path / "profile", f"--log-net-log={log}")
    assert "CONSOLE" not in said
    for name in SECTIONS:
        assert f'<section id="{name}"' in document
    assert requests(log) == []


def test_a_request_or_a_script_would_be_noticed(folder: Path, tmp_path: Path) -> None:
    page, log, address = write_report(folder), tmp_path / "net.json", "http://127.0.0.1:9/x.png"
    worse = page.read_text().replace("</body>", f'<img src="{address}" alt=""></body>')
    page.write_text(worse)
    assert "CONSOLE" in dumped(page, tmp_path / "profile")[1]  # the policy blocks it
    page.write_text(re.sub("<meta http-equiv[^>]*>", "", worse))
    dumped(page, tmp_path / "profile", f"--log-net-log={log}")
    assert requests(log) == [address]


def test_a_phone_needs_no_sideways_scrolling(folder: Path, tmp_path: Path) -> None:
    page = write_report(folder, tmp_path / "page.html")
    text = re.sub("<meta http-equiv[^>]*>", "", page.read_text()).replace("</body>", MEASURE)
    page.write_text(text.replace("<details>", "<details open>"))
    (tmp_path / "phone.html").write_text(PHONE)
    document, _ = dumped(tmp_path / "phone.html", tmp_path / "profile")
    actual = re.search('data-width="([0-9]+),([0-9]+)"', document)
    assert actual is not None
    assert int(actual[1]) <= 375
    assert int(actual[2]) <= 375  # the last column, once its box is scrolled
