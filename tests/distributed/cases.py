"""Short runs in float64 that processes share.

As a script, under torchrun or alone, it takes them all and writes them. `python cases.py FOLDER
[DEVICE]`: the state of each after a few steps, and the figures of the averaged model, in
FOLDER/CASE-SIZE.
"""

import dataclasses
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from l2i import Run, Splits, Trainer, recipes, replace
from l2i.data.transforms.image import Augment, Normalize
from l2i.distributed import current_group, init_distributed

STEPS = 3
MIXING = (
    "mixup",
    "mixmatch",
)  # each process mixes its own samples: all hold one state, and not that of one process
PARTS = ("model", "teacher", "optimizer")
BATCH = {"labeled": 8, "unlabeled": 12, "holdout": 8}
EXACT, LAST = {"hypergradient": "exact"}, {"hypergradient": "last_layer"}
LEARNED = {"labels": "learnable"}
ETA = {"eta": 0.1, "eta_schedule": "rate"}
PAPER = {"update": "paper", "paper": ETA}

OUTER: dict[str, dict[str, object]] = {
    "base": {"update": "off"},
    "O-exact": EXACT,
    "O-exact-paper": EXACT | PAPER,
    "O-exact-two-steps": EXACT | PAPER | {"paper": ETA | {"inner_steps": 2}},
    "O-last": LAST,
    "O-last-paper": LAST | PAPER,
    "O-last-fewer": LAST | {"outer_batch_size": 8},
    "L-exact": EXACT | LEARNED,
    "L-exact-paper": EXACT | LEARNED | PAPER,
    "L-last": LAST | LEARNED,
    "L-last-paper": LAST | LEARNED | PAPER,
    "turned": LAST | {"rho": 1.0, "preserve_step_norm": True},
    "direct": {"ablation": "direct_gradient", "rho": 1.0},
    "zero-paper": PAPER | {"ablation": "zero_gradient"},
    "shuffled": LAST | {"ablation": "shuffled_labels"},
    "supervised-inner": EXACT
    | {"update": "paper", "paper": {"supervised_eta": 0.1, "inner_supervised": True}},
}


def digits(method: str, **l2i: object) -> Run:
    run = replace(
        recipes.get(f"digits/{method}-l2i-40"), device="cpu", precision="float64", l2i=l2i
    )
    settings = {"threshold": 0.13} if hasattr(run.method, "threshold") else {}
    settings |= {"annealing": "linear"} if method == "uda" else {}
    return replace(run, method=settings | {"rampup": 0}, batch=BATCH, steps=STEPS)


def cases() -> dict[str, Run]:
    actual = {f"fixmatch-{name}": digits("fixmatch", **l2i) for name, l2i in OUTER.items()}
    actual |= {
        f"{method}-O": digits(method)
        for method in ("mean-teacher", "pi-model", "vat", "pseudo-label")
    }
    actual |= {
        f"uda-{name}": digits("uda", **OUTER[name])
        for name in ("base", "O-exact-paper", "supervised-inner")
    }
    for name in ("base", "O-exact-paper", "O-exact-two-steps", "O-last", "L-exact"):
        actual[f"normed-{name}"] = replace(
            actual[f"fixmatch-{name}"], model={"name": "conv", "width": 4}
        )
    actual["normed-teacher"] = replace(actual["mean-teacher-O"], model={"name": "conv", "width": 4})
    for name in ("uda-base", "normed-O-last", "normed-teacher"):
        actual[f"{name}-one-forward"] = replace(actual[name], method={"one_forward": True})
    for name in ("normed-teacher-one-forward", "normed-O-last-one-forward"):
        actual[f"{name}-for-both"] = replace(actual[name], l2i={"one_forward": True})
    actual["normed-settled"] = replace(actual["normed-teacher"], optim={"ema_bn": "recompute"})
    weak = Augment(shift=2, flip=True)
    actual["tracked"] = digits("mean-teacher", **OUTER["base"])
    actual["odd-norms"] = digits("fixmatch", **OUTER["O-exact-paper"])
    actual |= {f"{method}-O": digits(method) for method in MIXING}
    table = Augment(noise=0.1)
    actual["regression"] = replace(
        digits("pi-model", **OUTER["O-exact-paper"]), data={"weak": table, "strong": table}
    )
    views = {"weak": weak, "strong": dataclasses.replace(weak, randaugment=2, cutout=3, noise=2.0)}
    images = replace(digits("fixmatch", **OUTER["O-exact-paper"]), data=views)
    return {
        **actual,
        "images": replace(images, model={"name": "wide-resnet", "depth": 10, "width": 1}),
    }


def targets() -> Splits:
    """A table with three targets."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(80, 4, generator=draw)
    y = x[:, :3] * x[:, 1:] + 5
    return Splits.from_arrays(labeled=(x[:20], y[:20]), unlabeled=x[20:60], test=(x[60:], y[60:]))


def pictures() -> Splits:
    """Small 8-bit images in colour, for what is done to such alone."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (60, 3, 12, 12), generator=draw, dtype=torch.uint8)
    y = torch.randint(4, (60,), generator=draw)
    parts = {"labeled": (x[:20], y[:20]), "test": (x[50:], y[50:])}
    return Splits.from_arrays(
        **parts, unlabeled=x[20:50], classes=4, normalization=Normalize.from_images(x)
    )


class Tracked(nn.Module):
    """A layer that no library knows, which keeps a running mean of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("observed", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.observed.lerp_(x.detach().mean(0), 0.1)
        return x if self.training else x - self.observed


class Sub(nn.BatchNorm1d):
    """BatchNorm by another name."""


def own(name: str) -> nn.Module | None:
    """A network without BatchNorm, or with mixed layers; each process has its own first weights."""
    if name == "images" or name.startswith("normed"):
        return None
    torch.manual_seed(current_group().rank)
    norm = Sub(16)
    inner: dict[str, list[nn.Module]] = {
        "tracked": [Tracked()],
        "odd-norms": [
            norm,
            nn.Linear(16, 16, bias=False),
            norm,
            nn.BatchNorm1d(16, track_running_stats=False),
        ],
    }
    ends = (4, 3) if name == "regression" else (64, 10)
    layers = [
        nn.Linear(ends[0], 16, bias=False),
        nn.Tanh(),
        *inner.get(name, []),
        nn.Linear(16, ends[1]),
    ]
    return nn.Sequential(nn.Flatten(), *layers)


def taken(name: str, run: Run) -> tuple[dict[str, Tensor], dict[str, dict[str, float]]]:
    given = {"images": pictures, "regression": targets}.get(name)
    trainer = Trainer(run, splits=None if given is None else given(), model=own(name))
    for step in range(STEPS):
        trainer.step(step)
    metrics = {"measured": trainer.meter.read(), **trainer.compute_metrics()}
    saved = {
        name: t.clone().contiguous()
        for name, t in trainer.state_dict().items()
        if name.split(".")[0] in PARTS
    }
    return saved, metrics


def main(folder: Path, device: str = "cpu") -> None:
    torch.set_num_threads(1)
    with init_distributed(device) as group:
        for name, run in cases().items():
            state, metrics = taken(name, replace(run, device=device))
            same = torch.cat([t.flatten().double() for t in state.values()])
            others = group.all_reduce_mean(same.clone())
            assert torch.allclose(others, same, rtol=0, atol=0), f"{name}: the processes differ"
            if group.is_main:
                save_file(state, folder / f"{name}-{group.size}.safetensors")
                (folder / f"{name}-{group.size}.json").write_text(json.dumps(metrics))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
