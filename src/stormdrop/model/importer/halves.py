"""Makes a model of float32 of one of float16 or bfloat16, whose inputs and outputs keep their types.

    x (float16) -> Conv -> y (float16)    becomes    x -> Cast -> Conv in float32 -> Cast -> y

Such a model stores halves to be small. A CPU without arithmetic for them converts each number that it multiplies and
rounds each that it adds, so onnxruntime, too, computes most operators in float32 there. Here the weights are converted
once, before the compilation. What is then computed is at least as exact as what the model asks for. In which precision
a kernel computes is decided later, by `--precision`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .functions import all_nodes

HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)

_TYPES = ("to", "dtype", "output_dtype", "output_datatype", "precision", "stash_type", "softmax_precision")
"""Attributes that are a type of ONNX."""


def has_halves(model: onnx.ModelProto) -> bool:
    """Whether something in a model is float16 or bfloat16.

    Args:
        model: The model.
    """
    graphs = list(_graphs(model))
    return (
        any(tensor.data_type in HALVES for graph in graphs for tensor in graph.initializer)
        or any(value.type.tensor_type.elem_type in HALVES for graph in graphs for value in _values(graph))
        or any(
            attribute.t.data_type in HALVES or (attribute.name in _TYPES and attribute.i in HALVES)
            for node in _nodes(model)
            for attribute in node.attribute
        )
    )


def compute_in_float32(model: onnx.ModelProto) -> None:
    """Changes a model of halves into one that computes the same in float32, and converts at its inputs and outputs.

    Args:
        model: The model, which is changed; nothing happens if it has no halves.
    """
    if not has_halves(model):
        return
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: _half(value) for value in graph.input if _half(value) and value.name not in constants}
    outputs = {value.name: _half(value) for value in graph.output if _half(value) and value.name not in inputs}
    wide = _wide_names(model, [*inputs, *outputs])
    for inner in _graphs(model):
        for value in _values(inner):
            _widen_type(value.type)
        for tensor in inner.initializer:
            _widen_tensor(tensor)
            tensor.name = wide.get(tensor.name, tensor.name)
        for value in inner.output if inner is not graph else ():
            value.name = wide.get(value.name, value.name)
    for node in all_nodes(graph.node):
        for names in (node.input, node.output):
            names[:] = [wide.get(name, name) for name in names]
    for node in _nodes(model):
        for attribute in node.attribute:
            _widen_attribute(attribute)
    for value in (*graph.input, *graph.output):
        if half := inputs.get(value.name) or outputs.get(value.name):
            value.type.tensor_type.elem_type = half
    before = [helper.make_node("Cast", [name], [wide[name]], to=TensorProto.FLOAT) for name in inputs]
    after = [helper.make_node("Cast", [wide[name]], [name], to=half) for name, half in outputs.items()]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)


def _half(value: onnx.ValueInfoProto) -> int:
    """The type of a tensor if it is a half; else 0."""
    kind = value.type.tensor_type.elem_type
    return kind if kind in HALVES else 0


def _wide_names(model: onnx.ModelProto, names: list[str]) -> dict[str, str]:
    """A new name for the float32 form of each of these values."""
    used = {name for node in _nodes(model) for name in (*node.input, *node.output)}
    used |= {value.name for graph in _graphs(model) for value in (*_values(graph), *graph.initializer)}
    wide = {}
    for name in names:
        new = f"{name}_float32"
        while new in used:
            new += "_"
        used.add(new)
        wide[name] = new
    return wide


def _widen_type(kind: onnx.TypeProto) -> None:
    if kind.HasField("tensor_type") and kind.tensor_type.elem_type in HALVES:
        kind.tensor_type.elem_type = TensorProto.FLOAT
    for field in ("sequence_type", "optional_type"):
        if kind.HasField(field):
            _widen_type(getattr(kind, field).elem_type)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in HALVES:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))


def _widen_attribute(attribute: onnx.AttributeProto) -> None:
    if attribute.name in _TYPES and attribute.i in HALVES:
        attribute.i = TensorProto.FLOAT
    for tensor in (attribute.t, *attribute.tensors):
        _widen_tensor(tensor)
    for kind in (attribute.tp, *attribute.type_protos):
        _widen_type(kind)


def _values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*graph.input, *graph.value_info, *graph.output)


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes, with those of branches, bodies of loops, and functions."""
    yield from all_nodes(model.graph.node)
    for function in model.functions:
        yield from all_nodes(function.node)


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The graph of a model, and those of its branches and bodies of loops."""
    yield model.graph
    for node in _nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs
