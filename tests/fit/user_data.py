"""Small files of a user's own, as tables and images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from l2i.fit.options import ReadOptions
from l2i.fit.readers.source import Source, read_source


def table(folder: Path, *, rows: int = 60, name: str = "data.csv") -> Path:
    """Numbers, categories, a text and a class, of which every third is given."""
    lines = ["age,city,note,kind"]
    for row in range(rows):
        label = "" if row % 3 else ("cat" if row % 2 else "dog")
        lines.append(f"{20 + row % 17}.5,{'Rome' if row % 4 else 'Bonn'},word{row} of text,{label}")
    return written(folder / name, "\n".join(lines) + "\n")


def written(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def read(path: Path, *target: str, **options: object) -> Source:
    return read_source(str(path), ReadOptions(target=target, **options))  # type: ignore[arg-type]


def picture(
    path: Path, *, width: int = 20, height: int = 16, colour: Sequence[int] = (200, 80, 20)
) -> Path:
    """One colour, or one grey level."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((height, width, len(colour)), colour, dtype=np.uint8)
    Image.fromarray(pixels if len(colour) == 3 else pixels[..., 0]).save(path)
    return path


def class_folders(
    root: Path, *, each: int = 3, unlabeled: int = 2, colour: Sequence[int] = (200, 80, 20)
) -> Path:
    for name in ("cat", "dog"):
        for number in range(each):
            picture(root / name / f"{number}.png", colour=colour)
    for number in range(unlabeled):
        picture(root / "unlabeled" / "deep" / f"{number}.jpg", colour=colour)
    return root
