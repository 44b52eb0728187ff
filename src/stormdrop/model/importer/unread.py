"""Removes the nodes and the constants of a model that nothing reads any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx

from .segments import Wiring


def without_unread(
    model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto], added: Sequence[onnx.TensorProto]
) -> onnx.ModelProto:
    """A model with other nodes, without those of them that no output needs: weights in floats would be computed.

    Args:
        model: The model; it is not changed.
        nodes: The nodes in the place of its own, in the order of their execution.
        added: Constants that they read besides the model's own.
    """
    rewritten = onnx.ModelProto()
    rewritten.CopyFrom(model)
    graph = rewritten.graph
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(added)
    wiring = Wiring(graph)
    needed, kept = set(wiring.outputs), []
    for node, reads in zip(reversed(wiring.nodes), reversed(wiring.reads), strict=True):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(reads)
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(constants)
    return rewritten
