import json
from typing import Any

import pytest

from l2i import InputError, Run, recipes, replace
from l2i.config import Optim, from_json, to_json
from l2i.config.validate import validate
from l2i.methods.vat import VAT


def test_every_recipe_survives_json() -> None:
    for name in recipes.list_recipes():
        run = recipes.get(name)
        assert from_json(json.loads(json.dumps(to_json(run)))) == run, name


def test_sections_and_tuples_survive_json() -> None:
    run = replace(
        recipes.get("digits"),
        optim=Optim(schedule="step", milestones=(3, 5)),
        l2i={"paper": {"eta": 1.5}},
    )
    assert from_json(json.loads(json.dumps(to_json(run)))) == run


def changed(path: str, value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(to_json(Run())))
    *sections, name = path.split(".")
    section = plain
    for part in sections:
        section = section[part]
    section[name] = value
    return plain


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("stepps", 5, "unknown field 'stepps'; perhaps you meant 'steps'"),
        ("data.num_labelled", 5, "perhaps you meant 'data.num_labeled'"),
        ("method.name", "fixmach", "perhaps you meant 'fixmatch'"),
        ("steps", "many", "steps='many' is not valid; it must be int"),
        ("steps", True, "steps=True is not valid"),
        ("l2i.labels", "guess", "l2i.labels='guess' is not valid; it must be output | learnable"),
        ("optim.milestones", ["a"], "optim.milestones='a' is not valid"),
    ],
)
def test_a_wrong_field_in_json_says_what_fits(path: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("|", r"\|")):
        from_json(changed(path, value))


def test_whole_numbers_serve_as_floats() -> None:
    assert from_json(changed("optim.lr", 1)).optim.lr == 1.0


def test_l2i_cells_differ_from_their_baselines_in_the_outer_step_alone() -> None:
    for method in ("fixmatch", "mixmatch", "mean-teacher"):
        base, twin, paper = (
            recipes.get(f"digits/{method}{suffix}-40") for suffix in ("", "-l2i", "-l2i-paper")
        )
        assert replace(twin, name=base.name, l2i=base.l2i) == base
        assert replace(paper, name=base.name, l2i=base.l2i) == base
        assert (base.l2i.update, twin.l2i.update, paper.l2i.update) == (
            "off",
            "normalized",
            "paper",
        )


def test_counts_and_shares_survive_json_as_what_they_are() -> None:
    run = replace(
        Run(), data={"num_labeled": 1.0, "num_validation": 1}, optim={"milestones": (0.5, 7)}
    )
    back = from_json(json.loads(json.dumps(to_json(run))))
    assert [
        type(v) for v in (back.data.num_labeled, back.data.num_validation, *back.optim.milestones)
    ] == [float, int, float, int]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"data": {"num_labeled": 1.5}},
            "data.num_labeled=1.5 must be a whole number, or a fraction",
        ),
        (
            {"optim": {"milestones": (2.5,), "schedule": "step"}},
            "must be a whole number, or a fraction",
        ),
        (
            {"precision": "bf16", "method": VAT(), "l2i": {"update": "off"}},
            "is rounded away in bf16",
        ),
        ({"l2i": {"paper": {"eta_schedule": "rate"}}}, "needs an inner learning rate to scale"),
        (
            {"l2i": {"paper": {"inner_steps": 2}, "hypergradient": "exact"}},
            "needs a step size; set l2i.paper.eta",
        ),
    ],
)
def test_what_cannot_be_is_told_with_what_to_do(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        validate(replace(Run(), **changes))
