"""Fitted models as modules of arrays, from encoded rows to logits or targets.

They are saved as tensors and exported as networks are; nothing is pickled. All compute in double
precision, so that an exported model gives the same outputs.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

MIN_PROBABILITY = 1e-4  # of a class, before the logarithm
MAX_DEPTH = 10_000  # of a tree that is read from a file


class Predictor(nn.Module, ABC):
    """A model whose tensors are all that is known about it."""

    kind: str
    indices: ClassVar[tuple[str, ...]] = ()
    """The tensors that hold whole numbers."""
    values_per_row: int
    """Values that it computes at once for a row, which bound the rows per batch."""

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            is_index = not tensor.is_floating_point()
            self.register_buffer(name, tensor.long() if is_index else tensor.double())
        # numbers that decide what is computed, not tensors: exported models need them so
        self.numbers = {
            n: int(t) for n, t in tensors.items() if not t.ndim and not t.is_floating_point()
        }

    def check(self, num_inputs: int, num_outputs: int) -> None:
        """Raise ValueError unless the tensors are usable; they may come from anywhere."""
        declared = {name for c in type(self).__mro__ for name in inspect.get_annotations(c)}
        for name, tensor in self.named_buffers():
            if name not in declared or tensor.is_floating_point() == (name in self.indices):
                raise ValueError("tensors are not of this kind of model")
            if not bool(tensor.isfinite().all()):
                raise ValueError("tensors are not finite")
        self.check_shapes(num_inputs, num_outputs)

    @abstractmethod
    def check_shapes(self, num_inputs: int, num_outputs: int) -> None:
        """Raise ValueError unless the tensors fit together."""


class LinearPredictor(Predictor):
    """x W + b."""

    kind = "linear"
    weight: Tensor  # [E, C]
    bias: Tensor  # [C]

    @property
    def values_per_row(self) -> int:  # type: ignore[override]
        return len(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x.double() @ self.weight + self.bias

    def check_shapes(self, num_inputs: int, num_outputs: int) -> None:
        _check_shapes((self.weight, (num_inputs, num_outputs)), (self.bias, (num_outputs,)))


class DirectionPredictor(LinearPredictor):
    """x / ‖x‖ W + b."""

    kind = "directions"

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.normalize(x.double(), dim=1))


class TreePredictor(Predictor):
    """The sum of the leaves that a row reaches, one per tree; log probabilities if they are such.

    Nodes of all trees are numbered together. A leaf is its own child.
    """

    kind = "trees"
    indices: ClassVar[tuple[str, ...]] = (
        "feature",
        "left",
        "right",
        "roots",
        "depth",
        "is_probability",
    )
    feature: Tensor  # [M]
    threshold: Tensor  # [M], exact in float32: a row goes left if its value is at most that
    left: Tensor  # [M]
    right: Tensor  # [M]
    value: Tensor  # [M, C]
    roots: Tensor  # [T]
    bias: Tensor  # [C]
    depth: Tensor  # of the deepest leaf
    is_probability: Tensor  # whether the sums are probabilities rather than logits or targets

    @property
    def values_per_row(self) -> int:  # type: ignore[override]
        return len(self.roots) * self.value[:1].numel()

    def forward(self, x: Tensor) -> Tensor:
        total = self.bias + self.sum_leaves(self.find_leaves(x.double()))
        return total.clamp_min(MIN_PROBABILITY).log() if self.numbers["is_probability"] else total

    def find_leaves(self, rows: Tensor) -> Tensor:
        """Return the leaf of each row in each tree, [B, T]."""
        node = self.roots.expand(rows.shape[0], -1)
        for _ in range(self.numbers["depth"]):
            goes_left = rows.gather(1, self.feature[node]) <= self.threshold[node]
            node = torch.where(goes_left, self.left[node], self.right[node])
        return node

    def sum_leaves(self, leaves: Tensor) -> Tensor:
        """Return the sum over trees, [B, C]."""
        return self.value[leaves].sum(dim=1)

    def check_shapes(self, num_inputs: int, num_outputs: int) -> None:
        count = len(self.feature)
        nodes = [(t, (count,)) for t in (self.feature, self.threshold, self.left, self.right)]
        sizes = [(self.bias, (num_outputs,)), (self.roots, (len(self.roots),))]
        _check_shapes(*nodes, *sizes, (self.depth, ()), (self.is_probability, ()))
        self.check_values(count, num_outputs)
        _check_indices(self.feature, num_inputs)
        for nodes_of_tree in (self.left, self.right, self.roots):
            _check_indices(nodes_of_tree, count)
        if not 0 <= self.numbers["depth"] <= min(count, MAX_DEPTH):
            raise ValueError("trees are too deep")

    def check_values(self, num_nodes: int, num_outputs: int) -> None:
        """Raise ValueError unless leaves have values for the outputs."""
        _check_shapes((self.value, (num_nodes, num_outputs)))


class BoostedPredictor(TreePredictor):
    """Trees of which each adds to one output."""

    kind = "boosted"
    indices = (*TreePredictor.indices, "output")
    value: Tensor  # [M]
    output: Tensor  # [T], to which a tree adds

    def sum_leaves(self, leaves: Tensor) -> Tensor:
        is_of = torch.nn.functional.one_hot(self.output, len(self.bias)).double()  # [T, C]
        return self.value[leaves] @ is_of

    def check_values(self, num_nodes: int, num_outputs: int) -> None:
        _check_shapes((self.value, (num_nodes,)), (self.output, (len(self.roots),)))
        _check_indices(self.output, num_outputs)


class NeighborPredictor(Predictor):
    """The mean value of the nearest rows; its logarithm if values are probabilities."""

    kind = "neighbors"
    indices = ("num_neighbors", "is_probability")
    rows: Tensor  # [N, E]
    value: Tensor  # [N, C]
    num_neighbors: Tensor
    is_probability: Tensor

    @property
    def values_per_row(self) -> int:  # type: ignore[override]
        return len(self.rows)

    def forward(self, x: Tensor) -> Tensor:
        distance = _square_distances(x.double(), self.rows)
        nearest = distance.topk(self.numbers["num_neighbors"], dim=1, largest=False).indices
        mean = self.value[nearest].mean(dim=1)
        return mean.clamp_min(MIN_PROBABILITY).log() if self.numbers["is_probability"] else mean

    def check_shapes(self, num_inputs: int, num_outputs: int) -> None:
        count = len(self.rows)
        _check_shapes((self.rows, (count, num_inputs)), (self.value, (count, num_outputs)))
        _check_shapes((self.num_neighbors, ()), (self.is_probability, ()))
        if not 1 <= self.numbers["num_neighbors"] <= count:
            raise ValueError("more neighbours than rows")


class KernelPredictor(Predictor):
    """The mean of a Gaussian process with a squared exponential kernel."""

    kind = "kernel"
    rows: Tensor  # [N, E]
    length: Tensor  # one, or [E]
    weight: Tensor  # [N, D]
    bias: Tensor  # [D]

    @property
    def values_per_row(self) -> int:  # type: ignore[override]
        return len(self.rows)

    def forward(self, x: Tensor) -> Tensor:
        distance = _square_distances(x.double() / self.length, self.rows / self.length)
        return torch.exp(-0.5 * distance) @ self.weight + self.bias

    def check_shapes(self, num_inputs: int, num_outputs: int) -> None:
        count = len(self.rows)
        _check_shapes((self.rows, (count, num_inputs)), (self.weight, (count, num_outputs)))
        _check_shapes((self.bias, (num_outputs,)))
        if tuple(self.length.shape) not in ((), (num_inputs,)):
            raise ValueError("tensors do not fit together")


class LaplacePredictor(Predictor):
    """A Gaussian process for classes by Laplace's approximation, one class against the others.

    The latent mean is k(x)ᵀ g and its variance a − ‖R k(x)‖²; the probability of a class is
    σ(mean / √(1 + π variance / 8)).
    """

    kind = "laplace"
    rows: Tensor  # [N, E]
    length: Tensor  # [C]
    amplitude: Tensor  # [C], a
    weight: Tensor  # [C, N], g
    root: Tensor  # [C, N, N], R

    @property
    def values_per_row(self) -> int:  # type: ignore[override]
        return len(self.rows) * len(self.length)

    def forward(self, x: Tensor) -> Tensor:
        distance = _square_distances(x.double(), self.rows)  # [B, N]
        exponent = distance / self.length.square()[:, None, None]  # [C, B, N]
        kernel = self.amplitude[:, None, None] * torch.exp(-0.5 * exponent)
        mean = (kernel @ self.weight[:, :, None]).squeeze(2)
        explained = (kernel @ self.root.transpose(1, 2)).square().sum(dim=2)
        variance = (self.amplitude[:, None] - explained).clamp_min(0.0)
        latent = mean / torch.sqrt(1 + math.pi / 8 * variance)
        return torch.sigmoid(latent).clamp_min(MIN_PROBABILITY).log().T

    def check_shapes(self, num_inputs: int, num_outputs: int) -> None:
        count = len(self.rows)
        _check_shapes((self.rows, (count, num_inputs)), (self.weight, (num_outputs, count)))
        _check_shapes((self.length, (num_outputs,)), (self.amplitude, (num_outputs,)))
        _check_shapes((self.root, (num_outputs, count, count)))


class AveragePredictor(nn.Module):
    """The mean of several models: of their probabilities, or of their targets."""

    def __init__(self, models: list[nn.Module], *, is_classifier: bool) -> None:
        super().__init__()
        self.models, self.is_classifier = nn.ModuleList(models), is_classifier

    @property
    def values_per_row(self) -> int:
        return max(int(getattr(model, "values_per_row", 1)) for model in self.models)

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([model(x).double() for model in self.models])
        return average_outputs(outputs, is_classifier=self.is_classifier)


def average_outputs(outputs: Tensor, *, is_classifier: bool) -> Tensor:
    """Average targets [M, B, D] over models, or the probabilities of logits [M, B, C]."""
    if not is_classifier:
        return outputs.mean(dim=0)
    return outputs.softmax(dim=2).mean(dim=0).clamp_min(MIN_PROBABILITY).log()


def _square_distances(x: Tensor, rows: Tensor) -> Tensor:
    """Return the squared distance of each of x [B, E] to each of the rows [N, E]."""
    products = x @ rows.T
    distance = x.square().sum(dim=1)[:, None] + rows.square().sum(dim=1) - 2 * products
    return distance.clamp_min(0.0)


def _check_shapes(*expected: tuple[Tensor, tuple[int, ...]]) -> None:
    for tensor, shape in expected:
        if tuple(tensor.shape) != shape:
            raise ValueError("tensors do not fit together")


def _check_indices(indices: Tensor, bound: int) -> None:
    if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < bound:
        raise ValueError("indices are out of range")


PREDICTORS: dict[str, type[Predictor]] = {
    predictor.kind: predictor
    for predictor in (
        LinearPredictor,
        DirectionPredictor,
        TreePredictor,
        BoostedPredictor,
        NeighborPredictor,
        KernelPredictor,
        LaplacePredictor,
    )
}
