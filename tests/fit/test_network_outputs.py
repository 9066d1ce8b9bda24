"""From a network's outputs to predictions: units, temperature, order and exported checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fits import fitted_like, rows_of
from torch import Tensor, nn

from l2i import train
from l2i.config import Run, replace
from l2i.data.samples import Samples, Splits
from l2i.fit.artifact import FitArtifact, hash_fit_files, read_fit, write_fit
from l2i.fit.export import (
    _build_metadata,
    _insert_label_encoders,
    _load_exportable_inputs,
    _make_examples,
    check_outputs_match,
)
from l2i.fit.modules import (
    EndToEndModel,
    Predictor,
    count_outputs,
    encode_inputs,
    load_network,
    predict_outputs,
)
from l2i.fit.predict import predict_table
from l2i.fit.preprocess import Column, ImagePreprocessor, TablePreprocessor
from l2i.training.loading import load_trainer

TABLE = TablePreprocessor(
    columns=(
        Column(name="c", kind="category", values=("", "u", "v")),
        Column(name="n", kind="number", mean=10.0, std=2.0, blanks=True),
    )
)
FRAME = pd.DataFrame({"n": [12.0, np.nan, 6.0], "c": ["v", None, "new"]})
ENCODED = [[0, 0, 1, 1, 0], [1, 0, 0, 0, 1], [0, 0, 0, -2, 0]]


class Sums(nn.Module):
    """Outputs that a person can check: sums of inputs, and their negatives."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.flatten(1).float().sum(dim=1)
        return torch.stack([total, -total], dim=1)


def classifier(**changes: Any) -> FitArtifact:
    return fitted_like(**{"classes": ("no", "yes"), "inputs": TABLE.to_json(), **changes})


def regressor(**changes: Any) -> FitArtifact:
    plain = {
        "classes": None,
        "targets": ("u", "v"),
        "inputs": TABLE.to_json(),
        "target_mean": (100.0, -5.0),
        "target_std": (10.0, 0.5),
    }
    return fitted_like(**{**plain, **changes})


def test_raw_rows_are_encoded_as_in_the_fit() -> None:
    assert encode_inputs(classifier(), FRAME).tolist() == ENCODED
    images = ImagePreprocessor(mean=(100.0,), std=(50.0,))
    raw = np.array([[[[0, 100], [150, 200]]]], dtype=np.uint8)
    actual = encode_inputs(classifier(inputs=images.to_json()), raw)
    assert actual.tolist() == [[[[-2.0, 0.0], [1.0, 2.0]]]]


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_outputs_are_logits_or_targets_in_their_units_in_the_order_of_rows(batch_size: int) -> None:
    x = torch.tensor(ENCODED, dtype=torch.float32)
    logits = predict_outputs(Sums(), classifier(), x, batch_size=batch_size)
    assert logits.tolist() == [[2, -2], [2, -2], [-2, 2]]
    values = predict_outputs(Sums(), regressor(), x, batch_size=batch_size)
    assert values.tolist() == [[120.0, -6.0], [120.0, -6.0], [80.0, -4.0]]


def test_probabilities_are_of_logits_divided_by_the_temperature() -> None:
    predictor = Predictor(Sums(), classifier(temperature=4.0))
    actual = predictor(torch.tensor([[2.0]]))
    assert actual[0, 0].item() == pytest.approx(1 / (1 + np.exp(-1.0)))
    targets = Predictor(Sums(), regressor())(torch.tensor([[2.0]]))
    assert targets.tolist() == [[120.0, -6.0]] and targets.dtype == torch.float32
    dates = Predictor(Sums(), regressor(target_mean=(1.7e9, 0.0)))
    assert dates(torch.tensor([[2.0]])).tolist() == [[1.7e9 + 20.0, -1.0]]  # in float64


def test_a_model_names_its_label_by_the_most_probable_class() -> None:
    model = EndToEndModel(Predictor(Sums(), classifier()), TABLE)
    codes = torch.tensor([[2], [0], [-1]])
    numbers = torch.tensor([[12.0], [torch.nan], [6.0]])
    outputs = model(numbers=numbers, categories=codes)
    assert outputs["label"].tolist() == [0, 0, 1]
    assert outputs["probabilities"].sum(dim=1).tolist() == pytest.approx([1, 1, 1])
    assert model.dtype == "float32"
    values = EndToEndModel(Predictor(Sums(), regressor()), TABLE)(numbers=numbers, categories=codes)
    assert list(values) == ["values"]


def test_landmarks_have_more_outputs_than_names() -> None:
    assert count_outputs(regressor(targets=("points",))) == 2
    assert count_outputs(classifier()) == 2


def written_network(folder: Path, name: str, seed: int, **changes: Any) -> nn.Module:
    """Train a step in a run folder, and return the averaged model."""
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(12) % 2
    samples = Samples(x, y)
    splits = Splits(
        labeled=samples,
        unlabeled=samples,
        holdout=samples,
        validation=samples,
        test=samples,
        classes=2,
    )
    run = Run(name=name, steps=2, device="cpu", threads=1, seed=seed, out=str(folder / name))
    run = replace(run, model={"name": "mlp", "width": 4, "depth": 1}, method="supervised")
    run = replace(run, l2i={"update": "off"}, optim={"lr": 0.1, "ema_decay": 0.5}, **changes)
    train(run, splits=splits, quiet=True)
    trainer, _ = load_trainer(folder / name, splits=splits)
    return trainer.teacher.model.eval()


def test_the_network_is_that_of_the_selected_candidate(tmp_path: Path) -> None:
    networks = {
        name: written_network(tmp_path, name, seed)
        for seed, name in enumerate(("supervised", "l2i"))
    }
    x = torch.randn(3, 5)
    for name, network in networks.items():
        files = hash_fit_files(tmp_path)
        loaded = load_network(tmp_path, classifier(shape=(5,), selected_name=name, files=files))
        assert torch.equal(loaded(x), network(x))
        assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    assert not torch.equal(networks["l2i"](x), networks["supervised"](x))


def test_new_rows_have_their_ids_labels_and_calibrated_probabilities(tmp_path: Path) -> None:
    network = written_network(tmp_path, "l2i", 0)
    options = {"layout": "table", "encoding": "utf-8", "separator": "auto", "id": "k"}
    source = {**options, "image": None}
    fitted = classifier(shape=(5,), classes=("id", "yes"), temperature=0.25, source=source)
    write_fit(tmp_path, fitted, rows_of(np.array([0, 1]), np.zeros((2, 2), dtype=np.float32)))
    rows = FRAME.assign(k=["z", "a", "m"])
    rows.to_csv(tmp_path / "new.csv", index=False)
    fitted, _ = read_fit(tmp_path)
    frame = predict_table(str(tmp_path), fitted, str(tmp_path / "new.csv"), lambda note: None)
    with torch.no_grad():
        logits = network(torch.tensor(ENCODED, dtype=torch.float32)).double()
    expected = torch.softmax(4 * logits, dim=1).numpy()
    assert list(frame.columns) == ["id", "kind", "confidence", "p(id)", "p(yes)"]
    assert frame["id"].tolist() == ["z", "a", "m"]
    assert frame["kind"].tolist() == [("id", "yes")[k] for k in expected.argmax(axis=1)]
    np.testing.assert_allclose(frame[["p(id)", "p(yes)"]], expected, atol=1e-5)
    np.testing.assert_allclose(frame["confidence"], expected.max(axis=1), atol=1e-5)


def test_examples_have_a_blank_and_an_unknown_category_and_agree_in_both_forms() -> None:
    examples = _make_examples(classifier(), TABLE, "float32")
    strings, codes = examples.string_feeds["categories"], examples.code_feeds["categories"]
    assert strings[0, 0] == "" and codes[0, 0] == 0
    assert strings[1, 0] == "u?" and codes[1, 0] == -1
    known = ["", "u", "v"]
    assert [known.index(word) for word in strings[2:, 0]] == codes[2:, 0].tolist()
    numbers = examples.code_feeds["numbers"]
    assert np.isnan(numbers[0, 0]) and numbers.dtype == np.float32 and len(numbers) == 8
    images = ImagePreprocessor(mean=(1.0,), std=(1.0,), low=-1.0, high=1.0)
    pixels = _make_examples(classifier(shape=(1, 4, 4)), images, "float32").raw_inputs
    assert pixels.shape == (8, 1, 4, 4) and -1 <= pixels.min() < pixels.max() <= 1


def test_a_file_says_what_it_takes_and_gives() -> None:
    about = _build_metadata(classifier(), TABLE, "float32")
    assert about["classes"] == ("no", "yes")
    assert about["inputs"]["numbers"] == "float32 [N, 1]: raw values, NaN where blank"
    assert about["columns"]["categories"] == [{"name": "c", "values": ("", "u", "v")}]
    assert about["columns"]["numbers"] == [{"name": "n"}]
    assert list(about["outputs"]) == ["probabilities", "label"]
    assert about["outputs"]["probabilities"].startswith("float32 [N, 2]")
    assert list(_build_metadata(regressor(), TABLE, "float64")["outputs"]) == ["values"]
    images = ImagePreprocessor(mean=(1.0,), std=(1.0,), low=-1.0, high=1.0)
    text = _build_metadata(classifier(shape=(1, 4, 5)), images, "float32")["inputs"]["images"]
    assert text == "float32 [N, 1, 4, 5]: already resized, black = -1, white = 1"


def test_words_of_an_onnx_file_become_the_codes_of_their_columns() -> None:
    """A blank cell of pandas is read as the word nan, which is no category of its own."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    helper, integer = onnx.helper, onnx.TensorProto.INT64
    graph = helper.make_graph(
        [helper.make_node("Identity", ["codes"], ["out"])],
        "g",
        [helper.make_tensor_value_info("codes", integer, ["N", 2])],
        [helper.make_tensor_value_info("out", integer, ["N", 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    without_blank = Column(name="d", kind="category", values=("q", "p", "nan"))
    _insert_label_encoders(model, [TABLE.columns[0], without_blank])
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    words = [["v", "p"], ["", "q"], ["nan", "nan"], ["other", ""]]
    (codes,) = session.run(None, {"categories": np.array(words, dtype=object)})
    assert codes.tolist() == [[2, 1], [0, 0], [0, 2], [-1, -1]]


def test_a_file_must_answer_as_the_model_does() -> None:
    expected = np.array([[0.25, 0.75], [0.6, 0.4]], dtype=np.float32)
    label = np.array([1, 0])

    def check(values: Any, label: Any = label) -> None:
        outputs = {"probabilities": np.asarray(values, dtype=np.float32), "label": label}
        check_outputs_match(outputs, expected, classifier())

    check(expected)
    check(expected + 5e-5)
    for wrong in (expected + 2e-4, expected[:1], expected[:, ::-1]):
        with pytest.raises(RuntimeError, match="differ from those of the fitted model"):
            check(wrong)
    with pytest.raises(RuntimeError, match="no file was written"):
        check(expected, np.array([1, 1]))
    targets = np.array([[1000.0, 1.0]], dtype=np.float32)
    fitted = regressor(target_std=(100.0, 0.001))
    check_outputs_match({"values": targets + np.array([0.009, 0.0])}, targets, fitted)
    with pytest.raises(RuntimeError):
        check_outputs_match({"values": targets + np.array([0.012, 0.0])}, targets, fitted)
    with pytest.raises(RuntimeError):
        check_outputs_match({"values": targets + np.array([0.0, 0.001])}, targets, fitted)


def test_a_text_column_cannot_be_exported() -> None:
    text = TablePreprocessor(columns=(Column(name="t", kind="text", values=("a",)),))
    with pytest.raises(ValueError, match="column 't' is text, which cannot be exported"):
        _load_exportable_inputs(classifier(inputs=text.to_json()), Path("fit"))
    assert _load_exportable_inputs(classifier(), Path("fit")) == TABLE
