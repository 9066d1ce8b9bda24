"""Which lanes share a stream, and what lanes are where there are none."""

import pytest

from l2i import lanes
from l2i.lanes import APART, IN_TURN, LAST_LAYER, LITTLE, THROUGH_ALL, plan_for


def test_lanes_share_streams_where_a_network_holds_much() -> None:
    assert plan_for(held=LITTLE - 1, last_layer=True) == plan_for(held=0, last_layer=False) == APART
    assert (plan_for(held=LITTLE, last_layer=True), plan_for(held=LITTLE, last_layer=False)) == (
        LAST_LAYER,
        THROUGH_ALL,
    )


@pytest.mark.parametrize("plan", [APART, LAST_LAYER, THROUGH_ALL])
def test_the_base_steps_lanes_never_share_a_stream(plan: lanes.Plan) -> None:
    assert len({plan[name] for name in ("impute", "labeled", "student")}) == 3
    assert plan.keys() == APART.keys()


def test_without_streams_everything_is_done_in_turn() -> None:
    done = []
    with IN_TURN("student", "impute"):
        done.append("student")
    IN_TURN.wait("student")
    IN_TURN.keep(done)
    IN_TURN.join()
    assert done == ["student"]
