"""Export a fitted model, preprocessing included, as an ONNX or torch.export file."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.files.output import check_output_file, write_output
from l2i.fit.artifact import FitArtifact, list_data_paths, read_fit
from l2i.fit.modules import (
    EndToEndModel,
    ExportableInputs,
    Predictor,
    count_outputs,
    encode_inputs,
    load_network,
)
from l2i.fit.preprocess import (
    Column,
    FeaturePreprocessor,
    ImagePreprocessor,
    TablePreprocessor,
    TextPreprocessor,
    load_preprocessor,
)
from l2i.fit.projection import load_projection
from l2i.fit.readers.columns import BLANK

METADATA_FILE = "l2i.json"  # the extra file of a torch.export program
MODEL_SUFFIXES = (".onnx", ".pt2")
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
EXPORT_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
TOLERANCE = 1e-4  # between file and model, of probabilities or of targets in their stds
RELATIVE_TOLERANCE = 1e-6  # of float32, for targets that are far from zero
NUM_EXAMPLE_ROWS = 8  # made up, to check the file with
ONNX_ML_DOMAIN = "ai.onnx.ml"  # the ONNX operators that read strings

NamedArrays = dict[str, NDArray[Any]]


def export(folder: str | Path, out: str | Path, *, overwrite: bool = False) -> Path:
    """Write the selected model of a fit as .onnx or .pt2, if the file's outputs are the model's.

    A file that `l2i` did not write is replaced only with `overwrite`.
    """
    fit_dir = Path(folder)
    fitted, _ = read_fit(fit_dir)
    data = list_data_paths(fit_dir, fitted)
    path = check_output_file(out, MODEL_SUFFIXES, data=data, overwrite=overwrite)
    is_onnx = Path(out).suffix.lower() == ".onnx"
    if is_onnx and not all(find_spec(name) for name in ONNX_PACKAGES):
        fix = "run pip install 'l2i[export]', or export to .pt2"
        raise InputError(f"ONNX export needs extra packages; {fix}")
    inputs = _load_exportable_inputs(fitted, fit_dir)
    projection = None
    if isinstance(inputs, FeaturePreprocessor):
        projection = load_projection(fit_dir, fitted)
    predictor = Predictor(load_network(fit_dir, fitted), fitted)
    model = EndToEndModel(predictor, inputs, projection).eval()
    examples = _make_examples(fitted, inputs, model.dtype)
    metadata = _build_metadata(fitted, inputs, model.dtype)
    with _silence_exporters(), torch.no_grad():
        program = _trace_model(model, examples.code_feeds)
        if is_onnx:
            content = _serialize_onnx(program, metadata, inputs)
            outputs = _run_onnx(content, examples.string_feeds)
        else:
            content = _serialize_program(program, metadata)
            outputs = _run_program(content, examples.code_feeds)
        if isinstance(inputs, FeaturePreprocessor):
            encoded = model.encoder(torch.from_numpy(examples.raw_inputs))
        else:
            encoded = encode_inputs(fitted, examples.raw_inputs)
        expected = model.predictor(encoded).numpy()
        check_outputs_match(outputs, expected, fitted)
    write_output(path, content, out)
    return Path(out)


def _load_exportable_inputs(fitted: FitArtifact, folder: Path) -> ExportableInputs:
    """Load the preprocessor; raise an InputError if a file cannot hold it."""
    inputs = load_preprocessor(fitted.inputs)
    columns: tuple[Column, ...] = ()
    if isinstance(inputs, TablePreprocessor | TextPreprocessor):
        columns = inputs.columns
    text_columns = [column.name for column in columns if column.kind == "text"]
    if text_columns or isinstance(inputs, TextPreprocessor):
        raise InputError(
            f"column '{text_columns[0]}' is text, which cannot be exported; use "
            f"'l2i predict {folder}' instead"
        )
    return inputs


def get_image_shape(
    fitted: FitArtifact, inputs: ImagePreprocessor | FeaturePreprocessor
) -> tuple[int, ...]:
    """Return the shape of an image as an exported model takes it."""
    if isinstance(inputs, FeaturePreprocessor):
        return (3, inputs.side, inputs.side)
    return fitted.shape


class _ExampleBatch(NamedTuple):
    """Made-up rows, as the preprocessor takes them and as the files do."""

    raw_inputs: Any  # a table, or images
    string_feeds: NamedArrays  # with categories as they are
    code_feeds: NamedArrays  # with each category as its index in its column, −1 if unknown


def _make_examples(fitted: FitArtifact, inputs: ExportableInputs, dtype: str) -> _ExampleBatch:
    """Make rows like the data's; of a table, one is blank and one has unknown categories."""
    import pandas as pd

    rng = np.random.default_rng(0)
    if not isinstance(inputs, TablePreprocessor):
        shape = (NUM_EXAMPLE_ROWS, *get_image_shape(fitted, inputs))
        is_encoded = isinstance(inputs, FeaturePreprocessor)  # which takes grey levels, 0 to 255
        low, high = (0, 256) if is_encoded else (inputs.low, inputs.high)
        images = rng.uniform(low, high, size=shape).astype(dtype)
        return _ExampleBatch(images, {"images": images}, {"images": images})
    samples: dict[str, NDArray[Any]] = {}
    for column in inputs.columns:
        if column.name not in samples:  # of a date, the days come first, and make the other parts
            samples[column.name] = _sample_column(column, rng)
    frame = pd.DataFrame(samples)
    frame = frame.astype({column.name: dtype for column in inputs.select("number")})
    code_feeds = inputs.to_arrays(frame)
    if "numbers" in code_feeds:
        code_feeds["numbers"] = code_feeds["numbers"].astype(dtype)
    string_feeds, categories = dict(code_feeds), inputs.select("category")
    if categories:
        string_feeds["categories"] = frame[[c.name for c in categories]].to_numpy(dtype=object)
    return _ExampleBatch(frame, string_feeds, code_feeds)


def _sample_column(column: Column, rng: np.random.Generator) -> NDArray[Any]:
    if column.kind == "number":
        return np.array([np.nan, *rng.normal(column.mean, column.std, size=NUM_EXAMPLE_ROWS - 1)])
    unknown = max(column.values, key=len) + "?"  # longer than all known values
    known_values = rng.choice(np.array(column.values, dtype=object), size=NUM_EXAMPLE_ROWS - 2)
    return np.array([BLANK, unknown, *known_values], dtype=object)


def _build_metadata(fitted: FitArtifact, inputs: ExportableInputs, dtype: str) -> dict[str, Any]:
    """Describe the inputs and outputs of a file, to be stored in it."""
    width = f"float32 [N, {count_outputs(fitted)}]"
    outputs = {"values": f"{width}: targets in their original units"}
    if fitted.classes is not None:
        label = "int64 [N]: the index of the most probable class"
        outputs = {"probabilities": f"{width}: calibrated", "label": label}
    if isinstance(inputs, TablePreprocessor):
        input_metadata = _describe_table_inputs(inputs, dtype)
    else:
        shape = get_image_shape(fitted, inputs)
        array_format = f"{dtype} [N, {', '.join(map(str, shape))}]"
        black, white = inputs.low, inputs.high
        if isinstance(inputs, FeaturePreprocessor):
            black, white = 0.0, 255.0
        levels = f"already resized, black = {black:g}, white = {white:g}"
        input_metadata = {"inputs": {"images": f"{array_format}: {levels}"}, "shape": shape}
    target_metadata = {"classes": fitted.classes, "targets": fitted.targets}
    return {**target_metadata, **input_metadata, "outputs": outputs, "l2i_version": version("l2i")}


def _describe_table_inputs(inputs: TablePreprocessor, dtype: str) -> dict[str, Any]:
    numbers, categories = inputs.select("number"), inputs.select("category")
    descriptions: dict[str, str] = {}
    if numbers:
        descriptions["numbers"] = f"{dtype} [N, {len(numbers)}]: raw values, NaN where blank"
    if categories:
        descriptions["categories"] = (
            f"[N, {len(categories)}]: strings in ONNX, '' where blank; int64 in torch.export, the "
            "index among the values, -1 if unknown"
        )
    columns = {
        "numbers": [{"name": c.title} for c in numbers],
        "categories": [{"name": c.name, "values": c.values} for c in categories],
    }
    return {"inputs": descriptions, "columns": columns}


def _trace_model(model: EndToEndModel, feeds: NamedArrays) -> torch.export.ExportedProgram:
    """Trace the model as a graph for any number of rows."""
    num_rows = torch.export.Dim("N")
    tensors = {name: torch.from_numpy(values) for name, values in feeds.items()}
    dynamic_shapes = {name: {0: num_rows} for name in tensors}
    program = torch.export.export(model, (), tensors, dynamic_shapes=dynamic_shapes)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names folders of this machine
    return program


def _serialize_program(program: torch.export.ExportedProgram, metadata: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    extra_files = {METADATA_FILE: json.dumps(metadata, indent=1, ensure_ascii=False)}
    torch.export.save(program, buffer, extra_files=extra_files)
    return buffer.getvalue()


def _run_program(content: bytes, feeds: NamedArrays) -> NamedArrays:
    module = torch.export.load(io.BytesIO(content)).module()
    outputs = module(**{name: torch.from_numpy(values) for name, values in feeds.items()})
    return {name: values.numpy() for name, values in outputs.items()}


def _serialize_onnx(
    program: torch.export.ExportedProgram, metadata: dict[str, Any], inputs: ExportableInputs
) -> bytes:
    import onnx

    input_names = ["codes" if name == "categories" else name for name in metadata["inputs"]]
    output_names = list(metadata["outputs"])
    onnx_program: Any = torch.onnx.export(
        program, dynamo=True, verbose=False, input_names=input_names, output_names=output_names
    )
    model = onnx_program.model_proto
    graph = model.graph
    for item in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        del item.metadata_props[:]  # torch's notes on how the graph was made
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    if isinstance(inputs, TablePreprocessor):
        _insert_label_encoders(model, inputs.select("category"))
    properties = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in metadata.items()
    }
    onnx.helper.set_model_props(model, properties)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _insert_label_encoders(model: Any, columns: list[Column]) -> None:
    """Prepend nodes that turn words into the codes that the graph takes."""
    from onnx import TensorProto, helper

    if not columns:
        return
    count, graph = len(columns), model.graph
    words, codes = ([f"{name}_{i}" for i in range(count)] for name in ("words", "codes"))
    nodes = [helper.make_node("Split", ["categories"], words, axis=1, num_outputs=count)]
    for word, code, column in zip(words, codes, columns, strict=True):
        code_by_word = {value: i for i, value in enumerate(column.values)}
        if BLANK in code_by_word:  # onnxruntime reads pandas' blank cells as "nan"
            code_by_word.setdefault("nan", code_by_word[BLANK])
        attributes: dict[str, Any] = {
            "domain": ONNX_ML_DOMAIN,
            "keys_strings": list(code_by_word),
            "values_int64s": list(code_by_word.values()),
            "default_int64": -1,
        }
        nodes.append(helper.make_node("LabelEncoder", [word], [code], **attributes))
    nodes += [helper.make_node("Concat", codes, ["codes"], axis=1), *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    codes_input = next(value for value in graph.input if value.name == "codes")
    categories = helper.make_tensor_value_info("categories", TensorProto.STRING, ["N", count])
    codes_input.CopyFrom(categories)
    model.opset_import.append(helper.make_opsetid(ONNX_ML_DOMAIN, 3))


def _run_onnx(content: bytes, feeds: NamedArrays) -> NamedArrays:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def check_outputs_match(
    outputs: NamedArrays, expected: NDArray[np.float32], fitted: FitArtifact
) -> None:
    """Check that the file's outputs are the model's, with targets compared in their stds."""
    values = outputs["values" if fitted.classes is None else "probabilities"]
    scale = 1.0 if fitted.classes is not None else np.asarray(fitted.target_std)
    tolerance = TOLERANCE * scale + RELATIVE_TOLERANCE * np.abs(expected)
    is_same = values.shape == expected.shape and (np.abs(values - expected) <= tolerance).all()
    shares = np.asarray(fitted.class_shares or 1.0, dtype=np.float32)
    labels = (values / shares).argmax(axis=1)
    if not is_same or ("label" in outputs and (outputs["label"] != labels).any()):
        problem = "the outputs of the exported model differ from those of the fitted model"
        raise RuntimeError(f"{problem}; no file was written")


@contextmanager
def _silence_exporters() -> Iterator[None]:
    """Suppress what the exporters print, log and warn about."""
    loggers = [logging.getLogger(name) for name in EXPORT_LOGGERS]
    levels = [logger.level for logger in loggers]
    stdout, stderr = redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO())
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), stdout, stderr:
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
