"""What is timed: the recipes' networks and batches on a GPU, small ones on a CPU, on made-up images and texts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from l2i import recipes
from l2i.config import Run, replace
from l2i.data.pixels import Pixels
from l2i.data.split import Splits
from l2i.data.words import Tokens, tokens_of
from l2i.errors import InputError
from l2i.models.pretrained import RANDOM, needed
from l2i.options import BenchOptions
from l2i.registry import unknown
from l2i.training.build import dtype_of
from l2i.validate import RANGES

GROUPS = {
    "mean-teacher": "cifar10/mean-teacher-l2i-250",
    "mixmatch": "cifar10/mixmatch-l2i-250",
    "fixmatch": "cifar10/fixmatch-l2i-250",
    "fixmatch-fast": "cifar10/fixmatch-l2i-250-fast",
    "landmarks": "aflw/mean-teacher-l2i-91",
    "text": "imdb/uda-l2i-20",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {"outer_update": "off"},
    "last-layer": {"labels": "output", "hypergradient": "last_layer"},
    "exact": {"labels": "output", "hypergradient": "exact"},
    "learnable": {"labels": "learnable", "hypergradient": "last_layer"},
}
SMALL_BATCH = 16
SMALL_NETWORK = {"depth": 10, "width": 1}  # the smallest wide ResNet
FEW = 3  # times the labelled batch: FixMatch's unlabelled one on a CPU
UNLABELED = {"cuda": 50_000, "cpu": 400}
COORDINATES = 10  # five landmarks
ENCODER = {"cuda": {"depth": 6, "width": 384}, "cpu": {"depth": 2, "width": 64}}  # on a GPU that of MiniLM-L6
SHORT = 32  # tokens of a text on a CPU
VOCABULARY = 30_522  # tokens of BERT, and the special ones among them
PAD, UNKNOWN, START, END, MASK = 0, 100, 101, 102, 103


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row of the table: a run of a few steps."""

    group: str
    variant: str
    run: Run

    @property
    def texts(self) -> bool:
        return self.run.model.name == "encoder"

    @property
    def network(self) -> str:
        model = self.run.model
        name = "bert" if self.texts else model.name
        return name if name == "tcdcn" else f"{name}-{model.depth}-{model.width}"


def chosen(options: BenchOptions, device: torch.device) -> dict[str, list[Case]]:
    """The cases that the options name, by group."""
    for name, most in (("blocks", 10_000), ("steps", 100_000), ("threads", RANGES["threads"][1])):
        if not 0 <= getattr(options, name) <= most:
            raise InputError(f"{name}={getattr(options, name)} must be at least 0 and at most {most:g}")
    if options.engine == "graph" and device.type != "cuda":
        raise InputError("engine='graph' records steps on a GPU, but the bench is not on one; use engine='auto'")
    groups, variants = known("group", options.groups, GROUPS), known("variant", options.variants, VARIANTS)
    if "text" in groups and not reads_texts(asked="text" in options.groups):
        groups.remove("text")
    return {
        group: [Case(group=group, variant=v, run=run_of(group, v, options, device)) for v in variants]
        for group in groups
    }


def known(kind: str, names: tuple[str, ...], there: dict[str, Any]) -> list[str]:
    """The names asked for, in the order of the table; all of them where none is."""
    for name in names:
        if name not in there:
            raise unknown(kind, name, list(there), "l2i bench --help")
    return [name for name in there if name in names or not names]


def reads_texts(*, asked: bool) -> bool:
    """Whether there is what encoders of texts need; where they are asked for, there has to be."""
    try:
        needed(RANDOM)
    except InputError:
        if asked:
            raise
        return False
    return True


def run_of(group: str, variant: str, options: BenchOptions, device: torch.device) -> Run:
    """A recipe's run, on this device."""
    run = replace(
        recipes.get(GROUPS[group]),
        device=str(device),
        precision=options.precision,
        engine=options.engine,
        final="median",  # nothing is evaluated
        probe=0,
        l2i=VARIANTS[variant],
    )
    if group == "text":
        return with_encoder(run, device)
    if device.type == "cpu":
        many = FEW if run.method.name == "fixmatch" else 1
        sizes = {"labeled": SMALL_BATCH, "unlabeled": many * SMALL_BATCH, "holdout": SMALL_BATCH}
        run = replace(run, batch=sizes, model={} if group == "landmarks" else SMALL_NETWORK)
    if run.method.name == "fixmatch" and variant != "base":
        run = replace(run, l2i={"outer_unlabeled": run.batch.labeled})
    return run


def with_encoder(run: Run, device: torch.device) -> Run:
    """The run with a network that has not to be downloaded."""
    run = replace(run, model={"weights": RANDOM, **ENCODER[device.type]})
    short = dataclasses.replace(run.data.text, length=SHORT)
    return replace(run, data={"text": short}) if device.type == "cpu" else run


def splits_of(group: str, device: torch.device, run: Run) -> Splits:
    """Random samples shaped as the recipe's are, on the device: the cases share them, so they are no case's memory."""
    generator = Generator().manual_seed(0)
    count = UNLABELED[device.type]
    if group == "text":
        x, y = texts((count, run.data.text.length), generator), torch.arange(20) % 2
        kind: dict[str, Any] = {"classes": 2, "tokens": vocabulary(x)}
    elif group == "landmarks":
        x = noise((count, 1, 60, 60), generator)
        y = 60 * torch.rand(91, COORDINATES, generator=generator)
        kind = {"points": True, "pixels": Pixels.of(x)}
    else:
        x, y = noise((count, 3, 32, 32), generator), torch.arange(250) % 10
        kind = {"classes": 10, "pixels": Pixels.of(x)}
    labeled, test = (x[: len(y)], y), (x[:10], y[:10])
    splits = Splits.given(labeled=labeled, unlabeled=x, test=test, **kind)
    return splits.to(device, dtype_of(run))


def noise(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Images of random grey levels."""
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)


def texts(shape: tuple[int, int], generator: Generator) -> Tensor:
    """Texts of random words, as long as they may be: a start, words and an end, and no padding."""
    ids = torch.randint(MASK + 1, VOCABULARY, shape, generator=generator, dtype=torch.int32)
    ids[:, 0], ids[:, -1] = START, END
    return ids


def vocabulary(ids: Tensor) -> Tokens:
    """The statistics of such texts, for the strong view; each token is a word."""
    special, continues = torch.zeros(2, VOCABULARY, dtype=torch.bool)
    special[[PAD, UNKNOWN, START, END, MASK]] = True
    return tokens_of(ids, pad=PAD, mask=MASK, special=special, continues=continues)
