"""Makes a model of float32 of one of float16 or bfloat16, whose inputs and outputs keep their types.

    x (float16) -> Conv -> y (float16)    becomes    x -> Cast -> Conv in float32 -> Cast -> y

Such a model stores halves to be small. A CPU without arithmetic for them converts each number that it multiplies and
rounds each that it adds, so onnxruntime, too, computes most operators in float32 there. Here the weights are converted
once, before the compilation. What is then computed is at least as exact as what the model asks for. In which precision
a kernel computes is decided later, by `--precision`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..contributed import DOMAIN
from ..nodes import graphs_of, names_read
from ..standard import is_standard
from ..weights import array_of
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
    if not has_halves(model) or any(is_standard(node, "BitCast") for node in _nodes(model)):
        return  # a BitCast reads the bits of a half
    graph = model.graph
    read = {name for node in graph.node for name in names_read(node)}
    constants = {tensor.name for tensor in graph.initializer}
    given = [value for value in graph.input if value.name not in constants]
    inputs = {value.name: _half(value) for value in given if _half(value)}
    outputs = {value.name: _half(value) for value in graph.output if _half(value) and value.name not in inputs}
    wide = _wide_names(model, [*(name for name in inputs if name in read), *outputs])
    for inner in _graphs(model):
        for value in _values(inner):
            _widen_type(value.type)
        for tensor in inner.initializer:
            _widen_tensor(tensor)
    for function in model.functions:
        for value in function.value_info:
            _widen_type(value.type)
        for attribute in function.attribute_proto:
            _widen_attribute(attribute)
    for node in _nodes(model):
        if is_standard(node) or node.domain == DOMAIN:
            for attribute in node.attribute:
                _widen_attribute(attribute)
    for named in (*graph.initializer, *graph.value_info):
        named.name = wide.get(named.name, named.name)
    _rename(graph.node, wide)
    for value in (*given, *graph.output):
        if half := inputs.get(value.name) or outputs.get(value.name):
            value.type.tensor_type.elem_type = half
    kept = [value for value in graph.input if value.name not in constants or value.name not in wide]
    before = [helper.make_node("Cast", [name], [wide[name]], to=TensorProto.FLOAT) for name in inputs if name in wide]
    after = [helper.make_node("Cast", [wide[name]], [name], to=half) for name, half in outputs.items()]
    nodes = [*before, *graph.node, *after]
    del graph.node[:], graph.input[:]
    graph.node.extend(nodes)
    graph.input.extend(kept)


def _rename(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    """Gives values other names, also where branches and bodies read them that have no value of that name."""
    for node in nodes:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
        for graph in graphs_of(node):
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own |= {name for inner in graph.node for name in inner.output}
            visible = {old: new for old, new in names.items() if old not in own}
            _rename(graph.node, visible)
            for value in graph.output:
                value.name = visible.get(value.name, value.name)


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
        tensor.CopyFrom(numpy_helper.from_array(array_of(tensor).astype(np.float32), tensor.name))


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
        yield from graphs_of(node)
