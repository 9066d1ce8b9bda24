import dataclasses

import pytest

from l2i import InputError, recipes, replace
from l2i.config.validate import validate
from l2i.experiments.tuning.space import apply_values, build_search_space


@pytest.mark.parametrize(
    ("recipe", "fields"),
    [
        ("digits", {"optim.lr", "method.weight", "method.threshold", "l2i.rho"}),
        ("digits/sl-40", {"optim.lr"}),
        ("digits/fixmatch-40", {"optim.lr", "method.weight", "method.threshold"}),
        ("digits/vat-40", {"optim.lr", "method.weight", "method.epsilon"}),
        ("digits/mixup-l2i-40", {"optim.lr", "method.weight", "method.alpha", "l2i.rho"}),
        (
            "digits/mixmatch-l2i-paper-40",
            {
                "optim.lr",
                "method.weight",
                "method.rampup",
                "method.temperature",
                "method.alpha",
                "l2i.paper.eta",
            },
        ),
        (
            "cifar10/vat-250",
            {"optim.lr", "method.weight", "method.rampup", "method.epsilon", "method.entropy"},
        ),
        (
            "aflw/mean-teacher-l2i-91-learnable",
            {"optim.lr", "method.weight", "method.rampup", "l2i.rho", "l2i.paper.label_lr"},
        ),
        (
            "imdb/uda-20",
            {"optim.lr", "method.weight", "method.temperature"},
        ),  # its threshold is off
    ],
)
def test_a_recipe_is_searched_in_the_fields_that_it_uses(recipe: str, fields: set[str]) -> None:
    assert set(build_search_space(recipes.get(recipe))) == fields


def test_the_rate_of_a_look_ahead_on_c_u_is_not_searched_where_it_is_on_c_t_too() -> None:
    run = recipes.get("digits/mean-teacher-l2i-paper-40")
    paper = {"inner_supervised": True, "supervised_eta": 0.1}
    assert "l2i.paper.eta" in build_search_space(run)
    assert "l2i.paper.eta" not in build_search_space(replace(run, l2i={"paper": paper}))


def test_every_recipe_lies_in_its_own_space() -> None:
    for name in recipes.list_recipes():
        run = recipes.get(name)
        space = build_search_space(run)
        assert "optim.lr" in space and all(
            actual.includes_recipe_value for actual in space.values()
        ), name
        assert (
            apply_values(
                run,
                space,
                {
                    path: actual.recipe_value
                    for path, actual in space.items()
                    if actual.recipe_value
                },
            )
            == run
        )
        for edge in ("low", "high"):
            validate(
                apply_values(
                    run, space, {path: getattr(actual, edge) for path, actual in space.items()}
                )
            )


def test_a_rampup_in_steps_is_searched_as_a_share() -> None:
    run = replace(
        recipes.get("digits/pi-model-40"),
        steps=300,
        method=dataclasses.replace(recipes.get("cifar10/pi-model-250").method, weight=10.0),
    )
    counted = replace(run, method={"rampup": 120})
    actual = build_search_space(counted)["method.rampup"]
    assert actual.recipe_value == 0.4 and actual.includes_recipe_value
    assert (
        apply_values(
            counted, build_search_space(counted), {"method.rampup": 0.4}
        ).method.compute_weight(60, 300)
        == 5
    )


def test_drawn_values_are_short_and_the_recipes_own_exact() -> None:
    run = recipes.get("digits/mean-teacher-40")
    space = build_search_space(run)
    chosen = apply_values(run, space, {"optim.lr": 0.00123456789, "method.rampup": 1 / 3})
    assert (chosen.optim.lr, chosen.method.rampup) == (0.001235, 1 / 3)


def test_fields_and_ranges_can_be_chosen() -> None:
    run = recipes.get("digits")
    assert set(build_search_space(run, ("optim.lr", "l2i.rho"))) == {"optim.lr", "l2i.rho"}
    space = build_search_space(
        run,
        ("optim.lr",),
        (
            "l2i.paper.eta=0.1:100",
            "model.width=16:128:log",
            "optim.ema-decay=0.9:0.999",
            "data.weak.noise=0:0.5",
        ),
    )
    assert set(space) == {
        "optim.lr",
        "l2i.paper.eta",
        "model.width",
        "optim.ema_decay",
        "data.weak.noise",
    }
    assert space["l2i.paper.eta"].log and not space["l2i.paper.eta"].includes_recipe_value
    assert (
        space["model.width"].is_int
        and space["model.width"].log
        and not space["optim.ema_decay"].log
    )
    chosen = apply_values(
        run, space, {"model.width": 33, "data.weak.noise": 0.25, "l2i.paper.eta": 2.0}
    )
    assert (chosen.model.width, chosen.data.weak.noise, chosen.l2i.paper.eta) == (33, 0.25, 2.0)


@pytest.mark.parametrize(
    ("fields", "ranges", "message"),
    [
        (("optim.rl",), (), "unknown field to search 'optim.rl'; perhaps you meant 'optim.lr'"),
        (
            ("model.width",),
            (),
            "model.width has no default range in this recipe; add --range model.width=LOW:HIGH",
        ),
        (("seed",), (), "unknown field to search 'seed'"),
        (("data.num_labeled",), (), "unknown field to search 'data.num_labeled'"),
        (
            (),
            ("optim.lr=1e-2:1e-4",),
            "--range optim.lr=1e-2:1e-4: the first value must be below the second",
        ),
        ((), ("optim.lr=a:b",), "--range takes FIELD=LOW:HIGH"),
        ((), ("optim.lr=0.1",), "--range takes FIELD=LOW:HIGH"),
        ((), ("optim.lr=1e-3:inf",), "--range takes FIELD=LOW:HIGH"),
        ((), ("optim.lr=0:1:log",), "a log scale cannot start at 0"),
        ((), ("model.width=1.5:3",), "model.width is an integer"),
        (
            (),
            ("method.threshold=0.5:1.5",),
            "method.threshold=1.5 must be at least 0 and at most 1",
        ),
    ],
)
def test_what_cannot_be_searched_is_said(
    fields: tuple[str, ...], ranges: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError) as error:
        build_search_space(recipes.get("digits"), fields, ranges)
    assert message in str(error.value)
