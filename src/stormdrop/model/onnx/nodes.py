"""The names that a node of an ONNX graph reads and makes, with those of its branches and bodies."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


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
