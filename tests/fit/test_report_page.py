import base64
import dataclasses
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fit_folders import (
    SECTIONS,
    class_rows,
    fitted_for,
    picture_samples,
    png,
    target_rows,
    without,
    write_folder,
)

from l2i.errors import InputError
from l2i.fit.artifact import Choice, RowPreview
from l2i.fit.report import write_report
from l2i.fit.report.charts import (
    compute_cost_changes,
    format_tick,
    make_breakable,
    render_tag,
    thin_points,
)
from l2i.fit.report.confidence import to_data_uri
from sealing import seal

NASTY = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=1>',
    "</svg></style><b onclick='x'>&amp;",
    "{{ 7 * 7 }}",
)
VOID = {"meta", "img", "br", "wbr"}


class Page(HTMLParser):
    """What a page holds, with a check that its elements are closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [str(dict(attrs)["id"])] if tag == "section" else []
        self.open += [] if tag in VOID else [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def test_a_table_has_every_section_in_order(tmp_path: Path) -> None:
    out = write_report(write_folder(tmp_path / "fit", class_rows()))
    page = Page(out)
    assert out == tmp_path / "fit" / "report.html"
    assert page.ids == SECTIONS
    assert "None: all checks passed" in page.text
    for words in (
        "The unlabelled rows help",
        "Cᴴ: change per outer update",
        "Cᵁ the loss on unlabelled rows",
        "40 labelled training rows",
        "3 rows repeat another",
        "torch 2.11.0",
        '"steps": 2000',
    ):
        assert words in page.text
    assert f"l2i impute {tmp_path}/fit --out labels.csv" in page.text
    assert not list((tmp_path / "fit").glob("*.partial"))


def test_pictures_are_shown(tmp_path: Path) -> None:
    rows = class_rows()
    page = Page(
        write_report(write_folder(tmp_path, rows, fitted_for(rows, previews=picture_samples(rows))))
    )
    sources = [str(image["src"]) for image in page.all("img")]
    assert 6 < len(sources) <= 12
    assert all(
        base64.b64decode(s.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
        for s in sources
    )


def test_a_regression_shows_errors_in_place_of_confusion(tmp_path: Path) -> None:
    page = Page(write_report(write_folder(tmp_path, target_rows(2))))
    assert page.ids == [name if name != "confusion" else "errors" for name in SECTIONS]
    assert "test RMSE" in page.text
    assert "± 2 std" in page.text


def test_landmarks_keep_their_own_metric(tmp_path: Path) -> None:
    rows = target_rows(2)
    fitted = fitted_for(
        rows, metric_name="error (%)", metric_description="distance between the eyes"
    )
    page = Page(write_report(write_folder(tmp_path, rows, fitted)))
    assert "the error (%) is reported below" in page.text
    assert "one standard error of each metric" not in page.text


def test_candidates_and_folders_may_be_missing(tmp_path: Path) -> None:
    rows = without(class_rows(counts={"labeled": 30, "unlabeled": 50}), "supervised", "baseline")
    folder = write_folder(tmp_path, rows, fitted_for(rows, previews=(), notes=(), choices=()))
    for name in ("metrics.jsonl", "config.json", "result.json"):
        (folder / "l2i" / name).unlink()
    text = Page(write_report(seal(folder))).text
    assert "No metrics were logged for fixmatch + L2I." in text
    assert "has no config.json" in text
    assert "No samples were saved" in text


def test_rows_all_labelled_have_nothing_imputed(tmp_path: Path) -> None:
    rows = class_rows(counts={"labeled": 30, "validation": 40})
    text = Page(write_report(write_folder(tmp_path, rows, fitted_for(rows, previews=())))).text
    assert "no labels were imputed" in text


def test_everything_from_the_data_is_escaped(tmp_path: Path) -> None:
    rows = class_rows()
    row = int((rows.split_names == "unlabeled").argmax())
    ids = [NASTY[i % len(NASTY)] for i in range(len(rows.ids))]
    fitted = fitted_for(
        rows,
        classes=NASTY[:3],
        targets=(NASTY[0],),
        notes=NASTY,
        choices=tuple(Choice(name=text, value=text, reason=text) for text in NASTY),
        previews=(
            RowPreview(row=row, png_base64='"><script>', fields={text: text for text in NASTY}),
        ),
        source={"kind": NASTY[1], "path": NASTY[0], NASTY[2]: {NASTY[0]: 1}},
        metric_name="error (%)" + NASTY[0],
        metric_description=NASTY[2],
        covariate_shift_auc=0.9,
        candidates=tuple(
            dataclasses.replace(c, title=NASTY[1] + c.name) for c in fitted_for(rows).candidates
        ),
    )
    out = write_report(write_folder(tmp_path / "fit", dataclasses.replace(rows, ids=ids), fitted))
    raw, page = out.read_text(), Page(out)
    assert not any(text in raw for text in NASTY[:3])
    assert not {"script", "b onclick"} & {name for name, _ in page.tags}
    assert not page.all("img")  # what was given as a picture is none
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert NASTY[3] in page.text  # never evaluated


def test_nothing_is_fetched_and_nothing_runs(tmp_path: Path) -> None:
    page = Page(write_report(write_folder(tmp_path, class_rows())))
    (policy,) = (
        m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    addresses = [str(a[key]) for _, a in page.tags for key in ("src", "href") if key in a]
    assert addresses
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in addresses)
    assert not {"script", "link", "iframe", "object", "form"} & {name for name, _ in page.tags}


def test_charts_and_tables_can_be_read_aloud(tmp_path: Path) -> None:
    page = Page(write_report(write_folder(tmp_path, class_rows())))
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in page.all("svg"))
    assert all(head.get("scope") in ("row", "col") for head in page.all("th"))
    levels = [int(name[1]) for name, _ in page.tags if name in ("h1", "h2", "h3")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert page.all("html")[0]["lang"] == "en-GB"


def test_the_report_goes_where_it_is_asked_to(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a fit", class_rows())
    out = write_report(str(folder), str(tmp_path / "page.htm"))
    assert out == tmp_path / "page.htm"
    assert f"l2i impute '{folder}' --out" in Page(out).text


def test_wrong_places_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a fit folder"):
        write_report(tmp_path)
    folder = write_folder(tmp_path / "fit", class_rows())
    with pytest.raises(InputError, match="is a folder"):
        write_report(folder, tmp_path)
    for out in (folder / "fit.json" / "page.html", tmp_path / "nowhere" / "page.html"):
        with pytest.raises(InputError, match=f"cannot write '{out}': its folder does not exist"):
            write_report(folder, out)
    assert not (tmp_path / "nowhere").exists()
    (folder / "l2i" / "config.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        write_report(folder)


def test_metrics_of_every_length_make_curves(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, class_rows())
    row = {"step": 5, "validation": None, "test": 0.0, "c_t": 1e-5, "c_u": 0.0, "c_h": 3.0}
    (folder / "l2i" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert "log scale" in Page(write_report(seal(folder))).text
    assert thin_points([(float(i), 0.0) for i in range(1001)], 100)[-1][0] == 1000
    assert len(thin_points([(float(i), 0.0) for i in range(1001)], 100)) <= 100


def test_only_pngs_become_pictures() -> None:
    assert to_data_uri(png(0)) is not None
    for wrong in (
        None,
        "",
        "no base64!",
        base64.b64encode(b"<svg onload=x>").decode(),
        'iVBORw0KGgo"><script>',
        "é",
    ):
        assert to_data_uri(wrong) is None


def test_names_break_where_words_join_and_stay_escaped(tmp_path: Path) -> None:
    assert make_breakable("support_calls") == "support_<wbr>calls"
    assert make_breakable("a/b.c-d__e_") == "a/<wbr>b.<wbr>c-<wbr>d__<wbr>e_"
    assert make_breakable("<i>_&") == "&lt;i&gt;_<wbr>&amp;"
    rows = class_rows()
    sample = RowPreview(
        row=int((rows.split_names == "unlabeled").argmax()), fields={"support_calls": "x_y"}
    )
    raw = write_report(
        write_folder(tmp_path, rows, fitted_for(rows, previews=(sample,)))
    ).read_text()
    assert '<ul class="cards rows">' in raw
    assert "support_<wbr>calls</th><td>x_y</td>" in raw


@pytest.mark.parametrize(
    ("value", "text"),
    [(-2.5e-5, "−2.5e−5"), (1e-4, "1e−4"), (-3e-12, "−3e−12"), (0.0, "0"), (-0.5, "−0.5")],
)
def test_ticks_keep_the_digits_that_tell_them_apart(value: float, text: str) -> None:
    assert format_tick(value) == text


def test_a_metric_without_errors_is_told_by_its_count(tmp_path: Path) -> None:
    wrong = {"supervised": 1.0, "baseline": 0.3, "l2i": 0.0}
    rows = class_rows(
        counts={"labeled": 9, "unlabeled": 20, "validation": 70, "test": 7}, wrong=wrong
    )
    text = Page(write_report(write_folder(tmp_path, rows))).text
    assert "0.0 (0 of 7 wrong)" in text and "0.0 (0 of 70 wrong)" in text
    assert "100.0 (7 of 7 wrong)" in text
    metrics = text[text.index("Candidate") : text.index("Training curves")]
    assert "0.0 ± 0.0" not in metrics and " ± " in metrics


def test_metrics_in_other_units_than_the_rows_have_no_standard_error(tmp_path: Path) -> None:
    rows = class_rows()
    other = tuple(
        dataclasses.replace(c, validation_metric=7e4, test_metric=7e4)
        for c in fitted_for(rows).candidates
    )
    text = Page(write_report(write_folder(tmp_path, rows, fitted_for(rows, candidates=other)))).text
    assert "one standard error of each metric" not in text


def test_the_source_says_only_what_was_asked_for(tmp_path: Path) -> None:
    rows = class_rows()
    source = {
        "path": "x.csv",
        "none": None,
        "off": False,
        "blank": "",
        "empty": [],
        "zero": 0,
        "on": True,
    }
    raw = write_report(write_folder(tmp_path, rows, fitted_for(rows, source=source))).read_text()
    listed = raw[raw.index("<h3>Data source</h3>") : raw.index('id="configuration"')]
    assert re.findall('<th scope="row">(.*?)</th>', listed) == ["path", "zero", "on"]


def test_what_was_done_with_the_data_is_a_choice_and_no_warning(tmp_path: Path) -> None:
    text = Page(write_report(write_folder(tmp_path, class_rows()))).text
    assert (
        text.index("Value and reason")
        < text.index("Data preparation")
        < text.index("3 rows repeat")
    )


def test_an_outer_update_is_drawn_by_what_it_changes(tmp_path: Path) -> None:
    rows = [
        {"step": 1.0, "validation": 1.0, "test": 1.0, "c_h_before": 0.5, "c_h_after": 0.25},
        {"step": 2.0, "validation": 1.0, "test": 1.0, "c_h_before": 0.5, "c_h_after": None},
        {"step": 3.0, "validation": 1.0, "test": 1.0, "c_h_before": 0.5, "c_h_after": 0.75},
    ]
    assert compute_cost_changes(rows, "c_h") == [(1.0, -0.25), (3.0, 0.25)]
    assert compute_cost_changes(rows, "test_cost") == []
    folder = write_folder(tmp_path, class_rows())
    (folder / "l2i" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = Page(write_report(seal(folder)))
    assert "negative (better) at 1 of 2 evaluations" in page.text
    assert len([line for line in page.all("line") if line["class"] == "zero"]) == 1
    assert "Test loss" not in page.text


def test_markup_escapes_text_and_attributes() -> None:
    assert (
        render_tag("text", "<a>", aria_label='"&')
        == '<text aria-label="&quot;&amp;">&lt;a&gt;</text>'
    )
    assert (
        render_tag("g", render_tag("text", "x"), class_="y", x=1.0)
        == '<g class="y" x="1"><text>x</text></g>'
    )
