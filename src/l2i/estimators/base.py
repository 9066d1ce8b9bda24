"""What the two estimators share: from X and y to splits and a run, its steps, and outputs for new rows."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import nn

from l2i.config import Run, replace
from l2i.data.split import Samples, Splits
from l2i.errors import InputError, NonFiniteCost
from l2i.estimators.fallback import FEWEST, helps
from l2i.estimators.inputs import checked, encoded, learned_inputs
from l2i.estimators.rows import distinct
from l2i.methods import METHODS
from l2i.models import MODELS
from l2i.own.choose import Facts, chosen
from l2i.own.prepare import ImageInputs, TableInputs
from l2i.registry import load, unknown
from l2i.tasks import Regression
from l2i.training.build import pick_device
from l2i.training.evaluate import outputs_of
from l2i.training.state import cpu_threads
from l2i.training.trainer import Trainer

Factory = Callable[[tuple[int, ...], int], nn.Module]


class L2IEstimator(BaseEstimator):  # type: ignore[misc]
    """The parameters of both estimators; see them for what they mean."""

    def __init__(
        self,
        method: str = "auto",
        model: str | Factory = "auto",
        *,
        impute: bool = True,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        settings: dict[str, Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.method = method
        self.model = model
        self.impute = impute
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.settings = settings
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    def _fit(self, x: Any, target: NDArray[Any], blank: NDArray[np.bool_], classes: int | None, weight: Any) -> Self:
        """Train on checked rows; `target` holds class numbers [N] or values [N, D]."""
        weights = _check_sample_weight(weight, np.empty((len(target), 1)), dtype=np.float64, ensure_non_negative=True)
        kept = distinct(x, np.column_stack([target, blank]), weights)
        if not (~blank[kept.rows]).any():
            raise InputError("every labelled row has a weight of zero; give some of them a positive weight")
        rows = x.iloc[kept.rows] if not isinstance(x, np.ndarray) else x[kept.rows]
        self.inputs_ = learned_inputs(rows, kept.weight)
        self.offset_ = np.average(target[kept.rows][~blank[kept.rows]], axis=0, weights=kept.weight[~blank[kept.rows]])
        prepared, seed = encoded(self.inputs_, rows), int(check_random_state(self.random_state).randint(2**31 - 1))
        splits = self._splits(prepared, target[kept.rows], blank[kept.rows], kept.weight, classes)
        self.run_ = self._run(splits, kept.weight[~blank[kept.rows]].sum(), seed)
        self.helped_: bool | None = None
        devices = range(torch.cuda.device_count()) if pick_device(self.device).type == "cuda" else []
        with cpu_threads(self.run_.threads), torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            self._fall_back(splits)
            self._train(splits)
        return self

    def _splits(
        self,
        x: NDArray[Any],
        target: NDArray[Any],
        blank: NDArray[np.bool_],
        weight: NDArray[np.float64],
        classes: int | None,
    ) -> Splits:
        """All labelled rows to train on; nothing is held out."""
        y = torch.as_tensor(target).long() if classes is not None else torch.as_tensor(target - self.offset_).float()
        every = Samples(torch.as_tensor(x), y, torch.as_tensor(weight))
        labeled, unlabeled = (every.take(torch.as_tensor(np.flatnonzero(part))) for part in (~blank, blank))
        none = Samples(every.x[:0], every.y[:0])
        inputs = self.inputs_
        return Splits(
            labeled=labeled,
            unlabeled=unlabeled,
            holdout=labeled,
            validation=none,
            test=none,
            classes=classes,
            pixels=inputs.pixels if isinstance(inputs, ImageInputs) else None,
            columns=inputs.layout if isinstance(inputs, TableInputs) else None,
        )

    def _run(self, splits: Splits, labeled: float, seed: int) -> Run:
        """The run chosen from the data, with what the parameters change."""
        facts = Facts(
            shape=tuple(splits.labeled.x.shape[1:]),
            classes=splits.classes,
            labeled=round(labeled),
            unlabeled=len(splits.unlabeled.x),
            gpu=pick_device(self.device).type == "cuda",
        )
        if self.method != "auto":
            load("method", METHODS, self.method)  # a wrong name is one even where no row is unlabelled
        asked = self.method if len(splits.unlabeled.x) else "supervised"
        run, _ = chosen(facts, method=asked, impute=self.impute)
        if isinstance(self.model, str) and self.model != "auto":
            if self.model not in MODELS:
                raise unknown("model", self.model, list(MODELS))
            run = replace(run, model={"name": self.model})
        run = replace(run, seed=seed, device=self.device, steps=run.steps if self.steps is None else self.steps)
        if self.batch_size is not None:
            run = replace(run, batch=dict.fromkeys(("labeled", "unlabeled", "holdout"), self.batch_size))
        if self.learning_rate is not None:
            run = replace(run, optim={"lr": self.learning_rate})
        return replace(run, **(self.settings or {}))

    def _fall_back(self, splits: Splits) -> None:
        """Train on the labels alone where the unlabelled rows of a table do harm, as far as its labels can tell."""
        checked = self.method == "auto" and isinstance(self.model, str) and isinstance(self.inputs_, TableInputs)
        if not checked or not len(splits.unlabeled.x) or len(splits.labeled.x) < FEWEST:
            return
        self.helped_, self.validation_ = helps(self.run_, splits)
        if not self.helped_:
            self.run_ = replace(self.run_, method="supervised", l2i={"outer_update": "off"})

    def _train(self, splits: Splits) -> None:
        """Take the steps; keep the averaged model and the costs on the way."""
        trainer = Trainer(self.run_, splits=splits, model=self._network(splits))
        self.history_: list[dict[str, float]] = []
        every = max(1, self.run_.steps // 20)
        try:
            for t in range(self.run_.steps):
                trainer.step(t)
                if (t + 1) % every == 0 or t + 1 == self.run_.steps:
                    trainer.meter.check()
                    self.history_.append({"step": t + 1, **trainer.meter.read()})
                    self._tell(self.history_[-1])
        finally:
            trainer.close()
        if isinstance(trainer.task, Regression):
            mean, std = (t.double().cpu().numpy() for t in (trainer.task.mean, trainer.task.std))
            self.target_mean_, self.target_std_ = mean + self.offset_, std
        self.model_ = copy.deepcopy(trainer.teacher.model).cpu().float().eval().requires_grad_(False)
        if not all(bool(p.isfinite().all()) for p in self.model_.parameters()):
            raise NonFiniteCost("the network's weights are not finite; use a lower learning_rate")

    def _network(self, splits: Splits) -> nn.Module | None:
        """The user's own network, its weights drawn by the seed; None for one of the library's."""
        if isinstance(self.model, str):
            return None
        if not callable(self.model) or isinstance(self.model, nn.Module):
            raise InputError("model must be a name or a function (shape, outputs) -> nn.Module; wrap it in one")
        try:
            inspect.signature(self.model).bind((), 1)
        except TypeError:
            raise InputError("model must take (shape, outputs), and this function does not; wrap it in one") from None
        outputs = splits.classes if splits.classes is not None else splits.labeled.y.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.run_.seed)
            return self.model(tuple(splits.labeled.x.shape[1:]), int(outputs))

    def _tell(self, row: dict[str, float]) -> None:
        if self.verbose:
            costs = ", ".join(f"{name} {row[name]:.3g}" for name in ("c_t", "c_u", "c_h") if row.get(name) is not None)
            print(f"[{type(self).__name__}] step {row['step']} of {self.run_.steps}: {costs}")

    def _outputs(self, x: Any) -> torch.Tensor:
        """The averaged model's outputs for new rows, in double precision."""
        check_is_fitted(self, "model_")
        return self._passed(checked(self, x, reset=False))

    def _passed(self, x: Any) -> torch.Tensor:
        raw = torch.as_tensor(encoded(self.inputs_, x))
        if isinstance(self.inputs_, ImageInputs):
            pixels = self.inputs_.pixels.to(torch.device("cpu"), torch.float32)
            return outputs_of(self.model_, Samples(raw, raw), pixels.standardized).double()
        # in double precision a row's output does not depend on the rows that it is passed with
        return outputs_of(copy.deepcopy(self.model_).double(), Samples(raw, raw), torch.Tensor.double)
