"""What a node of an ONNX graph says: its attributes, the names that it reads and makes, its branches and bodies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from onnx import helper

from .standard import is_standard


def attribute_of(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """An attribute of a node: a number, a text, a tensor, a graph, or a list of these.

    Args:
        node: The node.
        name: The name of the attribute.
        default: What is returned if the node lacks the attribute, or has one of another type than the default. The
            standard allows no other type, and onnxruntime refuses such a model.
    """
    for entry in node.attribute:
        if entry.name == name and not entry.ref_attr_name:
            value = as_text(helper.get_attribute_value(entry))
            return value if default is None or isinstance(value, type(default)) else default
    return default


def as_text(value: Any) -> Any:
    """The value of an attribute; its bytes become text. What is no UTF-8 becomes a text that nothing is called."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return type(value)(map(as_text, value)) if isinstance(value, list | tuple) else value


def constants_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The constant tensors of a graph by name: its initializers, and the values of its `Constant` nodes."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if is_standard(node, "Constant") and (value := attribute_of(node, "value", onnx.TensorProto())).data_type:
            tensors[node.output[0]] = value
    return tensors


def with_nodes(model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> onnx.ModelProto:
    """A copy of a model that has these nodes in the place of its own."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """The names of a node's inputs, and all names that its branches and bodies read."""
    yield from node.input
    for graph in graphs_of(node):
        yield from (output.name for output in graph.output)
        for inner in graph.node:
            yield from names_read(inner)


def names_made(node: onnx.NodeProto) -> Iterator[str]:
    """The names of a node's outputs, and all names that its branches and bodies define."""
    yield from node.output
    for graph in graphs_of(node):
        yield from (value.name for value in (*graph.input, *graph.initializer))
        for inner in graph.node:
            yield from names_made(inner)


def graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The branches and bodies of a node, without those inside them."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
