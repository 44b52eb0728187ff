"""What rewrites of an ONNX graph share: other nodes in the place of some, with constants of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..nodes import with_nodes
from ..segments import Wiring


class Rewriting:
    """Rewrites the nodes of a model one by one, in their order. A subclass says what stands in the place of a node.

    Args:
        model: The model; it is not changed.

    Attributes:
        wiring: Who computes what in its graph.
        constants: Its constants by name.
        added: The constants of the new nodes.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.wiring = Wiring(graph)
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.added: list[onnx.TensorProto] = []
        self._model = model
        described = (*graph.input, *graph.value_info, *graph.output)
        self._names = {*self.constants, *self.wiring.producers, *(value.name for value in described)}

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes in the place of a node."""
        raise NotImplementedError

    def rewritten(self) -> onnx.ModelProto:
        """The model with other nodes, without those that no output needs; the model itself if no constant was added.

        Weights in floats, which nothing reads any more, would otherwise be computed.
        """
        nodes = [new for node in self._model.graph.node for new in self.replaced(node)]
        if not self.added:
            return self._model
        rewritten = with_nodes(self._model, nodes)
        graph = rewritten.graph
        graph.initializer.extend(self.added)
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

    def producer(self, name: str) -> onnx.NodeProto | None:
        """The node that makes a value; None if there is none."""
        position = self.wiring.producers.get(name)
        return None if position is None else self.wiring.nodes[position]

    def constant(self, name: str, value: Any) -> str:
        """The name of a new constant."""
        fresh = self.fresh(name)
        self.added.append(numpy_helper.from_array(np.asarray(value), fresh))
        return fresh

    def fresh(self, name: str) -> str:
        """A name that no value of the graph has yet."""
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name
