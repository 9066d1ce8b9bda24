"""Class folders of small generated images, as JPEG and PNG of several shapes and colour modes."""

from pathlib import Path

import numpy as np
from PIL import Image

MODES = ("RGB", "L", "RGBA", "P", "RGB")
PER_SIDE = (
    (1.0, 1.0),
    (1.5, 1.0),
    (1.0, 2.0),
    (2.3, 3.1),
)  # width and height, as multiples of the size


def write_class_folders(
    folder: Path, *, classes: int = 3, per_class: int = 5, size: int = 16
) -> Path:
    """`per_class` images a class in train, about half in val; classes differ in their shade."""
    generator = np.random.default_rng(0)
    for part, count in (("train", per_class), ("val", (per_class + 1) // 2)):
        for number in range(classes):
            inside = folder / part / f"class{number:03d}"
            inside.mkdir(parents=True)
            for index in range(count):
                write_image(
                    inside, index, shade=(number + 0.5) / classes, size=size, generator=generator
                )
    return folder


def write_image(
    folder: Path, index: int, *, shade: float, size: int, generator: np.random.Generator
) -> Path:
    """A noisy image, redder and less blue with `shade`; the index picks shape, mode and format."""
    wide, high = PER_SIDE[index % len(PER_SIDE)]
    colour = 255 * np.array([shade, 0.5, 1 - shade])
    values = colour + generator.normal(0, 20, (round(high * size), round(wide * size), 3))
    image = Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert(MODES[index % len(MODES)])
    suffix = "jpg" if image.mode in ("RGB", "L") and index % 2 == 0 else "png"
    path = folder / f"image{index:05d}.{suffix}"
    image.save(path)
    return path
