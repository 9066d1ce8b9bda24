"""Every cell of the paper's tables: its name, protocol and figure, and two steps on tiny data."""

import json
import math
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from typed import DEFAULTS, OURS, expected

from formats import write_cifar10, write_cifar100, write_faces
from image_folders import write_class_folders
from l2i import Run, Trainer, recipes, replace
from l2i.config import to_json
from l2i.config.validate import validate
from l2i.data.tokenization import Text
from l2i.errors import InputError
from l2i.recipes.protocol import resolve_protocol
from l2i.recipes.table import PAPER_RESULTS_CSV, Table, load_paper_results
from tiny_encoder import tiny_encoder, write_imdb

TABLES = ("aflw", "cifar10", "cifar100", "imagenet", "imdb")
CELLS = [name for table in TABLES for name in recipes.get_table(table).cells]
UPDATES = ("l2i", "l2i-paper")
CONTROLS = ("-zero", "-shuffled", "-direct")
WEIGHTS = "tiny-bert"  # folder beside the reviews


def names_in_the_paper() -> set[str]:
    """All the rows and columns of the tables and ablations, spelled out."""
    actual = {
        "aflw/sl-all",
        "imagenet/sl-all",
        "imagenet/sl",
        "imagenet/mixmatch",
        "imagenet/fixmatch",
    }
    actual |= {f"imagenet/fixmatch-{update}" for update in UPDATES}
    actual |= {"imdb/sl-20", "imdb/uda-20", *(f"imdb/uda-{update}-20" for update in UPDATES)}
    for labels in (91, 182, 455):
        actual |= {f"aflw/{method}-{labels}" for method in ("sl", "pseudo-label", "mean-teacher")}
        for update in UPDATES:
            actual |= {
                f"aflw/{method}-{update}-{labels}" for method in ("pseudo-label", "mean-teacher")
            }
            actual |= {
                f"aflw/mean-teacher-{update}-{labels}-{ablation}"
                for ablation in ("exact", "learnable")
            }
    for table, numbers in (("cifar10", (250, 500, 1000)), ("cifar100", (500, 1000, 2000))):
        for labels in numbers:
            plain = (
                "pi-model",
                "pseudo-label",
                "mixup",
                "vat",
                "mean-teacher",
                "mixmatch",
                "fixmatch",
            )
            actual |= {f"{table}/{method}-{labels}" for method in plain}
            for update in UPDATES:
                actual |= {f"{table}/{method}-{update}-{labels}" for method in plain[4:]}
                actual |= {f"{table}/mean-teacher-{update}-{labels}-exact"}
                actual |= {f"{table}/fixmatch-{update}-{labels}-learnable"}
    for update in UPDATES:
        actual |= {f"cifar100/fixmatch-{update}-{labels}-separate" for labels in (500, 1000, 2000)}
        actual |= {f"cifar100/fixmatch-{update}-500-holdout{size}" for size in (32, 128)}
        actual |= {f"aflw/mean-teacher-{update}-91-k{count}" for count in (2, 3)}
    return actual | {"aflw/mean-teacher-l2i-91-k1"}


def test_every_cell_of_the_paper_has_a_name() -> None:
    ours = {
        f"{table}/{method}{update}"
        for table in ("cifar10", "cifar100")
        for method, update in [("sl", ""), ("uda", ""), ("uda", "-l2i"), ("uda", "-l2i-paper")]
    }
    ours |= {name.rpartition("-")[0] for name in CELLS if name.endswith(CONTROLS)}  # see below
    ours |= {f"imdb/{method}" for method in ("fixmatch", "mean-teacher")}
    ours |= {
        f"imdb/{method}-{update}" for method in ("fixmatch", "mean-teacher") for update in UPDATES
    }
    ours |= {f"imdb/uda-{update}-20" for update in UPDATES}  # exact
    budgets = [name for name in CELLS if name.endswith(("-short", "-fast"))]  # see below
    ours |= {name.rpartition("-")[0] for name in budgets}
    assert names_in_the_paper() <= set(CELLS)
    others = set(CELLS) - names_in_the_paper()
    assert not [name for name in others if name.rpartition("-")[0] not in ours]


@pytest.mark.parametrize("table", [recipes.get_table(name) for name in TABLES], ids=TABLES)
def test_every_cell_follows_the_protocol_of_the_paper(table: Table) -> None:
    for name, cell in table.cells.items():
        actual, wanted = resolve_protocol(table.get_run(name)), expected(table.name, cell)
        for field, value in actual.items():
            if field in wanted or field not in OURS:
                typed = {**DEFAULTS, **wanted}[field]  # a KeyError where nobody has typed it
                value_typed = pytest.approx(typed) if isinstance(typed, float) else typed
                assert value == value_typed, (name, field)
        assert wanted.keys() <= actual.keys(), name
        validate(table.get_run(name))


def test_no_two_cells_resolve_alike() -> None:
    protocols = {name: resolve_protocol(recipes.get(name)) for name in CELLS}
    assert not [(a, b) for a, b in combinations(CELLS, 2) if protocols[a] == protocols[b]]


def test_schedules_scale_with_the_steps() -> None:
    short = resolve_protocol(replace(recipes.get("aflw/mean-teacher-91"), steps=600))
    assert (short["method.rampup"], short["optim.milestones"]) == (240, (400,))


def test_cells_on_a_budget_of_ours_are_set_against_each_other_and_beside_the_papers_budget() -> (
    None
):
    table, name = recipes.get_table("cifar10"), "cifar10/fixmatch-l2i-250-fast"
    assert table.find_baseline(name) == "cifar10/fixmatch-250-fast"
    assert table.find_baseline("cifar10/fixmatch-250-fast") is None
    assert (
        table.find_paper_cell(name)
        == "cifar10/fixmatch-l2i-250"
        == table.find_paper_cell("cifar10/fixmatch-l2i-250")
    )
    assert "benchmarks/" in str(table.get_setting_source(name, "optim.lr"))
    assert table.get_setting_source("cifar10/fixmatch-l2i-250", "optim.lr") is None


@pytest.mark.parametrize("name", CELLS)
def test_every_cell_with_l2i_has_its_controls(name: str) -> None:
    table = recipes.find_cell_table(name)
    cell = table.cells[name]
    if cell.update == "off" or cell.ablation:
        return
    values = {"zero": "zero_gradient", "shuffled": "shuffled_labels", "direct": "direct_gradient"}
    for control, value in values.items():
        other = table.find_cell(cell._replace(ablation=control))
        assert other is not None and other.replace(f"-{control}", "") == name
        run = replace(table.get_run(other), name=name)
        assert run.l2i.ablation == value
        assert replace(run, l2i={"ablation": "none"}) == table.get_run(name)


@pytest.mark.parametrize("name", CELLS)
def test_ablations_of_how_labels_are_learned_share_the_controls_that_impute_none(name: str) -> None:
    table = recipes.find_cell_table(name)
    cell = table.cells[name]
    if cell.ablation in ("exact", "learnable", "k1", "k2", "k3"):
        plain = table.find_cell(cell._replace(ablation=""))
        assert plain is not None
        wanted = table.find_controls(plain)
        own = table.find_cell(cell._replace(ablation=f"{cell.ablation}-shuffled"))
        wanted.pop("shuffled")  # shuffled labels are imputed, and so by the ablation's own rule
        assert table.find_controls(name) == wanted | ({} if own is None else {"shuffled": own})


def test_the_fast_cells_are_a_pair_under_both_updates_with_its_controls() -> None:
    fast = {name for name in CELLS if name.endswith("-fast")}
    marks = {f"-{update}-250{control}" for update in UPDATES for control in ("", *CONTROLS)}
    assert fast == {f"cifar10/fixmatch{mark}-fast" for mark in {"-250", *marks}}


def test_the_short_cells_are_those_of_the_fewest_labels_with_their_ablations() -> None:
    short = {name for name in CELLS if name.endswith("-short")}
    short = {name for name in short if not name.removesuffix("-short").endswith(CONTROLS)}
    wanted = {
        f"cifar10/{method}{mark}-250-short"
        for method in ("mean-teacher", "mixmatch", "fixmatch")
        for mark in ("", "-l2i", "-l2i-paper")
    }
    wanted |= {f"cifar10/mean-teacher-{update}-250-exact-short" for update in UPDATES}
    wanted |= {f"cifar10/fixmatch-{update}-250-learnable-short" for update in UPDATES}
    wanted |= {f"cifar100/fixmatch{mark}-500-short" for mark in ("", "-l2i", "-l2i-paper")}
    assert short == wanted
    assert all(
        recipes.find_cell_table(name).find_paper_cell(name) == name.removesuffix("-short")
        for name in short
    )


def test_a_warm_up_scales_with_the_steps() -> None:
    assert resolve_protocol(replace(recipes.get("imdb/uda-20"), steps=600))["optim.warmup"] == 60


def test_the_paper_has_a_result_for_each_of_its_cells_and_for_no_other() -> None:
    """K inner steps, SL and UDA on CIFAR are ours."""
    wanted = {
        name for name in names_in_the_paper() if "-k" not in name and "-l2i-paper" not in name
    }
    assert set(load_paper_results()) == wanted | {"aflw/mean-face"}
    assert len(PAPER_RESULTS_CSV.read_text().splitlines()) == 1 + len(load_paper_results())


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("aflw/mean-teacher-l2i-91", "11.53 ± 0.02"),
        ("aflw/mean-teacher-l2i-paper-91-exact", "11.70 ± 0.03"),
        ("cifar10/mean-teacher-l2i-paper-250", "25.97 ± 1.71"),
        ("cifar10/mean-teacher-l2i-1000", "14.76 ± 0.50*"),
        ("cifar10/fixmatch-l2i-250-fast", "5.56 ± 0.03"),
        ("cifar100/fixmatch-l2i-500-holdout32", "44.67 ± 0.23"),
        ("cifar100/vat-500", "--"),
        ("imagenet/sl-all", "35.90"),
        ("imdb/uda-l2i-paper-20", "9.19 ± 0.10"),
        ("imdb/fixmatch-20", "None"),
        ("aflw/mean-teacher-l2i-91-k2", "None"),
    ],
)
def test_a_result_is_printed_as_in_the_paper(name: str, printed: str) -> None:
    assert str(recipes.find_cell_table(name).get_paper_result(name)) == printed


def test_a_contradiction_in_the_paper_is_recorded() -> None:
    metric = load_paper_results()["cifar10/mean-teacher-l2i-1000"]
    assert metric.error == 14.76 and "15.76" in metric.note


def write_imagenet(folder: Path) -> Path:
    return write_class_folders(folder, classes=3, per_class=6, size=72)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "aflw": write_faces,
    "cifar10": write_cifar10,
    "cifar100": lambda folder: write_cifar100(folder, per_class=5),
    "imagenet": write_imagenet,
    "imdb": write_imdb,
}
TINY: dict[str, dict[str, Any]] = {
    "aflw": {"model": {}, "data": {"num_labeled": 10}},
    "cifar10": {
        "model": {"depth": 10, "width": 1},
        "data": {"num_labeled": 20, "num_validation": 10},
    },
    "cifar100": {
        "model": {"depth": 10, "width": 1},
        "data": {"num_labeled": 200, "num_validation": 10},
    },
    "imagenet": {"model": {"depth": 8}, "data": {"workers": 0}},
    "imdb": {
        "model": {},
        "data": {"text": Text(length=32)},
        "optim": {"warmup": 0},
    },  # the first step moves nothing
}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    actual = {table: str(write(tmp_path_factory.mktemp(table))) for table, write in WRITERS.items()}
    tiny_encoder(Path(actual["imdb"]) / WEIGHTS)
    return actual


def tiny(name: str, root: str) -> Run:
    """The cell on a small network and small batches; all else as it is."""
    changes = TINY[recipes.find_cell_table(name).name]
    run, labels = recipes.get(name), recipes.find_cell_table(name).cells[name].num_labeled
    data = {**changes["data"], "root": root} | (
        {"num_labeled": labels} if isinstance(labels, float) else {}
    )
    many = 2 if run.batch.unlabeled > run.batch.labeled else 1
    batch = {"labeled": 4, "unlabeled": 4 * many, "holdout": 4}
    model = changes["model"] if run.model.weights is None else {"weights": f"{root}/{WEIGHTS}"}
    l2i = {"outer_batch_size": min(4, run.l2i.outer_batch_size)}
    changed = {
        "model": model,
        "data": data,
        "batch": batch,
        "l2i": l2i,
        "optim": changes.get("optim", {}),
    }
    return replace(run, device="cpu", threads=1, **changed)


def distinct_cells() -> list[str]:
    """The cells without those that differ from an earlier one in nothing that is left here."""
    runs = {name: to_json(replace(tiny(name, "root"), name="")) for name in CELLS}
    return list({json.dumps(run): name for name, run in reversed(runs.items())}.values())[::-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", distinct_cells())
def test_two_steps_of_a_cell_on_tiny_data_in_the_real_format(
    name: str, roots: dict[str, str]
) -> None:
    trainer = Trainer(tiny(name, roots[recipes.find_cell_table(name).name]))
    before = {key: p.detach().clone() for key, p in trainer.params.items()}
    for step in range(2):
        trainer.step(step)
    means = trainer.meter.read()  # raises where a cost is no number
    assert all(math.isfinite(value) for value in means.values())
    assert any(not torch.equal(before[key], p) for key, p in trainer.params.items())
    cell = recipes.find_cell_table(name).cells[name]
    assert (means.get("grad_ratio", 0) > 0) == (cell.update != "off" and cell.ablation != "zero")
    assert trainer.compute_metrics()["test"][trainer.task.metric_name] >= 0


def test_the_papers_results_add_up() -> None:
    """Sums over the printed tables, taken from the paper's source: a slip of a digit shows."""
    sums = {
        "aflw": (23, 256.57, 0.98),
        "cifar10": (36, 761.41, 21.67),
        "cifar100": (41, 1490.99, 4.98),
        "imagenet": (5, 294.89, 0),
        "imdb": (3, 45.31, 1.28),
    }
    for table, wanted in sums.items():
        actual = [
            metric for name, metric in load_paper_results().items() if name.startswith(f"{table}/")
        ]
        errors, spreads = sum(f.error or 0 for f in actual), sum(f.uncertainty or 0 for f in actual)
        assert (len(actual), errors, spreads) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "eta"),
    [
        ("digits/fixmatch-l2i-paper-40", 0.1 * 64 * 10),
        ("fashion/fixmatch-l2i-paper-50", 0.1 * 64 * 10),
        ("breast-cancer/pseudo-label-l2i-paper-20", 0.1 * 64 * 2),
        ("friedman/mean-teacher-l2i-paper-60", 10 * 0.002),
        ("small-faces/mean-teacher-l2i-paper-91", 10 * 0.03),
    ],
)
def test_the_paper_rule_of_small_problems_has_the_released_codes_cost_and_rate(
    name: str, eta: float
) -> None:
    paper = recipes.get(name).l2i.paper
    assert paper.eta == pytest.approx(eta) and not paper.inner_supervised
    schedule = "rate" if name.startswith("small-faces") else "constant"
    assert paper.eta_schedule == schedule


@pytest.mark.parametrize("name", [name for name in CELLS if "-l2i-paper" in name])
def test_c_t_in_the_look_ahead_is_refused_at_the_released_rate(name: str) -> None:
    run = replace(recipes.get(name), l2i={"paper": {"inner_supervised": True}})
    eta = f"{run.l2i.paper.eta:g}"
    reason = rf"adds C\^T .*: l2i\.paper\.eta={eta} is a rate for C\^U alone; set .*supervised_eta"
    with pytest.raises(InputError, match=reason):
        validate(run)
    reason = r"too large for C\^T \+ C\^U: l2i\.paper\.eta=.* C\^U alone; lower .*supervised_eta"
    with pytest.raises(InputError, match=reason):
        validate(replace(run, l2i={"paper": {"supervised_eta": run.l2i.paper.eta}}))
    validate(replace(run, l2i={"paper": {"supervised_eta": 0.07 * run.l2i.paper.eta}}))


def test_a_rate_that_is_not_used_is_not_compared() -> None:
    both = {"inner_supervised": True, "supervised_eta": 0.05, "eta": 0.01}
    validate(replace(recipes.get("digits/mean-teacher-l2i-40"), l2i={"paper": both}))


@pytest.mark.parametrize("supervised", [False, True])
@pytest.mark.parametrize(
    ("change", "problem"),
    [({"eta_schedule": "rate"}, "rate to scale"), ({"inner_steps": 2}, "needs a step size")],
)
def test_a_missing_rate_is_named_by_the_cost_it_is_for(
    change: dict[str, object], problem: str, supervised: bool
) -> None:
    paper = {"inner_supervised": supervised, **change}
    l2i = {"hypergradient": "exact", "paper": paper}
    fix = "supervised_eta" if supervised else "eta"
    with pytest.raises(InputError, match=rf"{problem}; set l2i\.paper\.{fix}$"):
        validate(replace(recipes.get("digits/mean-teacher-l2i-40"), l2i=l2i))


NORMALIZES = {"cifar10", "cifar100", "imagenet", "digits", "fashion", "breast-cancer", "diabetes"}


@pytest.mark.parametrize("name", recipes.list_recipes())
def test_cells_with_batchnorm_recompute_the_statistics_of_the_average(name: str) -> None:
    table = recipes.find_cell_table(name).name
    has_batchnorm = table in NORMALIZES | {"friedman"}
    run = recipes.get(name)
    assert has_batchnorm == (run.model.name in ("wide-resnet", "resnet", "mlp", "conv"))
    assert run.optim.ema_bn == ("recompute" if has_batchnorm else "copy")
