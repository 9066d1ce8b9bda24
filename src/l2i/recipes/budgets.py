"""Table 2's cells on budgets of our own: what minutes of one GPU come to (docs/results.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from l2i.config import Optim, Run

OUTER = 64  # unlabelled samples of FixMatch's outer step


class Budget(NamedTuple):
    """Fewer steps for runs of the paper's protocol; data, network, views and what is evaluated stay."""

    shorten: Callable[[Run], Run]
    many: int
    """Unlabelled samples a labelled one, for FixMatch."""
    sources: dict[str, str]


def fast(run: Run) -> Run:
    """FixMatch in ten minutes of one H200, with FixMatch's own optimizer at twice its rate."""
    from l2i.config import replace

    outer = {"outer_unlabeled": OUTER, "outer_every": 8}
    return replace(run, steps=66_560, eval_every=2048, save_every=4096, l2i=outer, optim=falling(run))


def short(run: Run) -> Run:
    """Every method within half an hour of one H200: a 128th of the paper's steps, and what depends on them scaled."""
    from l2i.config import replace

    if run.method.name == "fixmatch":
        outer = {} if run.l2i.outer_update == "off" else {"outer_unlabeled": OUTER}
        run = replace(run, optim=falling(run), l2i=outer)
    return replace(run, steps=8192, probe=1000, optim={"ema_statistics": "own"})


def falling(run: Run) -> Optim:
    """SGD as in FixMatch's code, at twice its rate, which falls linearly to 0."""
    from l2i.config import Optim

    return Optim(
        name="sgd",
        lr=0.06,
        nesterov=True,
        weight_decay=0.0005 if run.data.name == "cifar10" else run.optim.weight_decay,
        decay="l2",
        schedule="linear",
        warmup=0.02,
        ema_decay=0.999,
    )


BUDGETS = {
    "fast": Budget(
        fast,
        7,
        {
            "steps": "ours: ten minutes of one H200; the paper has 1,048,576",
            "eval_every": "ours",
            "optim.name": "FixMatch's code; the paper has Adam here",
            "optim.lr": "ours: twice FixMatch's, for a sixteenth of its steps; docs/results.md",
            "optim.schedule": "ours",
            "optim.warmup": "ours",
            "optim.weight_decay": "FixMatch's code",
            "optim.decay": "FixMatch's code",
            "optim.nesterov": "FixMatch's code",
            "l2i.outer_unlabeled": "ours, for speed",
            "l2i.outer_every": "ours, for speed",
        },
    ),
    "short": Budget(
        short,
        2,
        {
            "steps": "ours: a 128th of the paper's 1,048,576",
            "probe": "ours",
            "optim.name": "the paper's; FixMatch's code for FixMatch, where the paper has Adam for CIFAR-10",
            "optim.lr": "the paper's; for FixMatch ours, twice its own",
            "optim.schedule": "the paper's; for FixMatch ours",
            "optim.warmup": "ours, for FixMatch",
            "optim.weight_decay": "the paper's; FixMatch's code for FixMatch on CIFAR-10",
            "optim.ema_statistics": "ours: at a high rate the model's do not fit its average; docs/results.md",
            "batch.unlabeled": "as many as labelled; FixMatch twice as many, for speed: its paper has 7 times as many",
            "l2i.outer_unlabeled": "ours, for speed",
            "l2i.eta": "released code: 50·lr on sums over batch and classes, lr being the paper's, also for FixMatch",
        },
    ),
}
