"""Results that are kept, read back and added to, by the command that a person types."""

import io
import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from formats import write_faces
from l2i.cli import run_command
from l2i.experiments.formatting import format_values

CELLS = ("sl-91", "mean-teacher-91", "mean-teacher-l2i-91")
LINES = ("sl-91", "mean-teacher-91", "mean-teacher-91-longer", "mean-teacher-l2i-91")
SL = "sl-91-seed0.json"
STORED = Path(__file__).parents[2] / "benchmarks" / "cifar-fast_h200"
BATCHES = ("batch.labeled=8", "batch.unlabeled=8", "batch.holdout=8")


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> dict[str, list[str]]:
        """The rows of a Markdown table, by cell."""
        lines = [
            line.removeprefix("| ").removesuffix(" |").split(" | ")
            for line in self.out.splitlines()
        ]
        return {line[0].strip("`"): line[1:] for line in lines if not line[0].startswith("|--")}


Call = Callable[..., Said]
Done = tuple[Path, str]


def training(folder: Path, *more: str) -> list[str]:
    """The command for the landmark cells with batches and labels that suit two dozen faces."""
    few = (
        "--seeds",
        "2",
        "--steps",
        "3",
        "--device",
        "cpu",
        "--data.root",
        str(folder),
        "--cells",
        *CELLS,
    )
    return [
        "compare",
        "aflw",
        *few,
        *more,
        "--set",
        "threads=1",
        "probe_samples=0",
        "data.num-labeled=10",
        *BATCHES,
    ]


@pytest.fixture
def l2i(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.delenv("L2I_DATA", raising=False)

    def call(*arguments: str | Path) -> Said:
        code = run_command([str(word) for word in arguments])
        return Said(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A folder with faces, runs/ and results/, and what the command printed."""
    folder = write_faces(tmp_path_factory.mktemp("trained"))
    with redirect_stdout(io.StringIO()) as printed:
        assert (
            run_command(
                training(
                    folder, "--save-results", str(folder / "results"), "--out", str(folder / "runs")
                )
            )
            == 0
        )
    return folder, printed.getvalue()


@pytest.fixture
def results(trained: Done, tmp_path: Path) -> Path:
    """A copy of the results, to be changed."""
    return shutil.copytree(trained[0] / "results", tmp_path / "results")


def test_each_run_leaves_its_result_and_its_metrics(trained: Done) -> None:
    folder, _ = trained
    names = [f"{line}-seed{seed}" for line in LINES for seed in (0, 1)]
    saved = folder / "results" / "aflw"
    files = {f"{name}{end}" for name in names for end in (".json", ".jsonl")}
    assert {path.name for path in saved.iterdir()} == {"mean-face.json", *files}
    for name in names:
        there = folder / "runs" / f"aflw-{name}"
        assert (saved / f"{name}.json").read_bytes() == (there / "result.json").read_bytes()
        assert (saved / f"{name}.jsonl").read_bytes() == (there / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("within", ["", "aflw"])
def test_what_was_kept_gives_the_same_table_without_data(
    trained: Done, l2i: Call, within: str
) -> None:
    folder, printed = trained
    before = sorted(folder.rglob("*"))
    said = l2i("compare", "aflw", "--from", folder / "results" / within)
    assert said.code == 0, said.err
    assert said.out == printed.replace(
        f"Saved to {folder}/runs/aflw.json, and the results to {folder}/results.\n", ""
    )
    assert "mean-face" in said.out and "2 seeds" in said.out
    assert sorted(folder.rglob("*")) == before


def test_a_markdown_table_has_the_metrics_of_the_files(results: Path, l2i: Call) -> None:
    said = l2i("compare", "aflw", "--from", results, "--markdown")
    assert said.out.splitlines()[0] == (
        "| cell | error (%) | paper | Δ same steps | Δ same time | seeds | steps "
        "| seconds per run |"
    )
    assert [*said.rows] == ["cell", "mean-face", *LINES]
    actual = {
        line: [
            json.loads((results / "aflw" / f"{line}-seed{seed}.json").read_text())
            for seed in (0, 1)
        ]
        for line in LINES
    }
    for line, runs in actual.items():
        assert said.rows[line][0] == format_values(each["metric"] for each in runs)
        assert said.rows[line][4] == "2"
        assert float(said.rows[line][6]) == pytest.approx(
            sum(each["seconds"] for each in runs) / 2, abs=0.051
        )
    ours = [each["metric"] for each in actual["mean-teacher-l2i-91"]]
    for column, other in enumerate(("mean-teacher-91", "mean-teacher-91-longer"), start=2):
        theirs = [each["metric"] for each in actual[other]]
        gain = format_values((a - b for a, b in zip(ours, theirs, strict=True)), sign="+")
        assert said.rows["mean-teacher-l2i-91"][column] == gain
    assert "Δ is the seed-paired difference from the baseline" in said.err


def test_what_is_missing_is_trained_and_nothing_else(
    trained: Done, results: Path, tmp_path: Path, l2i: Call
) -> None:
    gone = ("sl-91-seed1", "mean-teacher-91-longer-seed0")
    for name in gone:
        (results / "aflw" / f"{name}.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*.json")}
    dry = l2i(
        *training(
            trained[0], "--save-results", str(results), "--out", str(tmp_path / "runs"), "--dry-run"
        )
    )
    assert dry.out.splitlines()[0].startswith("aflw/sl-91: 2 seeds, 1 already trained")
    said = l2i(
        *training(trained[0], "--save-results", str(results), "--out", str(tmp_path / "runs"))
    )
    assert said.code == 0, said.err
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "aflw.json",
        *(f"aflw-{name}" for name in gone),
    }
    assert {path: path.stat().st_mtime_ns for path in before} == before
    for name in gone:
        again, first = (
            folder / "results" / "aflw" / f"{name}.json" for folder in (tmp_path, trained[0])
        )
        assert json.loads(again.read_text())["metric"] == json.loads(first.read_text())["metric"]


def test_where_all_is_kept_nothing_is_trained(
    trained: Done, results: Path, tmp_path: Path, l2i: Call
) -> None:
    said = l2i(
        *training(trained[0], "--save-results", str(results), "--out", str(tmp_path / "runs"))
    )
    assert said.out.partition("Saved to")[0] == trained[1].partition("Saved to")[0]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["aflw.json"]


def test_what_was_done_before_a_failure_is_kept(trained: Done, tmp_path: Path, l2i: Call) -> None:
    (runs := tmp_path / "runs").mkdir()
    (runs / "aflw-mean-teacher-91-seed1").touch()
    said = l2i(
        *training(
            trained[0], "--save-results", str(tmp_path / "new" / "results"), "--out", str(runs)
        )
    )
    assert said.code == 2 and "aflw-mean-teacher-91-seed1 is a file" in said.err
    done = {"sl-91-seed0.json", "sl-91-seed1.json", "mean-teacher-91-seed0.json"}
    assert {path.name for path in (tmp_path / "new" / "results" / "aflw").glob("*.json")} == done


def test_lines_may_have_different_numbers_of_seeds(results: Path, l2i: Call) -> None:
    (results / "aflw" / "mean-teacher-l2i-91-seed1.json").unlink()
    for path in (results / "aflw").glob("*-longer-*.json"):
        path.unlink()
    said = l2i("compare", "aflw", "--from", results, "--markdown")
    assert said.rows["cell"] == [
        "error (%)",
        "paper",
        "Δ same steps",
        "seeds",
        "steps",
        "seconds per run",
    ]
    assert [said.rows[cell][3] for cell in CELLS] == ["2", "2", "1"]
    base, ours = (
        json.loads((results / "aflw" / f"{cell}-seed0.json").read_text())["metric"]
        for cell in ("mean-teacher-91", "mean-teacher-l2i-91")
    )
    assert said.rows["mean-teacher-l2i-91"][2] == f"{ours - base:+.2f}"
    counts = "aflw/mean-teacher-l2i-91 has 1 seed, aflw/mean-teacher-91 has 2"
    assert f"Warning: {counts}: Δ uses the 1 in common." in said.err
    assert " seeds " in l2i("compare", "aflw", "--from", results).out


def test_only_the_cells_asked_for_are_shown_with_their_differences(
    results: Path, l2i: Call
) -> None:
    whole = l2i("compare", "aflw", "--from", results, "--markdown").rows
    said = l2i("compare", "aflw", "--from", results, "--markdown", "--cells", "mean-teacher-l2i-91")
    assert said.rows == {name: whole[name] for name in ("cell", "mean-face", *LINES[2:])}


def test_the_mean_face_comes_from_the_data_where_it_is_not_kept(
    trained: Done, results: Path, l2i: Call
) -> None:
    saved = l2i("compare", "aflw", "--from", results, "--markdown").rows
    needless = l2i("compare", "aflw", "--from", results, "--data.root", trained[0])
    assert needless.code == 2 and "--data.root has no effect here" in needless.err
    (results / "aflw" / "mean-face.json").unlink()
    assert "mean-face" not in l2i("compare", "aflw", "--from", results, "--markdown").rows
    assert (
        l2i("compare", "aflw", "--from", results, "--markdown", "--data.root", trained[0]).rows
        == saved
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            SL,
            lambda text: text[:40],
            "is damaged, or not the result of a run; restore or remove it",
        ),
        (SL, lambda _: "[]", "is damaged"),
        (SL, lambda text: text.replace('"metric":', '"metrics":'), "is damaged"),
        (SL, lambda text: text.replace('"steps": 3', '"steps": "3"'), "is damaged"),
        (SL, lambda text: text.replace('"torch"', '"touch"'), "is damaged"),
        (
            SL,
            lambda text: text.replace('"seed": 0', '"seed": 1'),
            "holds the result of aflw/sl-91, seed 1",
        ),
        (SL, lambda text: text.replace('"seconds": ', '"seconds": -'), "is damaged"),
        (
            SL,
            lambda text: text.replace("sl-91", "sl-182"),
            "holds the result of aflw/sl-182, seed 0",
        ),
        ("sl-92-seed0.json", lambda _: "{}", "is not named after a cell of aflw"),
        (
            "mean-face.json",
            lambda text: text.replace("mean-face", "face"),
            "is damaged, or not a metric of aflw",
        ),
        (
            "mean-face.json",
            lambda _: '{"name": "aflw/mean-face", "metric": NaN}',
            "is damaged, or not a metric of aflw",
        ),
        (
            "mean-teacher-l2i-91-seed0.json",
            lambda text: text.replace('"steps": 3', '"steps": 30'),
            "has 30 steps",
        ),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(
    results: Path, l2i: Call, name: str, change: Callable[[str], str], message: str
) -> None:
    path = results / "aflw" / name
    path.write_text(change(path.read_text() if path.exists() else ""))
    said = l2i("compare", "aflw", "--from", results)
    code = 1 if "damaged" in message else 2
    assert (said.code, said.out, said.err.count("\n")) == (code, "", 1)
    assert str(path) in said.err and message in said.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ("--steps", "4"),
            f"{SL} holds a run of 3 steps, not 4; use --steps 3, "
            "or choose a different --save-results",
        ),
        (("--steps", "4", "--dry-run"), f"{SL} holds a run of 3 steps"),
        (("--dry-run", "--markdown"), "--markdown cannot be combined with --dry-run"),
    ],
)
def test_runs_of_another_length_are_not_taken_for_those_asked_for(
    trained: Done, results: Path, tmp_path: Path, l2i: Call, more: tuple[str], message: str
) -> None:
    said = l2i(
        *training(
            trained[0], "--save-results", str(results), "--out", str(tmp_path / "runs"), *more
        )
    )
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert message in said.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--from", "nowhere"),
            "nowhere is not a folder; --from needs one that contains aflw/CELL-seedN.json",
        ),
        (
            ("--from", "empty"),
            "empty contains no results of aflw (aflw/CELL-seedN.json); train its cells with "
            "'l2i compare aflw --save-results empty'",
        ),
        (("--from", "results", "--cells", "sl-182"), "results/aflw has no results of aflw/sl-182"),
        (("--from", "results", "--cells", "sl-92"), "perhaps you meant 'sl-91'"),
        (
            ("--from", "results", "--save-results", "results"),
            "--save-results cannot be combined with --from, which trains nothing",
        ),
        (("--from", "results", "--steps", "3"), "--steps cannot be combined with --from"),
        (("--from", "results", "--seeds", "1"), "--seeds cannot be combined with --from"),
        (("--from", "results", "--dry-run"), "--dry-run cannot be combined with --from"),
        (
            ("--from", "results", "--no-time-matched"),
            "--no-time-matched cannot be combined with --from",
        ),
        (("--from", "results", "--set", "optim.lr=1"), "--set cannot be combined with --from"),
        (
            ("--from", "results", "--plot", "curve.gif"),
            "the file name must end in .png, .svg, .pdf",
        ),
        (("--plot", "curve.png", "--dry-run"), "--plot cannot be combined with --dry-run"),
        (
            ("--save-results", "file/in", "--cells", "sl-91"),
            "file/in/aflw (Not a directory); choose a different",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    l2i: Call,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(results.parent)
    Path("file").touch()
    Path("empty").mkdir()
    said = l2i("compare", "aflw", *arguments)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert message in said.err


def test_a_plot_of_stored_results_may_be_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the flag, so the flag has to work."""
    plot = tmp_path / "curve.png"
    plot.write_bytes(b"a plot of somebody else")
    asked = ["compare", "cifar10", "--from", str(STORED), "--plot", str(plot)]
    assert run_command(asked) == 2
    assert "add --overwrite" in capsys.readouterr().err
    assert run_command([*asked, "--overwrite"]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
