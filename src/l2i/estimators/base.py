"""What both estimators share: from X and y to a chosen, trained model, and new outputs."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import nn

from l2i.candidates.base import Level, Progress, Score
from l2i.candidates.catalog import NETWORK_NAMES
from l2i.candidates.choice import MAX_NETWORK_STEPS, TableChoice, choose_for_table
from l2i.config import Run, replace
from l2i.data.samples import Samples, Splits
from l2i.errors import InputError, NonFiniteCost
from l2i.estimators.validation import encode_features, fit_inputs, validate_features
from l2i.fit.defaults import Facts, choose_run
from l2i.fit.preprocess import ImagePreprocessor, TablePreprocessor
from l2i.methods import METHODS
from l2i.models import MODELS
from l2i.registry import load_registered, make_unknown_error
from l2i.tasks import Regression
from l2i.training.evaluation import compute_outputs
from l2i.training.loop import iter_steps
from l2i.training.setup import pick_device, use_threads
from l2i.training.trainer import Trainer

if TYPE_CHECKING:
    import pandas as pd


ModelFactory = Callable[[tuple[int, ...], int], nn.Module]


class L2IEstimator(BaseEstimator):  # type: ignore[misc]
    """Share parameters and training between both estimators; `L2IClassifier` documents them."""

    def __init__(
        self,
        method: str = "auto",
        model: str | ModelFactory = "auto",
        *,
        impute: bool = True,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        settings: dict[str, Any] | None = None,
        candidates: Sequence[str] = (),
        minutes: float | None = 1.0,
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
        self.candidates = candidates
        self.minutes = minutes
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    def _fit(
        self,
        x: Any,
        target: NDArray[Any],
        is_unlabeled: NDArray[np.bool_],
        classes: int | None,
        weight: Any,
    ) -> torch.Tensor:
        """Train on validated rows; `target` holds class numbers [N] or values [N, D].

        Return outputs for all of them, those of unlabelled rows by a model that did not train on
        the row.
        """
        weights = _check_sample_weight(weight, target, dtype=np.float64, ensure_non_negative=True)
        joined = np.column_stack([target, is_unlabeled])
        indices, group, weights = _merge_duplicate_rows(x, joined, weights)
        rows = x[indices] if isinstance(x, np.ndarray) else x.iloc[indices]
        target, is_unlabeled = target[indices], is_unlabeled[indices]
        if is_unlabeled.all():
            fix = "give some of them a positive weight"
            raise InputError(f"every labelled row has zero sample_weight; {fix}")
        labeled_weights = weights[~is_unlabeled]
        self.inputs_ = fit_inputs(rows, weights)
        self.offset_ = np.average(target[~is_unlabeled], axis=0, weights=labeled_weights)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        splits = self._make_splits(rows, target, is_unlabeled, weights, classes)
        run = self._make_run(splits, labeled_weights.sum(), seed)
        self.helped_: bool | None = None
        self.temperature_ = 1.0
        self.history_: list[dict[str, float]] = []
        uses_gpu = pick_device(self.device).type == "cuda"
        devices = range(torch.cuda.device_count()) if uses_gpu else []
        with use_threads(run.threads), torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            choice = self._choose(splits, run)
            self.run_ = run if choice is None else choice.run
            if self.run_ is not None:
                self._train(splits, self.run_)
            elif choice is not None:
                self._keep_model(choice, splits)
            outputs = self._forward(x)
            imputed = None if choice is None else choice.predict_unlabeled()
            if imputed is not None:
                is_found = np.append(is_unlabeled, False)[group]
                places = np.append(np.cumsum(is_unlabeled) - 1, 0)[group][is_found]
                outputs[is_found] = imputed[places]
        return outputs

    def _make_splits(
        self,
        rows: pd.DataFrame | NDArray[Any],
        target: NDArray[Any],
        is_unlabeled: NDArray[np.bool_],
        weights: NDArray[np.float64],
        classes: int | None,
    ) -> Splits:
        """Return splits with all labelled rows to train on; nothing is held out."""
        x, inputs = torch.as_tensor(encode_features(self.inputs_, rows)), self.inputs_
        if classes is None:
            y = torch.as_tensor(target - self.offset_).float()
        else:
            y = torch.as_tensor(target).long()
        samples = Samples(x, y, torch.as_tensor(weights))
        labeled = samples.take(torch.as_tensor(np.flatnonzero(~is_unlabeled)))
        unlabeled = samples.take(torch.as_tensor(np.flatnonzero(is_unlabeled)))
        empty = Samples(samples.x[:0], samples.y[:0])
        return Splits(
            labeled=labeled,
            unlabeled=unlabeled,
            holdout=labeled,
            validation=empty,
            test=empty,
            classes=classes,
            normalization=inputs.normalization if isinstance(inputs, ImagePreprocessor) else None,
            columns=inputs.column_layout if isinstance(inputs, TablePreprocessor) else None,
        )

    def _make_run(self, splits: Splits, labeled_weight: float, seed: int) -> Run:
        """Return the run chosen by the data, with the changes of the parameters."""
        facts = Facts(
            shape=tuple(splits.labeled.x.shape[1:]),
            classes=splits.classes,
            labeled=round(labeled_weight),
            unlabeled=len(splits.unlabeled.x),
            has_gpu=pick_device(self.device).type == "cuda",
        )
        if self.method != "auto":  # a wrong name is an error even if no row is unlabelled
            load_registered("method", METHODS, self.method)
        method = self.method if len(splits.unlabeled.x) else "supervised"
        run, _ = choose_run(facts, method=method, impute=self.impute)
        if isinstance(self.model, str) and self.model != "auto":
            if self.model not in MODELS:
                raise make_unknown_error("model", self.model, list(MODELS))
            run = replace(run, model={"name": self.model})
        steps = run.steps if self.steps is None else self.steps
        run = replace(run, seed=seed, device=self.device, steps=steps)
        if self.batch_size is not None:
            sizes = dict.fromkeys(("labeled", "unlabeled", "holdout"), self.batch_size)
            run = replace(run, batch=sizes)
        if self.learning_rate is not None:
            run = replace(run, optim={"lr": self.learning_rate})
        return replace(run, **(self.settings or {}))

    def _choose(self, splits: Splits, run: Run) -> TableChoice | None:
        """Choose among the candidates of a table by cross-validation, unless one is named."""
        is_automatic = self.method == "auto" and self.model == "auto" and self.impute
        if not is_automatic or not isinstance(self.inputs_, TablePreprocessor):
            if self.candidates:
                fix = "leave out method, model and impute"
                raise InputError(f"candidates are for tables, chosen by cross-validation; {fix}")
            return None
        knobs = (self.steps, self.batch_size, self.learning_rate, self.settings)
        names = (self.candidates,) if isinstance(self.candidates, str) else tuple(self.candidates)
        if not names and any(knob is not None for knob in knobs):
            names = NETWORK_NAMES
        if self.steps is None and "steps" not in (self.settings or {}):
            run = replace(run, steps=min(run.steps, MAX_NETWORK_STEPS))
        choice = choose_for_table(
            splits, run, names, minutes=self.minutes, notify=self._print_candidate
        )
        if choice is not None:
            selection = choice.selection
            self.candidate_ = selection.title
            self.helped_ = selection.level > Level.LABELS_ONLY if selection.folds else None
            self.validation_ = selection.compute_errors()
            self.skipped_ = {skipped.name: skipped.reason for skipped in selection.skipped}
            self.temperature_ = choice.temperature
        return choice

    def _keep_model(self, choice: TableChoice, splits: Splits) -> None:
        self.model_ = choice.selection.fit().requires_grad_(False)
        if splits.classes is None:
            self.target_mean_, self.target_std_ = choice.mean + self.offset_, choice.std

    def _train(self, splits: Splits, run: Run) -> None:
        """Train; keep the averaged model, and the costs along the way."""
        trainer = Trainer(run, splits=splits, model=self._build_custom_model(splits, run.seed))
        log_interval = max(1, run.steps // 20)
        with closing(trainer):
            for step in iter_steps(trainer):
                if step % log_interval == 0 or step == run.steps:
                    self.history_.append({"step": step, **trainer.meter.read()})
                    self._print_progress(self.history_[-1], run.steps)
        if isinstance(trainer.task, Regression):
            mean, std = (t.double().cpu().numpy() for t in (trainer.task.mean, trainer.task.std))
            self.target_mean_, self.target_std_ = mean + self.offset_, std
        model = copy.deepcopy(trainer.teacher.model)
        self.model_ = model.cpu().float().eval().requires_grad_(False)
        if not all(bool(p.isfinite().all()) for p in self.model_.parameters()):
            raise NonFiniteCost("the network's weights are not finite; use a lower learning_rate")

    def _build_custom_model(self, splits: Splits, seed: int) -> nn.Module | None:
        """Build the user's network with weights drawn by the seed; None for a registered one."""
        if isinstance(self.model, str):
            return None
        if not callable(self.model) or isinstance(self.model, nn.Module):
            problem = "model must be a name or a function (shape, outputs) -> nn.Module"
            raise InputError(f"{problem}; wrap the network in a function")
        try:
            inspect.signature(self.model).bind((), 1)
        except TypeError:
            problem = "model must take (shape, outputs), but this function does not"
            raise InputError(f"{problem}; wrap it in one that does") from None
        outputs = splits.classes if splits.classes is not None else splits.labeled.y.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self.model(tuple(splits.labeled.x.shape[1:]), int(outputs))

    def _print_candidate(self, progress: Progress) -> None:
        score = progress.event
        if self.verbose and isinstance(score, Score):
            number = f"{progress.number} of {progress.total}, {score.candidate.title}"
            result = f"loss {score.loss:.3g}, {score.seconds:.1f} s"
            print(f"[{type(self).__name__}] candidate {number}: {result}")

    def _print_progress(self, row: dict[str, float], steps: int) -> None:
        if self.verbose:
            reported = [name for name in ("c_t", "c_u", "c_h") if row.get(name) is not None]
            costs = ", ".join(f"{name} {row[name]:.3g}" for name in reported)
            print(f"[{type(self).__name__}] step {row['step']} of {steps}: {costs}")

    def _compute_outputs(self, x: Any) -> torch.Tensor:
        """Return the averaged model's outputs for new rows, in double precision."""
        check_is_fitted(self, "model_")
        return self._forward(validate_features(self, x, reset=False))

    def _forward(self, x: Any) -> torch.Tensor:
        inputs = torch.as_tensor(encode_features(self.inputs_, x))
        samples = Samples(inputs, inputs)
        if isinstance(self.inputs_, ImagePreprocessor):
            pixels = self.inputs_.normalization.to(torch.device("cpu"), torch.float32)
            return compute_outputs(self.model_, samples, pixels.apply).double()
        # in double precision a row's output does not depend on the other rows of its batch
        return compute_outputs(copy.deepcopy(self.model_).double(), samples, torch.Tensor.double)


def _merge_duplicate_rows(
    inputs: pd.DataFrame | NDArray[Any], target: NDArray[Any], weights: NDArray[np.float64]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Return the indices of distinct rows of positive weight, and their summed weights.

    Between them stands the place of every row among them; rows of weight 0 come last. They are
    sorted by a digest of inputs and target: a fit depends on the set of rows and how often each
    occurs, but not on their order.
    """
    digests = np.array([a + b for a, b in zip(_hash_rows(inputs), _hash_rows(target), strict=True)])
    positive = np.flatnonzero(weights > 0)
    _, first, group = np.unique(digests[positive], return_index=True, return_inverse=True)
    summed = np.bincount(group, weights=weights[positive])
    places = np.full(len(weights), len(first))
    places[positive] = group
    return positive[first], places, np.asarray(summed, dtype=np.float64)


def _hash_rows(values: pd.DataFrame | NDArray[Any]) -> list[bytes]:
    if isinstance(values, np.ndarray):
        flat = np.ascontiguousarray(values).reshape(len(values), -1)
        return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in flat]
    import pandas as pd

    try:
        hashes = pd.util.hash_pandas_object(values, index=False)
    except TypeError:
        problem = "a column of X contains lists or other objects"
        raise InputError(f"{problem}; use numbers, strings or booleans") from None
    return [int(row_hash).to_bytes(8, "big") for row_hash in hashes]
