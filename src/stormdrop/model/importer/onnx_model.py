"""Reads an ONNX model and checks it, so that an error is one clear line before any compiler sees the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, version_converter

from ...errors import ModelError, one_line, shown
from ...runtime.sizes import TensorInfo
from ..inputs.inputs import Values
from ..onnx.contributed import known_shapes
from ..onnx.deciding import refuse_deciding_inputs
from ..onnx.rewrites.simplify import clean
from ..onnx.sizes import is_too_large, too_large
from ..onnx.source import described, read_source
from ..onnx.standard import is_standard, opset_of, qualified_name
from ..onnx.training import refuse_training
from ..onnx.weights import KERNEL_TYPES, move_out, moved_in
from .converters.onnxruntime_part import DOMAIN, OPERATOR

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
        converted: Whether the source was converted from an old opset.
        ignored: The names of the inputs that the model does not use.
        unclean: Why the model could not be cleaned; `cleaned` is then `source`.
    """

    name: str
    source: onnx.ModelProto
    cleaned: onnx.ModelProto
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[str, ...]
    converted: bool
    ignored: tuple[str, ...] = ()
    unclean: str | None = None


def load_onnx(
    model: str | Path | onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Values | None = None,
    name: str | None = None,
    weights: Path | None = None,
) -> OnnxGraph:
    """Reads, checks and cleans an ONNX model. The arguments are those of `read_source`.

    Raises:
        ModelError: The file cannot be read, or a shape is open or wrong.
    """
    read = read_source(model, shapes, values, name, weights)
    name = read.name
    if opset_of(read.model, _OLDEST_OPSET) < _OLDEST_OPSET:
        refuse_training(read.model, name)  # the conversion drops what says that a Dropout trains
    source, unclean = _with_supported_opset(read.model, name, weights), None
    try:
        with known_shapes(source):
            cleaned = clean(source)
        if weights is not None:
            cleaned = move_out(cleaned, weights)  # what cleaning has computed
    except Exception as error:  # noqa: BLE001  whatever it is, the model is tried as a part that onnxruntime runs
        # onnxscript's passes raise many types, for a broken model and also for an operator that they do not know. In
        # the latter case the check of the operators has the better message.
        unsupported = unsupported_nodes(source).values()
        unclean = next(iter(unsupported), f"it cannot be simplified: {one_line(_root(error))}")
        cleaned = source
    try:
        _check_order(cleaned, name)
    except ModelError as error:
        _check_order(source, name)
        cleaned, unclean = source, f"it cannot be simplified: {error}"
    refuse_training(cleaned, name)
    refuse_deciding_inputs(cleaned, name)
    _check_sizes(cleaned, name)
    inputs = tuple(_tensor_info(value, name) for value in cleaned.graph.input)
    outputs = tuple(value.name for value in cleaned.graph.output)
    return OnnxGraph(name, source, cleaned, inputs, outputs, source is not read.model, read.ignored, unclean)


def unsupported_nodes(model: onnx.ModelProto) -> dict[int, str]:
    """The positions of the nodes that the importer does not know, and what to say about each."""
    known = _importable_operators() | {"Constant"} - {f"{DOMAIN}.{OPERATOR}"}
    local = {(function.domain, function.name) for function in model.functions}
    unsupported = {}
    for position, node in enumerate(model.graph.node):
        if (node.domain, node.op_type) in local:
            continue
        if qualified_name(node) not in known:
            domain = "" if is_standard(node) else f"{shown(node.domain)}."
            unsupported[position] = f"operator {domain}{described(node)} is not supported"
    return unsupported


def _root(error: BaseException) -> BaseException:
    """The error that an error comes from: onnxscript's passes wrap what they catch."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _check_order(model: onnx.ModelProto, name: str) -> None:
    """Raises `ModelError` for the first node that reads what no node before it computes, as in a cycle."""
    known = {"", *(value.name for value in (*model.graph.input, *model.graph.initializer))}
    for node in model.graph.node:
        for value in node.input:
            if value not in known:
                raise ModelError(
                    f"{name}: {described(node)} reads {shown(value)!r}, which is no input, no constant and not the "
                    f"result of an earlier node"
                )
        known.update(node.output)
    for output in model.graph.output:
        if output.name not in known:
            raise ModelError(f"{name}: nothing computes its output {shown(output.name)!r}")


def _check_sizes(model: onnx.ModelProto, name: str) -> None:
    """Raises `ModelError` for the first tensor that is larger than the memory, as far as its shape is known here."""
    producers = {output: node for node in model.graph.node for output in node.output}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if is_too_large(shape, 1):
            origin = f"the result of {described(producers[value.name])}" if value.name in producers else "an input"
            raise ModelError(f"{name}: {origin} has {too_large(shape)}")


def _importable_operators() -> frozenset[str]:
    from tvm.relax.frontend.onnx import onnx_frontend

    from .converters import CONVERTERS

    # This function is private, but it is the only list of these operators, and the importer's own error names no node.
    return frozenset(onnx_frontend._get_convert_map()) | frozenset(CONVERTERS)


def _with_supported_opset(model: onnx.ModelProto, name: str, weights: Path | None) -> onnx.ModelProto:
    """The model, converted to opset 13 if its opset is too old to be imported."""
    opset = opset_of(model, _OLDEST_OPSET)
    if opset >= _OLDEST_OPSET:
        return model
    try:
        converted = version_converter.convert_version(moved_in(model), 13)
        return converted if weights is None else move_out(converted, weights)
    except Exception as error:
        # The converter raises RuntimeError, ConvertError or ValueError.
        raise ModelError(f"{name}: cannot be converted from opset {opset}: {one_line(error)}") from error


def _tensor_info(value: onnx.ValueInfoProto, name: str) -> TensorInfo:
    tensor = value.type.tensor_type
    shape = tuple(dim.dim_value for dim in tensor.shape.dim)
    dtype = KERNEL_TYPES.get(tensor.elem_type)
    if dtype is None:
        known = TensorProto.DataType.values()
        kind = TensorProto.DataType.Name(tensor.elem_type) if tensor.elem_type in known else tensor.elem_type
        raise ModelError(
            f"{name}: input {shown(value.name)!r} is {str(kind).lower()}, which is not supported; inputs are "
            f"{', '.join(KERNEL_TYPES.values())}"
        )
    return TensorInfo(value.name, shape, dtype)
