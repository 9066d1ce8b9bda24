"""A contact sheet of RandAugment: every operation over its range, on two photographs.

Give the path of the PNG.
"""

import sys

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor

from l2i.data.transforms.randaugment import MAGNITUDE_RANGES, ON_OFF, OPS, apply_op

SIDE, ENLARGED, STEPS = 32, 3, 5
CELL = SIDE * ENLARGED
LEFT, TOP, GAP = (
    132,
    20,
    24,
)  # room for names, for magnitudes, and between the photographs, in pixels
BOXES = (
    (10, 0, 437, 427),
    (120, 0, 547, 427),
)  # left, top, right and bottom of a square in each photograph


def thumbnails() -> Tensor:
    """The photographs, [2, 3, SIDE, SIDE]."""
    photos = zip(load_sample_images().images, BOXES, strict=True)
    small = [
        np.array(Image.fromarray(photo).resize((SIDE, SIDE), box=box)) for photo, box in photos
    ]
    return torch.tensor(np.stack(small)).permute(0, 3, 1, 2).float()


def magnitudes(op: str) -> dict[str, float]:
    """What to write over each cell, and the magnitude."""
    if MAGNITUDE_RANGES[op] == ON_OFF:
        return {"off": 0.0, "on": 1.0}
    low, high = MAGNITUDE_RANGES[op].low, 8 if op == "posterize" else MAGNITUDE_RANGES[op].high
    return {f"{m:.3g}".replace("-", "−"): m for m in torch.linspace(low, high, STEPS).tolist()}


def main(path: str) -> None:
    images = thumbnails()
    block = STEPS * (CELL + 6) + GAP
    height, width = len(OPS) * (CELL + TOP) + 8, LEFT + 2 * block - GAP
    sheet = np.full((height, width, 3), 255, dtype=np.uint8)
    figure = Figure(figsize=(width / 100, height / 100), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    for i, op in enumerate(OPS):
        top = i * (CELL + TOP) + TOP
        axes.text(LEFT - 14, top + CELL / 2, op, ha="right", va="center", fontsize=12)
        for j, (label, magnitude) in enumerate(magnitudes(op).items()):
            views = apply_op(images, torch.full((2,), i), torch.full((2,), magnitude))
            for k, view in enumerate(views.permute(0, 2, 3, 1).byte().numpy()):
                left = LEFT + k * block + j * (CELL + 6)
                sheet[top : top + CELL, left : left + CELL] = view.repeat(ENLARGED, 0).repeat(
                    ENLARGED, 1
                )
                axes.text(left + CELL / 2, top - 4, label, ha="center", fontsize=8.5, color="0.35")
    axes.imshow(sheet, interpolation="nearest")
    axes.axis("off")
    figure.savefig(path)


if __name__ == "__main__":
    main(sys.argv[1])
