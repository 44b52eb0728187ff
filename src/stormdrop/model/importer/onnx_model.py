"""Reads an ONNX model and checks it, so that an error is one clear line before any compiler sees the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import helper, version_converter

from ...errors import ModelError, one_line
from ..metadata import TensorInfo
from .simplify import clean

_DEFAULT_DOMAINS = ("", "ai.onnx")
_OLDEST_OPSET = 7
"""Older models are converted: before opset 7, operators broadcast by attributes, which the importer ignores."""


@dataclass(frozen=True)
class OnnxGraph:
    """A checked model.

    Attributes:
        name: The name of the model.
        source: The model as it was read, with the sizes of its inputs filled in.
        cleaned: The model as it is imported; see `simplify.clean`.
        inputs: The inputs.
        outputs: The names of the outputs.
    """

    name: str
    source: onnx.ModelProto
    cleaned: onnx.ModelProto
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[str, ...]


def load_onnx(model: str | Path | onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]] | None = None) -> OnnxGraph:
    """Read, check and clean an ONNX model.

    Args:
        model: The path of an ONNX file, or a model in memory, which is not changed.
        shapes: The shapes of inputs whose shape the model leaves open, by input name.

    Raises:
        ModelError: The file cannot be read, a shape is open or wrong, or an operator is not supported.
    """
    read = model if isinstance(model, onnx.ModelProto) else _read(Path(model))
    name = read.graph.name or "model" if isinstance(model, onnx.ModelProto) else Path(model).stem
    source = onnx.ModelProto()
    source.CopyFrom(read)
    _drop_unused_inputs(source)
    _fill_shapes(source, shapes or {}, name)
    source = _with_supported_opset(source, name)
    try:
        cleaned = clean(source)
    except Exception as error:
        # onnxscript's passes raise many types, for a broken model and also for an operator that they do not know. In
        # the latter case the check of the operators has the better message.
        _check_operators(source, name)
        raise ModelError(f"{name}: cannot be simplified: {one_line(error)}") from error
    _check_operators(cleaned, name)
    inputs = tuple(_tensor_info(value) for value in cleaned.graph.input)
    outputs = tuple(value.name for value in cleaned.graph.output)
    return OnnxGraph(name, source, cleaned, inputs, outputs)


def _read(path: Path) -> onnx.ModelProto:
    if not path.exists():
        raise ModelError(f"{path}: no such file")
    if not path.is_file():
        raise ModelError(f"{path}: not a file")
    try:
        model = onnx.load(str(path))
    except DecodeError as error:
        raise ModelError(f"{path}: not an ONNX model, or a truncated one") from error
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{path}: cannot be read: {one_line(error)}") from error
    if not model.graph.node:
        raise ModelError(f"{path}: not an ONNX model: it has no nodes")
    return model


def _drop_unused_inputs(model: onnx.ModelProto) -> None:
    used = _used_names(model.graph) | {output.name for output in model.graph.output}
    kept = [value for value in model.graph.input if value.name in used]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _used_names(graph: onnx.GraphProto) -> set[str]:
    """The names of all inputs of nodes, including the nodes of branches and loop bodies."""
    names = {name for node in graph.node for name in node.input}
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                names |= _used_names(inner) | {output.name for output in inner.output}
    return names


def _fill_shapes(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], name: str) -> None:
    """Write the sizes into the graph's inputs. Raises `ModelError` for a wrong shape, and for a size that is open."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = {value.name: value for value in model.graph.input if value.name not in initializers}
    for unknown in sorted(set(shapes) - set(inputs)):
        raise ModelError(f"{name}: has no input {unknown!r}; its inputs are {', '.join(map(repr, inputs))}")
    for key, value in inputs.items():
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            raise ModelError(f"{name}: input {key!r} is no tensor of known rank")
        if key in shapes and len(shapes[key]) != len(tensor.shape.dim):
            raise ModelError(f"{name}: input {key!r} has {len(tensor.shape.dim)} dimensions, not {len(shapes[key])}")
        for axis, dim in enumerate(tensor.shape.dim):
            if key in shapes:
                if dim.dim_value and dim.dim_value != shapes[key][axis]:
                    raise ModelError(
                        f"{name}: dimension {axis} of input {key!r} is {dim.dim_value}, not {shapes[key][axis]}"
                    )
                dim.dim_value = shapes[key][axis]
            if dim.dim_value <= 0:
                symbol = f" ({dim.dim_param})" if dim.dim_param else ""
                example = "x".join(str(max(size.dim_value, 0) or "N") for size in tensor.shape.dim)
                raise ModelError(
                    f"{name}: dimension {axis}{symbol} of input {key!r} has no size; give the shape of that input, "
                    f"as in --shape {key}={example} (shapes= in Python)"
                )


def _check_operators(model: onnx.ModelProto, name: str) -> None:
    """Raise `ModelError` for the first node that the importer does not know."""
    known = _importable_operators() | {"Constant", "If"}
    local = {(function.domain, function.name) for function in model.functions}
    for index, node in enumerate(model.graph.node):
        if (node.domain, node.op_type) in local:
            continue
        if node.domain not in _DEFAULT_DOMAINS or node.op_type not in known:
            operator = node.op_type if node.domain in _DEFAULT_DOMAINS else f"{node.domain}.{node.op_type}"
            label = repr(node.name) if node.name else f"number {index}, whose output is {node.output[0]!r}"
            raise ModelError(f"{name}: operator {operator} is not supported (node {label})")


def _importable_operators() -> frozenset[str]:
    from tvm.relax.frontend.onnx import onnx_frontend

    # This function is private, but it is the only list of these operators, and the importer's own error names no node.
    return frozenset(onnx_frontend._get_convert_map())


def _with_supported_opset(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model, converted to opset 13 if its opset is too old to be imported."""
    opset = next((entry.version for entry in model.opset_import if entry.domain in _DEFAULT_DOMAINS), 1)
    if opset >= _OLDEST_OPSET:
        return model
    try:
        return version_converter.convert_version(model, 13)
    except Exception as error:
        # The converter raises RuntimeError, ConvertError or ValueError.
        raise ModelError(f"{name}: cannot be converted from opset {opset}: {one_line(error)}") from error


def _tensor_info(value: onnx.ValueInfoProto) -> TensorInfo:
    tensor = value.type.tensor_type
    shape = tuple(dim.dim_value for dim in tensor.shape.dim)
    return TensorInfo(value.name, shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type).name)
