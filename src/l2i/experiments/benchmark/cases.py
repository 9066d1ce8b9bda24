"""The timed cases: recipes' networks and batches, or small ones on a CPU, on random samples."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from l2i import recipes
from l2i.config import Run, replace
from l2i.config.validate import RANGES
from l2i.data.samples import Splits
from l2i.data.transforms.image import Normalize
from l2i.data.transforms.text import Vocabulary, build_vocabulary
from l2i.errors import InputError
from l2i.experiments.options import BenchOptions
from l2i.models.huggingface import RANDOM_WEIGHTS, resolve_weights
from l2i.registry import make_unknown_error
from l2i.training.setup import get_param_dtype

GROUP_RECIPES = {
    "mean-teacher": "cifar10/mean-teacher-l2i-250",
    "mixmatch": "cifar10/mixmatch-l2i-250",
    "fixmatch": "cifar10/fixmatch-l2i-250",
    "fixmatch-fast": "cifar10/fixmatch-l2i-250-fast",
    "landmarks": "aflw/mean-teacher-l2i-91",
    "text": "imdb/uda-l2i-20",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {"update": "off"},
    "last-layer": {"labels": "output", "hypergradient": "last_layer"},
    "exact": {"labels": "output", "hypergradient": "exact"},
    "learnable": {"labels": "learnable", "hypergradient": "last_layer"},
}
CPU_BATCH_SIZE = 16
CPU_NETWORK = {"depth": 10, "width": 1}  # the smallest wide ResNet
CPU_UNLABELED_RATIO = 3  # of FixMatch's unlabelled batch to the labelled one, on a CPU
NUM_UNLABELED = {"cuda": 50_000, "cpu": 400}
NUM_COORDINATES = 10  # five landmarks
# MiniLM-L6's on a GPU
ENCODER_SIZES = {"cuda": {"depth": 6, "width": 384}, "cpu": {"depth": 2, "width": 64}}
CPU_TEXT_LENGTH = 32  # tokens
VOCABULARY_SIZE = 30_522  # BERT's, with its special tokens
PAD_ID, UNKNOWN_ID, START_ID, END_ID, MASK_ID = 0, 100, 101, 102, 103


@dataclass(frozen=True)
class Case:
    """A row of the table: a run of a few steps."""

    group: str
    variant: str
    run: Run

    @property
    def is_text(self) -> bool:
        return self.run.model.name == "encoder"

    @property
    def network(self) -> str:
        model = self.run.model
        name = "bert" if self.is_text else model.name
        return name if name == "tcdcn" else f"{name}-{model.depth}-{model.width}"


def select_cases(options: BenchOptions, device: torch.device) -> dict[str, list[Case]]:
    """Return the cases that the options name, by group."""
    limits = {"blocks": 10_000, "steps": 100_000, "threads": RANGES["threads"][1]}
    for name, maximum in limits.items():
        value = getattr(options, name)
        if not 0 <= value <= maximum:
            raise InputError(f"{name}={value} must be at least 0 and at most {maximum:g}")
    if options.engine == "graph" and device.type != "cuda":
        problem = "engine='graph' captures steps on a GPU, but the device is not a CUDA GPU"
        raise InputError(f"{problem}; use engine='auto'")
    groups = _select_names("group", options.groups, GROUP_RECIPES)
    variants = _select_names("variant", options.variants, VARIANTS)
    if "text" in groups:
        try:
            resolve_weights(RANDOM_WEIGHTS)  # the packages of text encoders may be missing
        except InputError:
            if "text" in options.groups:
                raise
            groups.remove("text")
    return {
        group: [Case(group, v, make_case_run(group, v, options, device)) for v in variants]
        for group in groups
    }


def _select_names(kind: str, names: tuple[str, ...], choices: dict[str, Any]) -> list[str]:
    """Return the given names in the order of the table; all of them if none is given."""
    for name in names:
        if name not in choices:
            raise make_unknown_error(kind, name, list(choices), "l2i bench --help")
    return [name for name in choices if name in names or not names]


def make_case_run(group: str, variant: str, options: BenchOptions, device: torch.device) -> Run:
    """Return a recipe's run on this device."""
    run = replace(
        recipes.get(GROUP_RECIPES[group]),
        device=str(device),
        precision=options.precision,
        engine=options.engine,
        report="median",  # nothing is evaluated
        probe_samples=0,
        l2i=VARIANTS[variant],
    )
    on_cpu = device.type == "cpu"
    if group == "text":  # with a network that need not be downloaded
        run = replace(run, model={"weights": RANDOM_WEIGHTS, **ENCODER_SIZES[device.type]})
        short_text = dataclasses.replace(run.data.text, length=CPU_TEXT_LENGTH)
        return replace(run, data={"text": short_text}) if on_cpu else run
    if on_cpu:
        sizes = dict.fromkeys(("labeled", "unlabeled", "holdout"), CPU_BATCH_SIZE)
        if run.method.name == "fixmatch":
            sizes["unlabeled"] *= CPU_UNLABELED_RATIO
        run = replace(run, batch=sizes, model={} if group == "landmarks" else CPU_NETWORK)
    if run.method.name == "fixmatch" and variant != "base":
        run = replace(run, l2i={"outer_batch_size": run.batch.labeled})
    return run


def make_splits(group: str, device: torch.device, run: Run) -> Splits:
    """Return random samples shaped as the recipe's, on the device; a group's cases share them."""
    generator = Generator().manual_seed(0)
    count = NUM_UNLABELED[device.type]
    if group == "text":
        x, y = _make_texts((count, run.data.text.length), generator), torch.arange(20) % 2
        split_kwargs: dict[str, Any] = {"classes": 2, "vocabulary": _make_vocabulary(x)}
    else:
        shape = (1, 60, 60) if group == "landmarks" else (3, 32, 32)
        x = torch.randint(256, (count, *shape), generator=generator, dtype=torch.uint8)
        split_kwargs = {"normalization": Normalize.from_images(x)}
        if group == "landmarks":
            y = 60 * torch.rand(91, NUM_COORDINATES, generator=generator)
            split_kwargs["has_landmarks"] = True
        else:
            y = torch.arange(250) % 10
            split_kwargs["classes"] = 10
    labeled, test = (x[: len(y)], y), (x[:10], y[:10])
    splits = Splits.from_arrays(labeled=labeled, unlabeled=x, test=test, **split_kwargs)
    return splits.to(device, get_param_dtype(run))


def _make_texts(shape: tuple[int, int], generator: Generator) -> Tensor:
    """Return texts of random words and full length: a start, words and an end, no padding."""
    ids = torch.randint(MASK_ID + 1, VOCABULARY_SIZE, shape, generator=generator, dtype=torch.int32)
    ids[:, 0], ids[:, -1] = START_ID, END_ID
    return ids


def _make_vocabulary(ids: Tensor) -> Vocabulary:
    """Return the statistics of such texts for the strong view; every token is a word."""
    is_special, is_continuation = torch.zeros(2, VOCABULARY_SIZE, dtype=torch.bool)
    is_special[[PAD_ID, UNKNOWN_ID, START_ID, END_ID, MASK_ID]] = True
    return build_vocabulary(
        ids, pad_id=PAD_ID, is_special=is_special, is_continuation=is_continuation
    )
