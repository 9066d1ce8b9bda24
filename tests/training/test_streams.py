"""Which parts of a step share a stream, and the sequential fallback."""

import pytest

from l2i.training.cuda_graph import (
    FULL_NETWORK_STREAMS,
    LAST_LAYER_STREAMS,
    SEPARATE_STREAMS,
    SMALL_ACTIVATION_BYTES,
    StreamPlan,
    choose_stream_plan,
)
from l2i.training.step import SEQUENTIAL


def test_parts_share_streams_if_a_network_holds_much() -> None:
    assert (
        choose_stream_plan(activation_bytes=SMALL_ACTIVATION_BYTES - 1, last_layer=True)
        == choose_stream_plan(activation_bytes=0, last_layer=False)
        == SEPARATE_STREAMS
    )
    assert (
        choose_stream_plan(activation_bytes=SMALL_ACTIVATION_BYTES, last_layer=True),
        choose_stream_plan(activation_bytes=SMALL_ACTIVATION_BYTES, last_layer=False),
    ) == (LAST_LAYER_STREAMS, FULL_NETWORK_STREAMS)


@pytest.mark.parametrize("plan", [SEPARATE_STREAMS, LAST_LAYER_STREAMS, FULL_NETWORK_STREAMS])
def test_parts_of_the_base_step_never_share_a_stream(plan: StreamPlan) -> None:
    assert len({plan[name] for name in ("impute", "labeled", "student")}) == 3
    assert plan.keys() == SEPARATE_STREAMS.keys()


def test_without_streams_everything_is_done_in_turn() -> None:
    done = []
    with SEQUENTIAL("student", "impute"):
        done.append("student")
    SEQUENTIAL.wait("student")
    SEQUENTIAL.hold(done)
    SEQUENTIAL.join()
    assert done == ["student"]
