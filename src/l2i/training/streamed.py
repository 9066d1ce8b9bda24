"""Tensors in the format of safetensors, piece by piece: the library's own writer holds up other threads."""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch
from torch import Tensor

from l2i.batch import Params

KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
ALIGNED = 8  # bytes: where the values begin


def pieces(tensors: Params, about: dict[str, str]) -> Iterator[bytes | memoryview]:
    """The file: its header's length, its header, and the values of each tensor, the widest types first."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, object] = {"__metadata__": about}
    begins = 0
    for name, tensor in ordered:
        ends = begins + tensor.numel() * tensor.element_size()
        kind = {"dtype": KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begins, ends]}
        header[name], begins = kind, ends
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % ALIGNED)
    yield len(head).to_bytes(8, "little") + head
    for _, tensor in ordered:
        yield values(tensor)


def values(tensor: Tensor) -> memoryview:
    """The bytes of a tensor that lies in memory, as they are there."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
