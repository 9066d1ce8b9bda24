"""How strong L2I is where nobody says: as benchmarks/ablation_cpu found it."""

import pytest

from l2i.fit.defaults import Facts, choose_run, describe_run

KINDS = {
    "classes of a table": (Facts(shape=(30,), classes=2, labeled=20, unlabeled=300), 0.1),
    "classes of images": (Facts(shape=(1, 8, 8), classes=10, labeled=40, unlabeled=1000), 0.3),
    "numbers of a table": (Facts(shape=(10,), classes=None, labeled=50, unlabeled=300), 0.3),
    "landmarks": (
        Facts(shape=(1, 44, 44), classes=None, labeled=91, unlabeled=900, has_points=True),
        0.3,
    ),
    "texts": (
        Facts(shape=(64,), classes=2, labeled=20, unlabeled=300, is_text=True, weights="bert"),
        0.03,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_strength_of_l2i_is_that_of_the_study(kind: str) -> None:
    facts, rho = KINDS[kind]
    run, _ = choose_run(facts)
    assert run.l2i.rho == rho
    assert describe_run(run)["L2I"] == f"normalized, last_layer gradient, ρ = {rho:g}"


def test_only_large_images_are_trained_on_several_threads() -> None:
    shapes = {(30,): 1, (1, 8, 8): 1, (3, 32, 32): 0}
    for shape, threads in shapes.items():
        facts = Facts(shape=shape, classes=2, labeled=20, unlabeled=300)
        assert choose_run(facts)[0].threads == threads, shape


def test_views_of_landmarks_are_explained() -> None:
    facts, _ = KINDS["landmarks"]
    run, reasons = choose_run(facts)
    assert run.data.strong == run.data.weak
    assert reasons["strong view"] == "the same as the weak view"
    assert reasons["weak view"] == "landmarks move with the image"


def test_why_l2i_is_off_is_explained() -> None:
    table = {"shape": (30,), "classes": 2, "labeled": 20}
    chosen = choose_run(Facts(**table, unlabeled=300), method="supervised")[1]["L2I"]
    assert chosen == "the method imputes no labels"
    assert choose_run(Facts(**table, unlabeled=0))[1]["L2I"] == "there are no unlabelled rows"
