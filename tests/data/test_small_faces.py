from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from formats import write_faces, write_imm, write_mtfl
from l2i.data.datasets.faces import load_landmarks, load_small_faces
from l2i.models.base import ModelConfig
from l2i.models.tcdcn import build_tcdcn


@pytest.mark.parametrize("write", [write_imm, write_mtfl, write_faces])
def test_small_faces_are_those_of_landmarks_with_points_scaled_alike(
    tmp_path: Path, write: Any
) -> None:
    root = str(write(tmp_path, train=9, test=5))
    small, large = load_small_faces(root), load_landmarks(root)
    assert (small.classes, small.has_landmarks, small.eye_indices) == (
        None,
        True,
        large.eye_indices,
    )
    for actual, whole in ((small.train, large.train), (small.test, large.test)):
        assert (actual.x.shape, actual.x.dtype) == ((len(whole.x), 1, 44, 44), torch.uint8)
        assert torch.allclose(actual.y, whole.y * 44 / 60)
    assert small.normalization is not None
    assert small.normalization.mean.item() == pytest.approx(small.train.x.double().mean().item())


def test_each_face_is_resampled_as_pillow_does_it(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    faces = draw.integers(0, 256, (1030, 60, 60), dtype=np.uint8)
    faces[0], faces[1] = 0, 255
    points = np.tile([[10, 10], [50, 10], [30, 30], [10, 50], [50, 50]], (len(faces), 1, 1))
    np.savez(
        tmp_path / "faces.npz", x_train=faces, y_train=points, x_test=faces[:2], y_test=points[:2]
    )
    data = load_small_faces(str(tmp_path))
    expected = [
        np.asarray(Image.fromarray(face).resize((44, 44), Image.Resampling.BILINEAR))
        for face in faces
    ]
    actual = data.train.x.numpy()[:, 0].astype(int)
    assert np.abs(actual - np.stack(expected)).max() <= 1
    assert (actual[0].max(), actual[1].min()) == (0, 255)


def test_the_network_for_landmarks_takes_them_and_nothing_smaller(tmp_path: Path) -> None:
    faces = load_small_faces(str(write_faces(tmp_path, train=3, test=2))).train.x.float()
    assert build_tcdcn((1, 44, 44), 10, ModelConfig(name="tcdcn"))(faces).shape == (3, 10)
    with pytest.raises(ValueError, match="at least 44 × 44 pixels"):
        build_tcdcn((1, 43, 44), 10, ModelConfig(name="tcdcn"))
