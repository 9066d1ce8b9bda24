"""Numbers in the prose of benchmark pages, the README and the docs are those of the tables."""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import pytest
from benchmarks.pages import BLOCK, ROOT, find_blocks, list_pages
from benchmarks.trials import read_trials

from l2i.training.evaluation import extract_curve
from l2i.training.metrics import parse_metrics

BENCHMARKS = ROOT / "benchmarks"

INDEX = (BENCHMARKS / "README.md").read_text(encoding="utf-8")

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# mean and standard error, or the values of two seeds
VALUE = re.compile(r"[+-]?\d+(?:\.\d+)? ± \d+(?:\.\d+)?|[+-]?\d+\.\d+ / [+-]?\d+\.\d+(?![\d.]* /)")

SEPARATOR = re.compile(r" [±/] ")

DECIMAL = re.compile(r"(?<![\w.,])\d+\.\d+(?![\w.]*\d)")

NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")

PERCENT = re.compile(
    r"(?: (?:to|and) \d+\.\d+)? %"
)  # follows a share that a table has as a fraction

BENCHMARK_LINK = re.compile(r"\]\((?:\.\./)*(benchmarks/[^)#\s]+/README\.md)[^)]*\)")

# words before a number that is a setting or a version, not a result
SETTING = re.compile(
    r"(?:[ρηλτT]\W{0,3}(?:of )?|(?:torch|Python|scikit-learn|SGD at|rate|decay) )$"
)

# decimal numbers of a page that are neither settings nor results of the experiment
EXCEPTIONS = {
    "cifar-fast_h200": {"0.35": "the binomial error of 10,000 test images"},
    "cifar-32768-steps_h200": {"0.81": "β of two steps of Adam", "0.998": "the same"},
    "imdb-minilm_h200": {"22.7": "the parameters of MiniLM-L6, in millions"},
}

# tables that are not generated: they hold no results
HAND_WRITTEN_TABLES = {
    "README.md": ["| experiment | question | date | hardware | commit | verdict |"]
}

by_page = pytest.mark.parametrize(
    "page", list_pages(), ids=lambda page: str(page.relative_to(ROOT))
)


class Row(NamedTuple):
    """A row of a generated table: its cells by heading."""

    block: int
    cells: dict[str, str]

    @property
    def name(self) -> str:
        return next(iter(self.cells.values())).strip("`")

    @property
    def values(self) -> set[str]:
        return {value for cell in self.cells.values() for value in find_values(cell)}


def read_page(name: str) -> Path:
    return BENCHMARKS / name / "README.md"


def parse_tables(text: str) -> Iterator[dict[str, str]]:
    """Yield the rows of all Markdown tables as cells by heading."""
    lines = text.splitlines()
    headings: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if following.startswith("|---"):
            headings = cells
        elif line.startswith("|") and not line.startswith("|---"):
            yield dict(zip(headings, cells, strict=True))


@cache
def read_rows(page: Path) -> list[Row]:
    blocks = enumerate(find_blocks(page))
    return [Row(number, cells) for number, block in blocks for cells in parse_tables(block.text)]


def find_row(page: Path, name: str) -> Row:
    """Return the first row of that name."""
    return next(row for row in read_rows(page) if row.name == name)


def normalize(text: str) -> str:
    """Return a text with one kind of minus sign and of space."""
    return re.sub(r"\s+", " ", text.replace("−", "-"))


def find_values(text: str) -> set[str]:
    """Return all `x ± y` and `x / y` of a text, without the sign of a positive number."""
    return {value.lstrip("+") for value in VALUE.findall(normalize(text))}


def read_generated(page: Path) -> str:
    return "\n".join(block.text for block in find_blocks(page))


def strip_code(text: str) -> str:
    """Return a Markdown text without code, comments and the targets of links."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"`[^`\n]+`|<!--.*?-->", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def is_rounding(shown: str, exact: str) -> bool:
    """Return whether a number is another one, rounded to the decimals shown."""
    number, source = Decimal(shown), Decimal(exact)
    unit = Decimal(1).scaleb(int(number.as_tuple().exponent))
    is_finer = int(source.as_tuple().exponent) <= int(number.as_tuple().exponent)
    return is_finer and abs(number - source) <= unit / 2


def is_rounded_value(shown: str, exact: Iterable[str]) -> bool:
    """Return whether a value is one of these, each part rounded to the decimals shown."""
    alike = [value for value in exact if ("±" in value) == ("±" in shown)]
    parts = SEPARATOR.split(shown)
    return any(all(map(is_rounding, parts, SEPARATOR.split(value))) for value in alike)


def find_unsupported(text: str, generated: str, allowed: Iterable[str] = ()) -> list[str]:
    """Return the `x ± y` and decimal numbers of a text that are not in generated tables."""
    text, generated = normalize(strip_code(text)), normalize(generated)
    values = find_values(generated)
    unsupported = [value for value in find_values(text) if not is_rounded_value(value, values)]
    numbers = {number.replace(",", "") for number in NUMBER.findall(generated)}
    for match in DECIMAL.finditer(VALUE.sub("", text)):
        before, after = match.string[: match.start()], match.string[match.end() :]
        known = {*numbers}
        if PERCENT.match(after):  # 0.0023 of a table is 0.2 %
            known |= {str(100 * Decimal(number)) for number in numbers}
        if (
            not any(is_rounding(match[0], number) for number in known)
            and match[0] not in allowed
            and not SETTING.search(before)
        ):
            unsupported.append(f"{before[-40:]}[{match[0]}]{after[:20]}")
    return unsupported


def spell(number: float) -> str:
    words = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")
    return words[round(number)]


def parse_numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[+-]?[\d.]+", text.replace(",", ""))]


def count_clear(cells: Iterable[str]) -> tuple[int, int]:
    """Return how many `x ± y` are below and above 0 by at least two standard errors."""
    values = [parse_numbers(cell.replace("±", "")) for cell in cells]
    return sum(x <= -2 * error for x, error in values), sum(x >= 2 * error for x, error in values)


def format_range(values: Iterable[float], decimals: int) -> str:
    ordered = sorted(values)
    return f"{ordered[0]:.{decimals}f} to {ordered[-1]:.{decimals}f}"


def derive_aflw_claims() -> Iterator[str]:
    page, paper = read_page("aflw_h200"), read_paper_results()
    cells = [(m, n) for m in ("pseudo-label", "mean-teacher") for n in (91, 182, 455)]
    base = [find_row(page, f"{method}-{labels}").cells for method, labels in cells]
    ours = [find_row(page, f"{method}-l2i-{labels}").cells for method, labels in cells]
    better, worse = count_clear(row["Δ same steps"] for row in ours)
    assert worse == 0
    yield f"in {spell(better)} of {spell(len(ours))} pairs by more than two standard errors"
    names = {f"{method}-l2i-{labels}" for method, labels in cells}
    seeds = [row.cells for row in read_rows(page) if row.name in names and "Δ seed 0" in row.cells]
    signs = [row[f"Δ seed {seed}"][0] for row in seeds for seed in range(3)]
    yield f"{signs.count('-')} of {len(signs)} pairs of runs"
    minutes = "minutes per run"
    ratios = [float(a[minutes]) / float(b[minutes]) for a, b in zip(ours, base, strict=True)]
    yield f"{format_range(ratios, 1)} times as long"
    gains = [parse_numbers(row["Δ same steps"])[0] for row in ours]
    paper_gains = [
        float(paper[f"aflw/{method}-l2i-{labels}"]) - float(paper[f"aflw/{method}-{labels}"])
        for method, labels in cells
    ]
    ratios = sorted(p / g for p, g in zip(paper_gains, gains, strict=True))
    yield f"gains are {spell(ratios[0])} to {spell(ratios[-1])} times as large"
    cell = "aflw/mean-teacher-l2i-91"
    yield f"({paper[f'{cell}-exact']} and {paper[cell]} %)"


def read_paper_results() -> dict[str, str]:
    with (ROOT / "src/l2i/recipes/paper.csv").open(encoding="utf-8") as file:
        return {row[0]: row[1] for row in csv.reader(file)}


def derive_ablation_claims() -> Iterator[str]:
    rows = read_rows(read_page("ablation_cpu"))
    arms = [row.cells for row in rows if "Δ control" in row.cells]
    for column, text in {
        "Δ same steps": f"better on {{}} of {spell(len(arms))} problems and worse on {{}}",
        "Δ same time": "better on {} and worse on {}",
        "Δ control": "it is better on {} and worse on {}",
    }.items():
        yield text.format(*map(spell, count_clear(row[column] for row in arms)))
    cells = [row.cells for row in rows if row.name == "digits-fixmatch"]
    probed = next(row for row in cells if row.get("arm") == "L2I")
    ratio = parse_numbers(probed["‖g_outer‖/‖g_base‖"])[1]
    yield f"scales up {0.3 / ratio:.0f} times"


def derive_speed_claims() -> Iterator[str]:
    page = read_page("speed_h200")
    rows = [row.cells for row in read_rows(page)]
    gpu = [row for row in rows if "ms per step, prefetching" in row and row["× base"]]
    text = {row["variant"]: float(row["× base"]) for row in rows if "sequences/s" in row}
    times = {
        variant: [float(row["× base"]) for row in gpu if row["variant"] == variant]
        for variant in ("last-layer", "exact")
    }
    assert min(times["last-layer"]) <= text["last-layer"] <= max(times["last-layer"])
    yield f"{format_range(times['last-layer'], 1)} times as long as the base method's"
    yield f"{format_range(times['exact'], 1)} times (text: {text['exact']:.1f})"
    floors = [float(row["floor, % of a step"]) for row in rows if row.get("floor ms")]
    yield f"the time floor is {format_range(floors, 0)} % of a step"
    plans = {row["plan"].split()[0].strip("`"): row for row in rows if "plan" in row}
    full, separate = plans["FULL_NETWORK_STREAMS"], plans["SEPARATE_STREAMS"]
    slower = 100 * (float(full["ms per step"]) / float(separate["ms per step"]) - 1)
    memory = [parse_numbers(plan["MiB reserved"])[0] for plan in (full, separate)]
    smaller = 100 * (1 - memory[0] / memory[1])
    yield f"takes {slower:.0f} % more time than and {smaller:.0f} % less memory"
    seeds = [float(row["ms per seed and step"]) for row in rows if "seeds at once" in row]
    yield f"save {100 * (1 - seeds[-1] / seeds[0]):.0f} % of the time per seed"
    shares = {row["kernels of"]: int(row["share (%)"]) for row in rows if "kernels of" in row}
    for word, text_before in {
        "convolutions": "few channels take",
        "BatchNorm": "once more each way, takes",
    }.items():
        yield f"{text_before} {sum(v for k, v in shares.items() if k.startswith(word))} %"


def derive_small_network_claims() -> Iterator[str]:
    page = read_page("cifar-wrn10-1_cpu")
    rows = [row.cells for row in read_rows(page) if row.name == "mean-teacher-250-short"]
    recomputed, copied = (float(row["error (%)"]) for row in rows)
    yield f"Copied statistics cost {copied - recomputed:.0f} points"
    lines = (page.parent / "unseen.jsonl").read_text(encoding="utf-8").splitlines()
    unseen = [line for line in map(json.loads, lines) if line["holdout"] == "unseen"]
    changes = {line["through"]: sum(line["test cost"]) for line in unseen}
    seen = next(line for line in map(json.loads, lines) if line["holdout"] == "labeled")
    assert seen["through"] == "labels"
    ratio = changes["labels"] / sum(seen["test cost"])
    yield f"lowers the test cost {spell(ratio)} times as much as one from memorised samples"
    yield f"{changes['parameters'] / changes['labels']:.0f} times as much as that"


def read_test_curve(page: Path, run: str) -> dict[int, float]:
    content = (page.parent / "cifar10" / f"{run}.jsonl").read_bytes()
    return extract_curve(parse_metrics(content), "test")


def derive_cifar_claims() -> Iterator[str]:
    page, paper = read_page("cifar-32768-steps_h200"), read_paper_results()

    def read_gain(cell: str) -> list[float]:
        return parse_numbers(find_row(page, f"mean-teacher-{cell}-short").cells["Δ same steps"])

    (zero,), (shuffled,) = read_gain("l2i-paper-250-zero"), read_gain("l2i-250-shuffled")
    yield f"which learns nothing at all, is {spell(-zero)} points better (one seed)"
    yield f"L2I is {spell(shuffled)} points worse than without L2I (one seed)"
    released = page.parent / "unfinished/cifar10/mean-teacher-l2i-paper-250-exact-short-seed0.jsonl"
    curve = extract_curve(parse_metrics(released.read_bytes()), "test")
    behind = curve[26_624] - read_test_curve(page, "mean-teacher-250-short-seed0")[26_624]
    yield f"{spell(behind)} points worse after 26,624 steps (one seed, stopped before its end)"
    better, worse = read_gain("l2i-250")
    assert -0.75 < better < -0.25
    yield f"half a point better with one seed, {spell(worse)} points worse with the other"
    curves = [read_test_curve(page, f"mean-teacher-250-short-seed{seed}") for seed in (0, 1)]
    late = [curve[30_720] for curve in curves]
    assert mean(late) <= 43  # and still falling
    for curve in curves:
        around = [curve[step] for step in range(16_384, 24_577, 2048)]
        assert len(around) == 5 and mean(list(curve.values())[-5:]) < mean(around)
    yield f"After 30,720 steps the two seeds are at {late[0]:.1f} and {late[1]:.1f} %"
    names = (f"cifar10/mean-teacher{update}-250" for update in ("", "-l2i"))
    yield f"the paper's claim ({' to '.join(paper[name] for name in names)} %)"


def derive_image_claims() -> Iterator[str]:
    trials = read_trials(BENCHMARKS / "images_cpu" / "trials.jsonl")
    metrics: dict[str, dict[str, list[float]]] = {}
    for trial in trials:
        by_setting = metrics.setdefault(trial["cell"], {})
        by_setting.setdefault(trial["setting"], []).append(trial["metric"])
    chosen, averaged = (
        "rule: the plainest within a standard error",
        "rule: logistic regression and self-trained least squares, averaged",
    )
    cells = [by_setting for by_setting in metrics.values() if chosen in by_setting]
    gains = [mean(cell[chosen]) - mean(cell[averaged]) for cell in cells]
    num_better = sum(gain > 0.3 for gain in gains)
    assert min(gains) > -0.3
    yield f"on {spell(num_better)} of {spell(len(cells))} problems, and level on the others"
    fewest = metrics["CIFAR-10, 40 labels"]
    ratio = mean(fewest["self-trained least squares"]) / mean(fewest["least squares"])
    assert 0.63 < ratio < 0.7
    yield "makes a third fewer errors than the labels alone"
    for size in (50, 100):
        signs = {name: mean(values) for name, values in metrics[f"hand signs, {size}"].items()}
        models = {n: v for n, v in signs.items() if not n.startswith(("rule", "best"))}
        assert min(models, key=lambda name: models[name]) == "self-trained logistic regression"
    yield "Self-trained logistic regression is the best candidate for hand signs"


def derive_fast_claims() -> Iterator[str]:
    page = read_page("cifar-fast_h200")
    minutes = [float(row.cells["minutes per run"]) for row in read_rows(page)[:2]]
    yield f"{100 * (minutes[1] / minutes[0] - 1):.0f} % more time"
    ratio = float(find_row(page, "grad_ratio_raw, with L2I").cells["32,768"])
    yield f"by a factor of {round(0.3 / ratio, -1):.0f}"


def derive_digits_claims() -> Iterator[str]:
    seconds = [
        float(row.cells["seconds per run"]) for row in read_rows(read_page("digits-ema-bn_cpu"))
    ]
    ratios = {f"{seconds[k + 1] / seconds[k]:.1f}" for k in (0, 2)}
    yield f"about {', '.join(ratios)} times as long"


def derive_control_claims() -> Iterator[str]:
    page = read_page("digits-controls_cpu")
    gain = parse_numbers(find_row(page, "mean-teacher-l2i-40").cells["Δ same steps"])[0]
    assert round(-3 * gain) == 2
    yield "gains two thirds of a point with mean teacher, no more than an ordinary gradient"
    for cell in ("l2i-40-direct", "l2i-paper-40-zero"):
        control = find_row(page, f"mean-teacher-{cell}").cells["Δ same steps"]
        value, error = parse_numbers(control.replace("±", ""))
        assert value - error <= gain  # within a standard error
    for method in ("mean-teacher", "fixmatch"):
        released = find_row(page, f"{method}-l2i-paper-40").cells["Δ same steps"]
        assert count_clear([released]) == (0, 1)
    yield "The released rule hurts"


def derive_estimator_claims() -> Iterator[str]:
    page = read_page("estimators_cpu")
    row = find_row(page, "Δ network, labels only").cells
    wine, cancer, iris = (
        abs(x / error)
        for x, error in (
            parse_numbers(row[name].replace("±", "")) for name in ("wine", "breast-cancer", "iris")
        )
    )
    assert spell(cancer) == spell(iris)
    yield f"is {spell(wine)} standard errors on wine, and {spell(iris)} on breast-cancer and iris"


# sentences whose numbers follow from a page's tables but do not stand there
DERIVED = {
    folder: tuple(derive())
    for folder, derive in {
        "aflw_h200": derive_aflw_claims,
        "ablation_cpu": derive_ablation_claims,
        "speed_h200": derive_speed_claims,
        "cifar-wrn10-1_cpu": derive_small_network_claims,
        "cifar-32768-steps_h200": derive_cifar_claims,
        "cifar-fast_h200": derive_fast_claims,
        "images_cpu": derive_image_claims,
        "digits-ema-bn_cpu": derive_digits_claims,
        "digits-controls_cpu": derive_control_claims,
        "estimators_cpu": derive_estimator_claims,
    }.items()
}


@by_page
def test_numbers_in_prose_are_from_generated_blocks(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    comments = re.findall(r"^<!--.*-->$", text, re.M)
    assert len(comments) == 2 * len(find_blocks(page)), "a block without COMMAND or end"
    if page.parent == BENCHMARKS:
        text = re.sub(r"^\|.*$", "", text, flags=re.M)  # verdicts are tested below
    prose = normalize(strip_code(BLOCK.sub("", text)))
    for claim in DERIVED.get(page.parent.name, ()):
        assert claim in prose, claim
        prose = prose.replace(claim, "")
    allowed = EXCEPTIONS.get(page.parent.name, {})
    unsupported = find_unsupported(prose, read_generated(page), allowed)
    assert not unsupported, unsupported


def test_verdicts_of_the_index_have_numbers_of_their_pages() -> None:
    for row in parse_tables(INDEX):
        page = BENCHMARKS / re.findall(r"\]\((.+?)\)", row["experiment"])[0]
        unsupported = find_unsupported(row["verdict"], read_generated(page))
        assert not unsupported, unsupported


@by_page
def test_tables_with_results_are_generated(page: Path) -> None:
    text = strip_code(BLOCK.sub("", page.read_text(encoding="utf-8")))
    headings = re.findall(r"^(\|.*\|)\n\|---", text, re.M)
    assert headings == HAND_WRITTEN_TABLES.get(str(page.relative_to(BENCHMARKS)), [])


def iter_paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a Markdown text without code, tables row by row."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for paragraph in re.split(r"\n\s*\n", text):
        yield from paragraph.splitlines() if paragraph.startswith("|") else [paragraph]


def test_the_empty_second_step_gains_elsewhere_what_it_gains_on_its_page() -> None:
    (gain,) = parse_numbers(
        find_row(
            read_page("cifar-32768-steps_h200"), "mean-teacher-l2i-paper-250-zero-short"
        ).cells["Δ same steps"]
    )
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md", BENCHMARKS / "README.md"):
        text = normalize(page.read_text(encoding="utf-8"))
        assert re.search(rf"gains {spell(-gain)} points (?:there )?\(one seed\)", text), page


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_results_elsewhere_are_those_of_the_linked_page(page: Path) -> None:
    for paragraph in iter_paragraphs(page.read_text(encoding="utf-8")):
        if targets := BENCHMARK_LINK.findall(paragraph):
            generated = "\n".join(read_generated(ROOT / target) for target in targets)
            known = find_values(generated)
            unsupported = [v for v in find_values(paragraph) if not is_rounded_value(v, known)]
            assert not unsupported, (unsupported, paragraph)


def list_result_rows() -> list[dict[str, str]]:
    """Return the rows of the README's table of results."""
    rows = parse_tables((ROOT / "README.md").read_text(encoding="utf-8"))
    return [row for row in rows if "with L2I" in row and "difference" in row]


def test_readme_has_a_table_of_results() -> None:
    assert list_result_rows()


@pytest.mark.parametrize("row", list_result_rows(), ids=lambda row: next(iter(row.values())))
def test_results_of_the_readme_are_of_their_recipe(row: dict[str, str]) -> None:
    """The result with L2I and its difference are in one generated row, that without in the same
    table."""
    match = re.search(r"`(.+?)/(.+?)-(\d.*?)`\]\((.+?)\)", next(iter(row.values())))
    assert match, f"{next(iter(row.values()))} does not link a recipe TABLE/METHOD-LABELS"
    table, method, labels, target = match.groups()
    tuned = f"{table}-{method}"  # in ablation_cpu, one row holds all arms
    with_l2i, without = ({f"{cell}-{labels}", tuned} for cell in (f"{method}-l2i", method))
    wanted = find_values(f"{row['with L2I']} {row['difference']}")
    baseline = find_values(row["without L2I"])
    assert len(wanted) == 2 and len(baseline) == 1, row
    rows = read_rows(ROOT / target)
    blocks = {r.block for r in rows if r.name in with_l2i and wanted <= r.values}
    assert blocks, f"no row of {target} named {' or '.join(sorted(with_l2i))} has {wanted}"
    assert any(r.block in blocks and r.name in without and baseline <= r.values for r in rows), (
        f"no row of {target} named {' or '.join(sorted(without))} has {baseline}"
    )


def test_speed_in_the_readme_is_that_of_the_benchmark() -> None:
    columns = ["mean teacher, 64 + 64", "with L2I", "with L2I, exact", "FixMatch, 64 + 448"]
    steps = ["mean teacher", "", "mean teacher with L2I, exact", "FixMatch"]
    cases = [("mean-teacher", variant) for variant in ("base", "last-layer", "exact")]
    ours = {(line["group"], line["variant"]): line for line in read_lines("bench.jsonl")}
    expected = {"l2i": [ours[case]["ms per step"] for case in (*cases, ("fixmatch", "base"))]}
    others = {
        (line["code"], line["step"]): line["ms per step"] for line in read_lines("others.jsonl")
    }
    for code in ("authors' code", "USB"):
        stored = "the authors' code" if code == "authors' code" else code
        expected[code] = [others.get((stored, step), "") for step in steps]
    tables = parse_tables((ROOT / "README.md").read_text(encoding="utf-8"))
    rows = [row for row in tables if columns[0] in row]
    names = [re.sub(r"[`\[\]]|\(.*\)", "", row[""]) for row in rows]
    actual = {name: [row[c] for c in columns] for name, row in zip(names, rows, strict=True)}
    assert actual == expected


def read_lines(name: str) -> list[dict[str, str]]:
    text = (BENCHMARKS / "speed_h200" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
