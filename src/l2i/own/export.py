"""A fitted model as one file that runs without l2i: ONNX or a torch.export program, preprocessing included."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from l2i import __version__
from l2i.errors import InputError
from l2i.own.fitted import Fitted, read_fit
from l2i.own.inputs import inputs_of
from l2i.own.network import Inputs, Predictor, Whole, encoded, load_network, of_kind, width_of
from l2i.own.places import checked_file, writing
from l2i.own.prepare import BLANK, Column, ImageInputs, TableInputs
from l2i.own.prepare_text import TextInputs
from l2i.training.checkpoint import write_whole

ABOUT = "l2i.json"  # the extra file of a torch.export program
SUFFIXES = (".onnx", ".pt2")
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4  # of probabilities, or of targets in their spreads, between the file and the model
ROUNDING = 1e-6  # of float32, as a share of a target that is far from zero
ROWS = 8  # made up, to check the file with
WORDS = "ai.onnx.ml"  # the operators of ONNX that read strings

Feeds = dict[str, NDArray[Any]]


def export(folder: str | Path, out: str | Path) -> Path:
    """Write the chosen model of a fit as `out`, .onnx or .pt2, once it answers as the model itself does."""
    path, home = checked_file(out, SUFFIXES), Path(folder)
    onnx = path.suffix.lower() == ".onnx"
    if onnx and not all(find_spec(name) for name in PACKAGES):
        raise InputError("a file for ONNX needs pip install 'l2i[export]'; one that ends in .pt2 does not")
    fitted, _ = read_fit(home)
    inputs = _readable(fitted, home)
    model = Whole(Predictor(load_network(home, fitted), fitted), inputs).eval()
    trial, says = made_up(fitted, inputs, model.dtype), about(fitted, inputs, model.dtype)
    with _quiet(), torch.no_grad():
        program = _traced(model, trial.codes)
        if onnx:
            content = _onnx_file(program, says, inputs)
            found = _onnx_answers(content, trial.words)
        else:
            content = _program_file(program, says)
            found = _program_answers(content, trial.codes)
        check_answers(found, model.predictor(encoded(fitted, trial.raw)).numpy(), fitted)
    with writing(out):
        write_whole(path, content)
    return path


class Trial(NamedTuple):
    """Made-up rows, as `own.prepare` takes them and as the files do."""

    raw: Any  # a table, or images
    words: Feeds  # with categories as they are
    codes: Feeds  # with each category as its place among its column's, −1 for one that is not there


def made_up(fitted: Fitted, inputs: Inputs, dtype: str) -> Trial:
    """Rows like those of the data; of a table, the first is blank and the second has unknown categories."""
    import pandas as pd

    draw = np.random.default_rng(0)
    if isinstance(inputs, ImageInputs):
        images = draw.uniform(inputs.low, inputs.high, size=(ROWS, *fitted.shape)).astype(dtype)
        return Trial(images, {"images": images}, {"images": images})
    frame = pd.DataFrame({column.name: _drawn(column, draw) for column in inputs.columns})
    numbers, categories = of_kind(inputs, "number"), of_kind(inputs, "category")
    frame = frame.astype({column.name: dtype for column in numbers})
    words: Feeds = {"numbers": frame[[c.name for c in numbers]].to_numpy()} if numbers else {}
    codes = dict(words)
    if categories:
        words["categories"] = frame[[c.name for c in categories]].to_numpy(dtype=object)
        places = [{word: k for k, word in enumerate(column.values)} for column in categories]
        rows = [[place.get(word, -1) for place, word in zip(places, row, strict=True)] for row in words["categories"]]
        codes["categories"] = np.array(rows, dtype=np.int64)
    return Trial(frame, words, codes)


def _drawn(column: Column, draw: np.random.Generator) -> NDArray[Any]:
    if column.kind == "number":
        return np.array([np.nan, *draw.normal(column.mean, column.std, size=ROWS - 1)])
    unknown = max(column.values, key=len) + "?"  # longer than all that are known
    known = draw.choice(np.array(column.values, dtype=object), size=ROWS - 2)
    return np.array([BLANK, unknown, *known], dtype=object)


def about(fitted: Fitted, inputs: Inputs, dtype: str) -> dict[str, Any]:
    """What a file says of itself."""
    outputs = {"values": f"float32 [N, {width_of(fitted)}]: the targets in their units"}
    if fitted.classes is not None:
        label = "int64 [N]: the place of the likeliest class, from 0"
        outputs = {"probabilities": f"float32 [N, {width_of(fitted)}]: calibrated", "label": label}
    said = _of_table(inputs, dtype) if isinstance(inputs, TableInputs) else _of_images(inputs, dtype, fitted.shape)
    named = {"classes": fitted.classes, "targets": fitted.targets}
    return {**named, **said, "outputs": outputs, "l2i_version": __version__}


def _of_table(inputs: TableInputs, dtype: str) -> dict[str, Any]:
    numbers, categories = of_kind(inputs, "number"), of_kind(inputs, "category")
    places = "strings in ONNX, '' where blank; in a torch program int64, the place among the values, -1 for any other"
    says: dict[str, str] = {}
    if numbers:
        says["numbers"] = f"{dtype} [N, {len(numbers)}]: raw values, NaN where blank"
    if categories:
        says["categories"] = f"[N, {len(categories)}]: {places}"
    known = [{"name": column.name, "values": column.values} for column in categories]
    return {"inputs": says, "columns": {"numbers": [{"name": c.name} for c in numbers], "categories": known}}


def _of_images(inputs: ImageInputs, dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    size = f"{dtype} [N, {', '.join(map(str, shape))}]"
    grey = f"already of this size, black at {inputs.low:g} and white at {inputs.high:g}"
    return {"inputs": {"images": f"{size}: {grey}"}, "shape": shape}


def _traced(model: Whole, feeds: Feeds) -> torch.export.ExportedProgram:
    """The model as a graph, for any number of rows."""
    rows = torch.export.Dim("N")
    given = {name: torch.from_numpy(values) for name, values in feeds.items()}
    program = torch.export.export(model, (), given, dynamic_shapes={name: {0: rows} for name in given})
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names folders of this machine
    return program


def _program_file(program: torch.export.ExportedProgram, says: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={ABOUT: json.dumps(says, indent=1, ensure_ascii=False)})
    return file.getvalue()


def _program_answers(content: bytes, feeds: Feeds) -> Feeds:
    module = torch.export.load(io.BytesIO(content)).module()
    found = module(**{name: torch.from_numpy(values) for name, values in feeds.items()})
    return {name: values.numpy() for name, values in found.items()}


def _onnx_file(program: torch.export.ExportedProgram, says: dict[str, Any], inputs: Inputs) -> bytes:
    import onnx

    names = ["codes" if name == "categories" else name for name in says["inputs"]]
    answers = list(says["outputs"])
    made: Any = torch.onnx.export(program, dynamo=True, verbose=False, input_names=names, output_names=answers)
    model = made.model_proto
    graph = model.graph
    for item in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        del item.metadata_props[:]  # torch's, of how the graph came about
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    if isinstance(inputs, TableInputs):
        _read_words(model, of_kind(inputs, "category"))
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in says.items() if not isinstance(value, str)}
    onnx.helper.set_model_props(model, says | texts)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _read_words(model: Any, columns: list[Column]) -> None:
    """Put before a graph that takes codes what makes codes of words."""
    from onnx import TensorProto, helper

    if not columns:
        return
    words, codes = ([f"{name}_{i}" for i in range(len(columns))] for name in ("words", "codes"))
    nodes = [helper.make_node("Split", ["categories"], words, axis=1, num_outputs=len(columns))]
    for word, code, column in zip(words, codes, columns, strict=True):
        words_of = {word: code for code, word in enumerate(column.values)}
        if BLANK in words_of:
            words_of.setdefault("nan", words_of[BLANK])  # what onnxruntime makes of pandas' blank cells
        known: dict[str, Any] = {"keys_strings": list(words_of), "values_int64s": list(words_of.values())}
        nodes.append(helper.make_node("LabelEncoder", [word], [code], domain=WORDS, default_int64=-1, **known))
    nodes.append(helper.make_node("Concat", codes, ["codes"], axis=1))
    nodes += model.graph.node
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    taken = next(value for value in model.graph.input if value.name == "codes")
    taken.CopyFrom(helper.make_tensor_value_info("categories", TensorProto.STRING, ["N", len(columns)]))
    model.opset_import.append(helper.make_opsetid(WORDS, 3))


def _onnx_answers(content: bytes, feeds: Feeds) -> Feeds:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def check_answers(found: Feeds, wanted: NDArray[np.float32], fitted: Fitted) -> None:
    """That the file answers as the model does; targets are compared in their spreads."""
    values = found["values" if fitted.classes is None else "probabilities"]
    unit = 1.0 if fitted.classes is not None else np.asarray(fitted.target_std)
    allowed = TOLERANCE * unit + ROUNDING * np.abs(wanted)
    same = values.shape == wanted.shape and bool((np.abs(values - wanted) <= allowed).all())
    if not same or ("label" in found and (found["label"] != values.argmax(axis=1)).any()):
        raise RuntimeError("the exported model does not answer as the fitted one does, so no file was written")


def _readable(fitted: Fitted, folder: Path) -> Inputs:
    """How the fit reads its inputs, where a file can hold that."""
    inputs = inputs_of(fitted.inputs)
    columns = () if isinstance(inputs, ImageInputs) else inputs.columns
    texts = [column.name for column in columns if column.kind == "text"]
    if texts or isinstance(inputs, TextInputs):
        raise InputError(f"column '{texts[0]}' is text, which a model file cannot read; use 'l2i predict {folder}'")
    return inputs


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporters print, log and warn of."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
