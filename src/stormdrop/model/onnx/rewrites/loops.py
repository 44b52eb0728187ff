"""Unrolls loops whose number of steps is known: ONNX's Loop with a constant trip count, and Scan.

Loop(3, True, h, body)  ->  body(0, h), body(1, _), body(2, _)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from ..nodes import attribute_of, constants_of, names_made, names_read, with_nodes
from ..standard import is_standard, opset_of
from ..weights import array_of
from .functions import copied_node, types_of

_LARGEST = 4096
"""The most nodes that an unrolled loop may have."""
_AXES_ARE_AN_INPUT = 13


def unroll_loops(model: onnx.ModelProto) -> onnx.ModelProto:
    """Unrolls the loops of a model whose number of steps is known and whose bodies are small enough.

    Args:
        model: The model; it is not changed.

    Returns:
        The new model; the same one if there is nothing to unroll.
    """
    if not any(is_standard(node, "Loop", "Scan") for node in model.graph.node):
        return model
    types = types_of(model)
    constants = constants_of(model.graph)
    opset = opset_of(model)
    nodes: list[onnx.NodeProto] = []
    for position, node in enumerate(model.graph.node):
        unrolled = None
        if is_standard(node, "Loop", "Scan"):
            loop = _Unrolled(node, f"{node.op_type}_{position}", opset)
            unrolled = loop.scan(types) if node.op_type == "Scan" else loop.loop(constants)
        nodes += [node] if unrolled is None else unrolled
    return with_nodes(model, nodes)


class _Unrolled:
    """The nodes that stand for a loop."""

    def __init__(self, node: onnx.NodeProto, prefix: str, opset: int) -> None:
        self._node, self._prefix, self._opset = node, prefix, opset
        self._body: onnx.GraphProto = attribute_of(node, "body")
        self._nodes: list[onnx.NodeProto] = []

    def loop(self, constants: Mapping[str, onnx.TensorProto]) -> list[onnx.NodeProto] | None:
        """Takes a constant trip count, and a condition that stays true."""
        trips, condition = (constants.get(name) if name else None for name in self._node.input[:2])
        endless = not self._node.input[1] or (condition is not None and bool(_first(condition)))
        if trips is None or not endless or not self._stays_true():
            return None
        count = int(_first(trips))
        if not 0 < count * len(self._body.node) <= _LARGEST:
            return None
        states = list(self._node.input[2:])
        scanned: list[list[str]] = [[] for _ in self._body.output[1 + len(states) :]]
        true = self._constant("true", np.array(True))
        for step in range(count):
            index = self._constant(f"index_{step}", np.array(step, np.int64))
            results = self._step(step, [index, true, *states])
            states = results[1 : 1 + len(states)]
            for values, value in zip(scanned, results[1 + len(states) :], strict=True):
                values.append(value)
        self._finish(states, scanned, [0] * len(scanned), [0] * len(scanned))
        return self._nodes

    def scan(self, types: Mapping[str, onnx.TypeProto]) -> list[onnx.NodeProto] | None:
        """Takes inputs of a known length; the form of opset 8, which has a batch, is left alone."""
        count = attribute_of(self._node, "num_scan_inputs")
        if self._opset < 9:
            return None
        states, sequences = list(self._node.input[:-count]), list(self._node.input[-count:])
        outputs = len(self._body.output) - len(states)
        axes = attribute_of(self._node, "scan_input_axes", [0] * count)
        backwards = attribute_of(self._node, "scan_input_directions", [0] * count)
        shape = types[sequences[0]].tensor_type.shape.dim if sequences[0] in types else []
        length = shape[axes[0]].dim_value if shape else 0
        if not 0 < length * len(self._body.node) <= _LARGEST:
            return None
        scanned: list[list[str]] = [[] for _ in range(outputs)]
        for step in range(length):
            elements = []
            for sequence, axis, backward in zip(sequences, axes, backwards, strict=True):
                place = length - 1 - step if backward else step
                elements.append(
                    self._add("Gather", [sequence, self._constant("", np.array(place, np.int64))], axis=axis)
                )
            results = self._step(step, [*states, *elements])
            states = results[: len(states)]
            for values, value in zip(scanned, results[len(states) :], strict=True):
                values.append(value)
        self._finish(
            states,
            scanned,
            attribute_of(self._node, "scan_output_axes", [0] * outputs),
            attribute_of(self._node, "scan_output_directions", [0] * outputs),
        )
        return self._nodes

    def _stays_true(self) -> bool:
        """Whether the body passes its condition on, or gives a constant."""
        name = self._body.output[0].name
        if name == self._body.input[1].name:
            return True
        constants = constants_of(self._body)
        producers = {output: node for node in self._body.node for output in node.output}
        while name in producers and producers[name].op_type == "Identity":
            name = producers[name].input[0]
        return name == self._body.input[1].name or (name in constants and bool(_first(constants[name])))

    def _step(self, step: int, inputs: Sequence[str]) -> list[str]:
        """Adds the body with these inputs; the names of its results."""
        names = dict(zip([value.name for value in self._body.input], inputs, strict=True))
        inner = {name for node in self._body.node for name in names_made(node)}
        prefix = f"{self._prefix}_{step}"
        for tensor in self._body.initializer:
            names[tensor.name] = self._constant(f"{step}_{tensor.name}", array_of(tensor))
        for name in {name for node in self._body.node for name in names_read(node)} - inner:
            names.setdefault(name, name)  # of the graph around the loop
        self._nodes += [copied_node(node, names, {}, prefix) for node in self._body.node]
        return [names[value.name] for value in self._body.output]

    def _finish(
        self,
        states: Sequence[str],
        scanned: Sequence[Sequence[str]],
        axes: Sequence[int],
        backwards: Sequence[int],
    ) -> None:
        """Binds the outputs of the loop."""
        for name, output in zip(states, self._node.output, strict=False):
            if output:
                self._nodes.append(helper.make_node("Identity", [name], [output]))
        for values, output, axis, backward in zip(
            scanned, self._node.output[len(states) :], axes, backwards, strict=False
        ):
            ordered = values[::-1] if backward else values
            if output:
                parts = [self._unsqueezed(value, axis) for value in ordered]
                self._nodes.append(helper.make_node("Concat", parts, [output], axis=axis))

    def _unsqueezed(self, value: str, axis: int) -> str:
        if self._opset < _AXES_ARE_AN_INPUT:
            return self._add("Unsqueeze", [value], axes=[axis])
        return self._add("Unsqueeze", [value, self._constant("", np.array([axis], np.int64))])

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        return self._add("Constant", [], value=numpy_helper.from_array(value, name or "value"))

    def _add(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        output = f"{self._prefix}_value_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [output], f"{output}_{operator}", **attributes))
        return output


def _first(tensor: onnx.TensorProto) -> Any:
    return array_of(tensor).reshape(-1)[0]
