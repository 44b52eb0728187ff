"""Replaces operators by the bodies that the ONNX standard gives them, if the importer lacks or mistakes them.

    Attention(q, k, v)  ->  MatMul, Mul, Softmax, MatMul and what computes the mask

`onnx.inliner` does the same, but it fails at a node that leaves out an optional input, and it copies the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import defs, helper, shape_inference

from ..nodes import attribute_of, graphs_of, with_nodes
from ..standard import is_standard, opset_of

INLINED = frozenset(
    {
        "Attention",
        "CausalConvWithState",
        "CenterCropPad",
        "LinearAttention",
        "NegativeLogLikelihoodLoss",
        "RotaryEmbedding",
        "SoftmaxCrossEntropyLoss",
        "SwiGLU",
        "Swish",
    }
)
"""Operators of ONNX that are replaced by their bodies, unless the importer takes them."""

_OF_PLAIN_ATTENTION = frozenset(
    {"is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision"}
)
"""The attributes of an Attention of opset 23; later ones have windows."""

_DEPTH = 8  # bodies within bodies


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replaces operators by the bodies of the standard.

    Args:
        model: The model; it is not changed.

    Returns:
        The new model; the same one if it has nothing to replace.
    """
    opset = opset_of(model)
    for depth in range(_DEPTH):
        if not any(map(_is_inlined, model.graph.node)):
            break
        types = types_of(model)
        nodes: list[onnx.NodeProto] = []
        for position, node in enumerate(model.graph.node):
            nodes += _inlined(node, opset, types, f"{node.op_type}_{depth}_{position}")
        model = with_nodes(model, nodes)
    return model


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, with those of their branches and loop bodies."""
    for node in nodes:
        yield node
        for graph in graphs_of(node):
            yield from all_nodes(graph.node)


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, and the branches and loop bodies in it."""
    yield graph
    for node in all_nodes(graph.node):
        yield from graphs_of(node)


def is_plain(node: onnx.NodeProto) -> bool:
    """Whether the importer takes an Attention as it is: in float32, without windows, lengths and scores as output."""
    precision = attribute_of(node, "softmax_precision", onnx.TensorProto.FLOAT)
    known = all(attribute.name in _OF_PLAIN_ATTENTION for attribute in node.attribute)
    return known and not any(node.input[6:]) and not any(node.output[3:]) and precision == onnx.TensorProto.FLOAT


def _is_inlined(node: onnx.NodeProto) -> bool:
    return is_standard(node) and node.op_type in INLINED and not (node.op_type == "Attention" and is_plain(node))


def _inlined(
    node: onnx.NodeProto, opset: int, types: Mapping[str, onnx.TypeProto], prefix: str
) -> list[onnx.NodeProto]:
    """The nodes that stand for a node."""
    body = _body(node, opset, types) if _is_inlined(node) else None
    return [node] if body is None else _renamed(node, body, prefix)


def _body(node: onnx.NodeProto, opset: int, types: Mapping[str, onnx.TypeProto]) -> onnx.FunctionProto | None:
    """The body of a node's operator; None if there is none for this node."""
    schema = defs.get_schema(node.op_type, opset, "")
    function = onnx.FunctionProto()
    versions = [version for version in schema.function_opset_versions if version <= opset]
    if versions:
        function.ParseFromString(schema.get_function_with_opset_version(max(versions)))
        return function
    versions = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
    if not versions or any(name and name not in types for name in node.input):
        return None
    inputs = [types[name].SerializeToString() if name else b"" for name in node.input]
    content = schema.get_context_dependent_function_with_opset_version(max(versions), node.SerializeToString(), inputs)
    function.ParseFromString(content)
    return function if function.node else None


def _renamed(node: onnx.NodeProto, function: onnx.FunctionProto, prefix: str) -> list[onnx.NodeProto]:
    """The nodes of a body between the inputs and the outputs of a node."""
    given = {attribute.name: attribute for attribute in node.attribute}
    defaults = {attribute.name: attribute for attribute in function.attribute_proto}
    attributes = {**defaults, **given}
    names = dict.fromkeys(function.input, "") | dict(zip(function.input, node.input, strict=False))
    for inner, outer in zip(function.output, node.output, strict=False):
        if outer:
            names[inner] = outer
    return [copied_node(inner, names, attributes, prefix) for inner in function.node]


def copied_node(
    node: onnx.NodeProto, names: dict[str, str], attributes: Mapping[str, onnx.AttributeProto], prefix: str
) -> onnx.NodeProto:
    """A node of a body, with other names and with the attributes of the node that the body stands for.

    Args:
        node: The node; it is not changed.
        names: The new names by the old ones. Names that are not known get the prefix, and are added.
        attributes: What the body's attributes refer to, by name.
        prefix: Makes the new names different from all others.
    """

    def renamed(name: str) -> str:
        return names.setdefault(name, f"{prefix}_{name}") if name else ""

    copy = helper.make_node(node.op_type, map(renamed, node.input), map(renamed, node.output), domain=node.domain)
    copy.name = f"{prefix}_{node.name or ''.join(node.output[:1])}"
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.append(attribute)
        elif attribute.ref_attr_name in attributes:
            copy.attribute.append(attributes[attribute.ref_attr_name])
            copy.attribute[-1].name = attribute.name
    for graph in graphs_of(copy):
        for value in (*graph.input, *graph.initializer, *graph.output, *graph.value_info):
            value.name = renamed(value.name)
        nodes = [copied_node(inner, names, attributes, prefix) for inner in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
    return copy


def types_of(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """The types of all values of a model whose types ONNX can infer, by name."""
    inferred = shape_inference.infer_shapes(model, data_prop=True).graph
    types = {value.name: value.type for value in (*inferred.input, *inferred.value_info, *inferred.output)}
    for tensor in inferred.initializer:
        types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return types
