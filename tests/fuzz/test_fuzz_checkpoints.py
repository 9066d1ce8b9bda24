"""Checkpoints: damaged files, and whole ones with a right checksum that hold no run's state."""

import json
from typing import Any

import pytest
import torch
from harmless import Check
from hypothesis import given
from hypothesis import strategies as st
from loaders import LOADERS
from run_loaders import whole_checkpoint
from safetensors.torch import save
from strategies import cases, files, json_files

pytestmark = pytest.mark.slow

TENSORS, META = whole_checkpoint()
DTYPES = [
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
]
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 7]), max_size=4)


@cases(600)
@given(content=files(LOADERS["checkpoint"].seeds()))
def test_any_checkpoint_is_read_or_refused(check: Check, content: bytes) -> None:
    check("checkpoint", content)


@st.composite
def states(draw: st.DrawFn) -> bytes:
    """A run's state, some tensors of another shape or type, left out, renamed, or not numbers."""
    tensors = dict(TENSORS)
    for name in draw(
        st.lists(st.sampled_from(sorted(tensors)), min_size=1, max_size=3, unique=True)
    ):
        match draw(st.sampled_from(["shape", "dtype", "flat", "remove", "rename", "value"])):
            case "shape":
                tensors[name] = torch.zeros(draw(SHAPES), dtype=tensors[name].dtype)
            case "dtype":
                tensors[name] = tensors[name].to(draw(st.sampled_from(DTYPES)))
            case "flat":
                tensors[name] = tensors[name].reshape(-1)
            case "remove":
                del tensors[name]
            case "rename":
                tensors[name + draw(st.sampled_from(["x", ".", "é"]))] = tensors.pop(name)
            case _:
                odd = (
                    [-1, 255, torch.nan, torch.inf]
                    if tensors[name].is_floating_point()
                    else [0, 1, 255]
                )
                tensors[name] = torch.full_like(tensors[name], draw(st.sampled_from(odd)))
    return save(tensors, {"json": json.dumps(META)})


@cases(100)
@given(content=states())
def test_a_state_of_other_tensors_is_loaded_or_refused(check: Check, content: bytes) -> None:
    check("checkpoint-sealed", content)


def without_config(meta: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in meta.items() if name != "config"}


@cases(100)
@given(content=json_files([without_config(META)]))
def test_a_state_with_other_meta_is_loaded_or_refused(check: Check, content: bytes) -> None:
    check("checkpoint-meta", content)
