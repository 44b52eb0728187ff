"""The nodes of an ONNX model as layers, and which of them the values of its import compute."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

import onnx

from ..artifact.layers import Layer, layers_of, path_of
from ..graph.flow import Flow, Marks, Value, followed
from ..onnx.nodes import names_read
from ..onnx.standard import is_standard

_SAME = {"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
"""Operators that leave the elements of a tensor where they are."""

_OF_SHAPES = {"Constant", "ConstantOfShape", "EyeLike", "Shape", "Size"}
"""Operators whose result is known as soon as all shapes are."""


def layers_of_nodes(model: onnx.ModelProto) -> tuple[Layer, ...]:
    """The layers of a model: its nodes without constants, in their order."""
    nodes = _computing(model)
    return layers_of([(*_path(node), node.op_type, node.name or node.output[0]) for node in nodes])


def marks_of_nodes(
    source: onnx.ModelProto, imported: onnx.ModelProto, names: Mapping[Hashable, Collection[str]]
) -> Marks:
    """The layers that the variables of an import compute.

    Args:
        source: The model whose nodes are the layers.
        imported: What rewrites have made of it, whose nodes have become variables.
        names: The values of `imported` that each variable is.

    Returns:
        The positions of the layers, by the keys of `names`.
    """
    own: Marks = {
        name: frozenset([position]) for position, node in enumerate(_computing(source)) for name in node.output if name
    }
    marks = followed(_flow(source), own, _flow(imported))
    none: frozenset[int] = frozenset()
    return {key: none.union(*(marks.get(name, none) for name in values)) for key, values in names.items() if values}


def _computing(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if not is_standard(node, "Constant") and any(node.output)]


def _flow(model: onnx.ModelProto) -> Flow:
    constants = {tensor.name for tensor in model.graph.initializer}
    values = []
    for node in model.graph.node:
        of_shapes = is_standard(node) and node.op_type in _OF_SHAPES
        same = is_standard(node) and node.op_type in _SAME
        reads = () if of_shapes else tuple(name for name in names_read(node) if name and name not in constants)
        makes = tuple(name for name in node.output if name)
        values.append(Value(makes, reads, moves=not same))
    return Flow.of(values, [output.name for output in model.graph.output])


def _path(node: onnx.NodeProto) -> tuple[str, str]:
    """What `path_of` says of a node; one without a name is called after what it makes."""
    first = next(name for name in node.output if name)
    made = first.removesuffix("_output_0")
    return path_of(node.name or (f"{node.op_type}_{made}" if made.isdigit() else made), node.op_type)
