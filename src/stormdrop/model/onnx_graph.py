"""Reading an ONNX model: what is wrong with it is said here, in one line, before any compiler sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import helper, shape_inference, version_converter

from ..errors import ModelError
from .metadata import TensorInfo
from .onnx_clean import clean

_DEFAULT_DOMAINS = ("", "ai.onnx")
_OLDEST_OPSET = 7
"""Before opset 7 operators broadcast by attributes, which the importer ignores."""


@dataclass(frozen=True)
class OnnxGraph:
    """A checked model: as read (with sizes filled in), and cleaned for the import."""

    name: str
    source: onnx.ModelProto
    cleaned: onnx.ModelProto
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


def load_onnx(model: str | Path | onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]] | None = None) -> OnnxGraph:
    """Read, check and clean an ONNX model from a file or from memory.

    `shapes` gives the sizes of inputs whose shape the model leaves open. Raises `ModelError`.
    """
    read = model if isinstance(model, onnx.ModelProto) else _read(Path(model))
    name = read.graph.name or "model" if isinstance(model, onnx.ModelProto) else Path(model).stem
    source = onnx.ModelProto()
    source.CopyFrom(read)
    _fill_shapes(source, shapes or {}, name)
    _check_operators(source, name)
    source = _modern(source, name)
    try:
        cleaned = shape_inference.infer_shapes(clean(source), data_prop=True)
    except Exception as error:
        # onnxscript's passes and onnx's inference raise their own types and plain ones; all mean a broken model.
        raise ModelError(f"{name}: cannot be simplified: {_line(error)}") from error
    inputs = tuple(_info(value, name) for value in cleaned.graph.input)
    outputs = tuple(_info(value, name) for value in cleaned.graph.output)
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
        raise ModelError(f"{path}: cannot be read: {_line(error)}") from error
    if not model.graph.node:
        raise ModelError(f"{path}: not an ONNX model: it has no nodes")
    return model


def _fill_shapes(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], name: str) -> None:
    """Write the given sizes into the graph's inputs; raises `ModelError` for a size that stays open."""
    held = {tensor.name for tensor in model.graph.initializer}
    used = {value for node in model.graph.node for value in node.input}
    inputs = {value.name: value for value in model.graph.input if value.name not in held and value.name in used}
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
                raise ModelError(
                    f"{name}: dimension {axis}{symbol} of input {key!r} has no size; give the input's shape"
                )


def _check_operators(model: onnx.ModelProto, name: str) -> None:
    """Raise `ModelError` for the first node that the importer does not know."""
    known = _importable_operators() | {"Sum", "Dropout", "BatchNormalization", "Constant", "If"}
    local = {(function.domain, function.name) for function in model.functions}
    for index, node in enumerate(model.graph.node):
        if (node.domain, node.op_type) in local:
            continue
        if node.domain not in _DEFAULT_DOMAINS or node.op_type not in known:
            operator = node.op_type if node.domain in _DEFAULT_DOMAINS else f"{node.domain}.{node.op_type}"
            where = repr(node.name) if node.name else f"number {index}, which gives {node.output[0]!r}"
            raise ModelError(f"{name}: operator {operator} is not supported (node {where})")


def _importable_operators() -> frozenset[str]:
    from tvm.relax.frontend.onnx import onnx_frontend

    # Private, but the only list of what the importer takes; its own error names no node.
    return frozenset(onnx_frontend._get_convert_map())


def _modern(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    opset = next((o.version for o in model.opset_import if o.domain in _DEFAULT_DOMAINS), 1)
    if opset >= _OLDEST_OPSET:
        return model
    try:
        return version_converter.convert_version(model, 13)
    except Exception as error:
        # The converter raises RuntimeError, ConvertError or ValueError, each without a common base.
        raise ModelError(f"{name}: cannot be converted from opset {opset}: {_line(error)}") from error


def _info(value: onnx.ValueInfoProto, model: str) -> TensorInfo:
    tensor = value.type.tensor_type
    shape = tuple(dim.dim_value for dim in tensor.shape.dim)
    if not tensor.HasField("shape") or any(extent <= 0 for extent in shape):
        raise ModelError(f"{model}: the shape of {value.name!r} depends on data and is not supported")
    return TensorInfo(value.name, shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type).name)


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
