"""Networks as candidates: trained on the labels alone, with a method, or with a method and L2I."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from l2i.candidates.base import Candidate, Level, Score, TableRows
from l2i.candidates.semi_supervised import NO_UNLABELED
from l2i.config import Run, replace
from l2i.data.samples import Samples, Splits
from l2i.data.transforms.image import ColumnLayout
from l2i.errors import NonFiniteCost
from l2i.models.base import ModelConfig
from l2i.tasks import Regression
from l2i.training.loop import iter_steps
from l2i.training.setup import use_threads
from l2i.training.trainer import Trainer

SECONDS_PER_STEP = (0.002, 0.003, 0.005)  # of a network by its level, roughly
MIN_NETWORK_ROWS = 20  # labelled rows, below which networks only take time


class NetworkPredictor(nn.Module):
    """A trained network, from encoded rows to logits or standardised targets."""

    mean: Tensor  # [D], of the targets as the network was trained on them
    std: Tensor  # [D]

    def __init__(self, network: nn.Module, mean: Tensor, std: Tensor, config: ModelConfig) -> None:
        super().__init__()
        self.network, self.config = network, config
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.network(x.to(self.mean.dtype))
        return outputs * self.std + self.mean


@dataclass(frozen=True, kw_only=True)
class Network(Candidate):
    """A network that is trained by a run."""

    name: str
    run: Run
    columns: ColumnLayout
    views_of: tuple[str, str] | None = None
    """Take the views of the second of these candidates if its loss was lower."""

    @property
    def level(self) -> Level:
        if self.run.l2i.update != "off":
            return Level.IMPUTING
        is_plain = self.run.method.name == "supervised"
        return Level.LABELS_ONLY if is_plain else Level.SEMI_SUPERVISED

    @property
    def title(self) -> str:  # type: ignore[override]
        if self.level == Level.LABELS_ONLY:
            return "network" + (" (columns swapped)" if self.run.data.weak.corrupt else "")
        return self.run.method.name + (" + L2I" if self.level == Level.IMPUTING else "")

    def find_obstacle(self, rows: TableRows) -> str | None:
        if len(rows.x) < MIN_NETWORK_ROWS:
            return f"it needs {MIN_NETWORK_ROWS} labelled rows"
        if self.level > Level.LABELS_ONLY and not len(rows.unlabeled):
            return NO_UNLABELED
        return None

    def expect_seconds(self, rows: TableRows, num_fits: int, scores: Mapping[str, Score]) -> float:
        """Scale the time of the networks before it, or else that of a step."""
        own = SECONDS_PER_STEP[self.level]
        known = [
            score.seconds / SECONDS_PER_STEP[score.candidate.level]
            for score in scores.values()
            if isinstance(score.candidate, Network)
        ]
        return own * (max(known) if known else num_fits * self.run.steps)

    def adapt(self, scores: Mapping[str, Score]) -> Network:
        """Swap columns in the views if that helped the network of the labels alone."""
        if self.views_of is None or not all(name in scores for name in self.views_of):
            return self
        plain, other = (scores[name] for name in self.views_of)
        if other.loss >= plain.loss:
            return self
        assert isinstance(other.candidate, Network)
        return dataclasses.replace(self, run=replace(self.run, data=other.candidate.run.data))

    def fit(self, rows: TableRows, seed: int) -> nn.Module:
        run = replace(self.run, seed=seed)
        splits = make_splits(rows, self.columns)
        with closing(Trainer(run, splits=splits)) as trainer, use_threads(run.threads):
            for _ in iter_steps(trainer):
                pass
            return make_predictor(trainer)


def make_predictor(trainer: Trainer) -> NetworkPredictor:
    """Return the averaged model of a trainer as a predictor; raise NonFiniteCost if it diverged."""
    network = copy.deepcopy(trainer.teacher.model).cpu().float().eval().requires_grad_(False)
    if not all(bool(p.isfinite().all()) for p in network.parameters()):
        raise NonFiniteCost("the network's weights are not finite; use a lower learning rate")
    task, config = trainer.task, trainer.run.model
    if isinstance(task, Regression):
        return NetworkPredictor(network, task.mean.cpu().float(), task.std.cpu().float(), config)
    ones = torch.ones(task.num_outputs)
    return NetworkPredictor(network, 0 * ones, ones, config)


def make_splits(rows: TableRows, columns: ColumnLayout) -> Splits:
    """Return splits with all labelled rows to train on; nothing is held out."""
    y = torch.from_numpy(rows.y)
    y = y.float() if rows.num_classes is None else y.long()
    labeled = Samples(torch.from_numpy(rows.x), y, torch.from_numpy(rows.weight))
    blank = y[:1].expand(len(rows.unlabeled), *y.shape[1:])
    weight = torch.from_numpy(rows.unlabeled_weight)
    unlabeled = Samples(torch.from_numpy(rows.unlabeled), blank, weight)
    empty = Samples(labeled.x[:0], y[:0])
    return Splits(
        labeled=labeled,
        unlabeled=unlabeled,
        holdout=labeled,
        validation=empty,
        test=empty,
        classes=rows.num_classes,
        columns=columns,
    )
