"""The protocols of the paper's experiments, typed by hand: what each cell must resolve to.

Figures are the paper's (section 5 and the appendix) unless a comment says otherwise.
"""

from typing import Any

from l2i.recipes.table import Cell

# What the paper and those it follows have no number for, or what is off everywhere: these keep the
# library's defaults
DEFAULTS: dict[str, Any] = {
    "seed": 0,
    "precision": "auto",
    "engine": "auto",
    "model.dropout": 0.0,
    "optim.ema_bn": "copy",  # where there is no BatchNorm
    "model.freeze": "none",
    "model.encoder_dropout": None,
    "data.num_test": 1.0,
    "data.text.paraphrases": None,
    "data.words.paraphrase": 0.0,
    "data.words.replace": 0.0,
    "data.weak.crop": 0,
    "data.weak.shift": 0,
    "data.weak.padding": "constant",
    "data.weak.randaugment": 0,
    "data.weak.randaugment_ranges": "paper",
    "data.strong.randaugment_ranges": "paper",
    "data.weak.corrupt": 0.0,
    "data.weak.noise": 0.0,
    "data.weak.cutout": 0,
    "data.weak.fill": 0.0,
    "data.strong.crop": 0,
    "data.strong.shift": 0,
    "data.strong.padding": "constant",
    "data.strong.corrupt": 0.0,
    "data.strong.noise": 0.0,
    "method.weight": 1.0,
    "method.rampup": 0,
    "method.student_view": "weak2",
    "method.xi": 1e-3,
    "method.one_forward": False,
    "l2i.head": None,
    "l2i.paper.eta_schedule": "constant",
    "l2i.paper.label_lr": 1.0,
    "l2i.one_forward": False,
    "l2i.rho": 0.3,
    "l2i.preserve_step_norm": False,
    "l2i.ablation": "none",
    "l2i.every": 1,
    "l2i.outer_batch_size": 0,
    "optim.nesterov": False,
    "optim.milestones": (),
    "optim.warmup": 0,
    "optim.max_grad_norm": 0.0,
    "optim.layer_decay": 1.0,
    "optim.weight_decay_mode": "decoupled",
}
OURS = (
    "eval_every",
    "probe_samples",
    "model.width",
    "model.depth",
    "method.threshold",
)  # or unused

ADAM = {
    "optim.name": "adam",
    "optim.lr": 0.002,
    "optim.weight_decay": 0.00004,  # MixMatch's scripts, but for mean teacher
    "optim.schedule": "constant",
}
SGD = {"optim.name": "sgd", "optim.lr": 0.03, "optim.weight_decay": 0.001}
CIFAR = {
    "steps": 1_048_576,  # 2^20, MixMatch and FixMatch
    "data.num_validation": 5000,
    "data.weak.shift": 4,
    "data.weak.flip": True,
    "data.weak.padding": "reflect",
    "model.name": "wide-resnet",
    "model.depth": 28,
    "model.width": 2,
    "batch.labeled": 64,
    "optim.ema_decay": 0.999,
    "optim.ema_bn": "recompute",
    "report": "median",
}
TABLES: dict[str, dict[str, Any]] = {
    "cifar10": {**CIFAR, **ADAM, "data.name": "cifar10", "optim.weight_decay_mode": "decoupled"},
    "cifar100": {
        **CIFAR,
        **SGD,
        "data.name": "cifar100",
        "optim.weight_decay_mode": "l2",
        "optim.schedule": "cosine",
    },
    "aflw": {
        "steps": 22_500,
        "data.name": "landmarks",
        "data.num_validation": 0.1,
        "data.weak.shift": 4,  # released code
        "data.weak.padding": "reflect",  # released code
        "data.weak.flip": False,
        "model.name": "tcdcn",
        "batch.labeled": 128,  # released code
        "optim.name": "sgd",
        "optim.lr": 0.03,
        "optim.weight_decay": 0.0005,
        "optim.weight_decay_mode": "l2",
        "optim.schedule": "step",
        "optim.milestones": (15_000,),
        "optim.ema_decay": 0.999,  # released code
        "report": "best",
    },
    "imagenet": {
        "data.name": "imagenet",
        "data.num_validation": 0,
        "data.weak.crop": 64,  # Rebuffi et al.
        "data.weak.flip": True,
        "model.name": "resnet",
        "model.depth": 26,
        "model.width": 1,
        "batch.labeled": 256,
        "optim.name": "sgd",
        "optim.lr": 0.1,
        "optim.nesterov": True,
        "optim.ema_decay": 0.999,  # as for CIFAR
        "optim.ema_bn": "recompute",
        "optim.weight_decay": 0.0001,
        "optim.weight_decay_mode": "l2",
        "optim.schedule": "step",
        "report": "median",
    },
    "imdb": {
        "steps": 10_000,
        "data.name": "imdb",
        "data.num_validation": 0,  # UDA's code
        "data.text.length": 128,
        "data.text.keep_side": "end",  # UDA's code
        "model.name": "encoder",
        "model.weights": "bert-base-uncased",
        "model.dropout": 0.1,  # UDA's code
        "batch.labeled": 8,
        "optim.name": "adam",
        "optim.lr": 2e-5,
        "optim.weight_decay": 0.0,
        "optim.schedule": "linear",  # BERT's code
        "optim.warmup": 1000,
        "optim.max_grad_norm": 1.0,  # BERT's code
        "optim.ema_decay": 0.0,  # UDA's code evaluates the model as it is
        "report": "median",
    },
}
RANDAUGMENT = {
    "method.student_view": "strong",
    "data.strong.randaugment": 2,
    "data.strong.flip": True,
    "data.strong.fill": 127,
}
SHIFTED = {"data.strong.shift": 4, "data.strong.padding": "reflect"}
RAMP = {"method.rampup": 419_430}  # 40 % of 2^20
SAME = {"method.student_view": "weak", "batch.unlabeled": 64}  # labelled and learned on one view
CIFAR_METHODS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "pi-model": {**RAMP, "method.weight": 20.0, "batch.unlabeled": 64},  # MixMatch's scripts
    "pseudo-label": {
        **RAMP,
        **SAME,
        "method.weight": 1.0,
        "method.threshold": 0.95,
    },  # MixMatch's code
    "mixup": {
        **SAME,
        "method.weight": 1.0,
        "method.rampup": 0,
        "method.alpha": 0.75,
    },  # MixMatch's scripts
    "vat": {
        **RAMP,
        **SAME,
        "method.weight": 0.3,
        "method.epsilon": 12.0,
        "method.entropy": 0.06,
    },  # MixMatch's code
    "mean-teacher": {
        **RAMP,
        "method.weight": 50.0,
        "method.one_forward": True,  # the released code interleaves its batches
        "batch.unlabeled": 64,
    },
    "mixmatch": {
        "method.rampup": 16_384,  # MixMatch's code: 1/64 of the run
        "method.weight": 75.0,
        "method.temperature": 0.5,
        "method.alpha": 0.75,
        "method.one_forward": True,  # MixMatch's code interleaves its batches
        "batch.unlabeled": 64,
    },
    "fixmatch": {
        **RANDAUGMENT,
        **SHIFTED,
        "data.strong.cutout": 16,
        "method.weight": 1.0,
        "method.rampup": 0,
        "method.threshold": 0.95,
        "method.one_forward": True,  # FixMatch's code
        "batch.unlabeled": 448,
    },
    "uda": {  # UDA's own settings
        **RANDAUGMENT,
        **SHIFTED,
        "data.strong.cutout": 16,
        "method.weight": 1.0,
        "method.rampup": 0,
        "method.threshold": 0.8,
        "method.temperature": 0.4,
        "method.annealing": "none",  # UDA's script for CIFAR
        "method.annealing_share": 1.0,
        "method.one_forward": True,  # FixMatch's code
        "batch.unlabeled": 448,
    },
}
LANDMARKS = {"method.weight": 3.0, "method.rampup": 9000, "batch.unlabeled": 128}
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "cifar10": CIFAR_METHODS,
    "cifar100": CIFAR_METHODS,
    "aflw": {"supervised": {}, "pseudo-label": LANDMARKS, "mean-teacher": LANDMARKS},
    "imagenet": {
        "supervised": {},
        "mixmatch": {
            "steps": 570_600,  # 120 epochs of 1,217,109 images in batches of 256
            "optim.milestones": (142_650, 285_300, 427_950),
            "method.weight": 100.0,
            "method.rampup": 8916,  # 1/64, as for CIFAR
            "method.one_forward": True,  # MixMatch's code interleaves its batches
            "method.temperature": 0.5,
            "method.alpha": 0.75,
            "batch.unlabeled": 256,
        },
        "fixmatch": {
            **RANDAUGMENT,
            "steps": 190_200,  # 120 epochs of 1,217,109 images in batches of 768
            "optim.milestones": (47_550, 95_100, 142_650),
            "data.strong.cutout": 32,
            "data.strong.crop": 64,
            "method.weight": 10.0,
            "method.rampup": 0,
            "method.threshold": 0.95,
            "method.one_forward": True,  # FixMatch's code
            "batch.unlabeled": 768,
        },
    },
}
STRONG_TEXT = {
    "method.student_view": "strong",
    "data.words.paraphrase": 1.0,  # UDA
    "data.words.replace": 0.3,  # UDA's other perturbation of texts, at a share of ours
    "batch.unlabeled": 24,
}
METHODS["imdb"] = {
    "supervised": {},
    "uda": {  # UDA's code for BERT base
        **STRONG_TEXT,
        "method.weight": 1.0,
        "method.threshold": 0.0,
        "method.temperature": 1.0,
        "method.annealing": "linear",
        "method.annealing_share": 1.0,
    },
    "fixmatch": {**STRONG_TEXT, "method.weight": 1.0, "method.threshold": 0.95},  # as for images
    "mean-teacher": {  # ours
        **STRONG_TEXT,
        "method.weight": 10.0,
        "method.rampup": 4000,
        "optim.ema_decay": 0.999,
    },
}
FAST: dict[
    str, Any
] = {  # FixMatch's optimizer on a schedule of ours, benchmarks/; all else is the paper's
    "steps": 66_560,
    "optim.name": "sgd",
    "optim.lr": 0.06,
    "optim.nesterov": True,
    "optim.weight_decay": 0.0005,
    "optim.weight_decay_mode": "l2",
    "optim.schedule": "linear",
    "optim.warmup": 1331,
}
EIGHT = {"steps": 8192}
SHORT: dict[str, dict[str, Any]] = {  # a 128th of the paper's steps
    "mean-teacher": {**EIGHT, "method.rampup": 3277},
    "mixmatch": {**EIGHT, "method.rampup": 128},
    "fixmatch": {**FAST, **EIGHT, "optim.warmup": 164, "batch.unlabeled": 128},  # FixMatch has 448
}
OUTER = {
    "fast": {"l2i.outer_batch_size": 64, "l2i.every": 8},
    "short": {"l2i.outer_batch_size": 64},
}
IMAGENET_SL = {
    0.05: 30_120,
    1.0: 600_600,
}  # 120 epochs of 64,058 or 1,281,167 images in batches of 256
HOLDOUT = {"cifar10": 64, "cifar100": 64, "aflw": 128, "imagenet": 256, "imdb": 8}
UPDATES: dict[str, dict[str, Any]] = {
    "off": {"l2i.update": "off"},
    "normalized": {
        "l2i.update": "normalized",
        "l2i.paper.eta": None,
        "l2i.paper.inner_supervised": False,
    },
    # the released code looks ahead on C^U alone, the paper's text on C^T + C^U
    "paper": {"l2i.update": "paper", "l2i.paper.inner_supervised": False},
}
SHARED = {
    "l2i.labels": "output",
    "l2i.hypergradient": "last_layer",
    "l2i.holdout": "joint",
    "l2i.paper.inner_steps": 1,
}
ABLATIONS: dict[str, dict[str, Any]] = {
    "": {},
    "exact": {"l2i.hypergradient": "exact"},
    "learnable": {"l2i.labels": "learnable"},
    "separate": {"l2i.holdout": "separate"},
    "zero": {"l2i.ablation": "zero_gradient"},
    "shuffled": {"l2i.ablation": "shuffled_labels"},
    "direct": {"l2i.ablation": "direct_gradient"},
    "exact-shuffled": {"l2i.hypergradient": "exact", "l2i.ablation": "shuffled_labels"},
    "holdout32": {"batch.holdout": 32},
    "holdout128": {"batch.holdout": 128},
    "k1": {"l2i.hypergradient": "exact", "l2i.paper.inner_steps": 1, "l2i.paper.eta": 0.3},
    "k2": {"l2i.hypergradient": "exact", "l2i.paper.inner_steps": 2, "l2i.paper.eta": 0.3},
    "k3": {"l2i.hypergradient": "exact", "l2i.paper.inner_steps": 3, "l2i.paper.eta": 0.3},
}
LANDMARK_ETA = {"output": 0.3, "learnable": 0.03}  # released code: 10·lr and 1·lr, of means
# released code for CIFAR: 0.1 and 0.2 of sums over 64 samples and all classes, whatever the
# optimizer and the batch; here of means
ETA = {
    ("cifar10", "output"): 64.0,
    ("cifar10", "learnable"): 128.0,
    ("cifar100", "output"): 640.0,
    ("cifar100", "learnable"): 1280.0,
    ("imagenet", "output"): 6400.0,
    ("imdb", "output"): 12.8,
    **{("aflw", labels): eta for labels, eta in LANDMARK_ETA.items()},
}


def expected(table: str, cell: Cell) -> dict[str, Any]:
    """What the paper says of a cell."""
    actual: dict[str, Any] = {
        **TABLES[table],
        **METHODS[table][cell.method],
        "method": cell.method,
        "data.num_labeled": cell.num_labeled,
    }
    if table == "cifar10" and cell.method == "mean-teacher":
        actual["optim.weight_decay"] = 0.0004  # MixMatch's script, and the paper's text
    if table == "imagenet" and cell.method == "supervised":
        steps = IMAGENET_SL[cell.num_labeled]
        actual |= {"steps": steps, "optim.milestones": (steps // 4, steps // 2, 3 * steps // 4)}
    actual |= (
        UPDATES[cell.update]
        | {"": {}, "fast": FAST, "short": SHORT.get(cell.method, {})}[cell.budget]
    )
    if cell.budget and table == "cifar100":
        actual["optim.weight_decay"] = 0.001
    if cell.update == "off":
        return actual
    actual |= {**SHARED, "batch.holdout": HOLDOUT[table], **ABLATIONS[cell.ablation]}
    if table == "aflw" and (cell.update == "paper" or cell.ablation.startswith("k")):
        actual["l2i.paper.eta_schedule"] = "rate"  # released code
    if cell.update == "paper":
        actual["l2i.paper.eta"] = ETA[table, actual["l2i.labels"]]
    return actual | (OUTER[cell.budget] if cell.budget and cell.method == "fixmatch" else {})
