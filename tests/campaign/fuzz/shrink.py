"""The smallest graph that fails as a large one does: nodes, outputs, attributes and sizes are taken away.

    cut the end       an inner value becomes the only output
    cut the front     an inner value becomes an input, with the value that onnxruntime computes
    take out a node   what reads it reads one of its inputs
    drop attributes   and optional inputs
    make it smaller   an extent becomes smaller, wherever it stands

Each step proposes smaller graphs, and the first that fails alike is taken. Proposals need not be valid: onnxruntime
says whether they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fuzz.drawing import Case
from fuzz.reference import session

Fails = Callable[[Case], bool]

Values = Callable[[Case, list[str]], "dict[str, Any] | None"]
"""Computes inner values of a graph, except sequences; None for a graph that is not valid."""


def shrink(case: Case, fails: Fails, values: Values, seconds: float = 120.0) -> Case:
    """Make a graph smaller while it fails alike.

    Args:
        case: The graph.
        fails: Whether a graph fails as this one does; False for one that is not valid.
        values: Computes inner values. A graph that is not valid may crash onnxruntime, not this process.
        seconds: No further step begins after so long.
    """
    until = time.monotonic() + seconds
    improved = True
    while improved:
        improved = False
        for step in _STEPS:
            while (smaller := _first_that_fails(step, case, fails, values, until)) is not None:
                case, improved = smaller, True
    return case


def size_of(case: Case) -> tuple[int, int, int, int]:
    """How large a graph is: nodes, outputs and inputs, attributes and inputs of nodes, elements."""
    graph = case.model.graph
    nodes = [node for node in graph.node if node.op_type != "Constant"]
    elements = sum(value.size for value in case.feeds.values())
    elements += sum(numpy_helper.to_array(tensor).size for tensor in graph.initializer)
    parts = sum(len(node.attribute) + len([name for name in node.input if name]) for node in nodes)
    return len(nodes), len(graph.output) + len(case.feeds), parts, elements


def _first_that_fails(step: Any, case: Case, fails: Fails, values: Values, until: float) -> Case | None:
    before = size_of(case)
    for proposal in step(case, values):
        if time.monotonic() > until:
            return None
        tidied = _tidied(proposal, values)
        if tidied is not None and size_of(tidied) < before and fails(tidied):
            return tidied
    return None


def _cut_end(case: Case, _: Values) -> Iterator[Case]:
    graph = case.model.graph
    if len(graph.output) > 1:
        for output in graph.output:
            yield _changed(case, outputs=[output.name])
    for node in graph.node[:-1]:
        for name in filter(None, node.output):
            yield _changed(case, outputs=[name])
    for output in graph.output if len(graph.output) > 2 else ():
        yield _changed(case, outputs=[other.name for other in graph.output if other is not output])


def _cut_front(case: Case, values: Values) -> Iterator[Case]:
    names = [name for node in case.model.graph.node for name in node.output if name]
    found = values(case, names) or {}
    for name in reversed(names):
        if name in found:
            yield _with_input(case, name, found[name])


def _take_out(case: Case, _: Values) -> Iterator[Case]:
    for position, node in enumerate(case.model.graph.node):
        for read in filter(None, node.input):
            for made in filter(None, node.output):
                yield _without_node(case, position, made, read)


def _drop(case: Case, _: Values) -> Iterator[Case]:
    for position, node in enumerate(case.model.graph.node):
        for index in range(len(node.attribute)):
            model = _copy(case.model)
            del model.graph.node[position].attribute[index]
            yield Case(model, case.feeds)
        for index, name in enumerate(node.input):
            if not name:
                continue
            model = _copy(case.model)
            model.graph.node[position].input[index] = ""
            while model.graph.node[position].input and not model.graph.node[position].input[-1]:
                del model.graph.node[position].input[-1]
            yield Case(model, case.feeds)
        if len([name for name in node.output if name]) > 1:
            for index in range(len(node.output)):
                model = _copy(case.model)
                model.graph.node[position].output[index] = ""
                yield Case(model, case.feeds)


def _make_smaller(case: Case, _: Values) -> Iterator[Case]:
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in case.model.graph.initializer}
    tensors = {**constants, **case.feeds}
    extents = sorted({extent for value in tensors.values() for extent in value.shape if extent > 1}, reverse=True)
    for extent in extents:
        for smaller in dict.fromkeys([1, 2, extent // 2, extent - 1]):
            if smaller < extent:
                yield _with_extent(case, lambda *_: True, extent, smaller)
    for name, value in tensors.items():
        for axis, extent in enumerate(value.shape):
            for smaller in dict.fromkeys([1, 2, extent // 2, extent - 1]):
                if 0 < smaller < extent:
                    yield _with_extent(case, partial(_is, name, axis), extent, smaller)


def _is(name: str, axis: int, other: str, other_axis: int) -> bool:
    return (other, other_axis) == (name, axis)


_STEPS = (_cut_end, _cut_front, _take_out, _drop, _make_smaller)


def _with_extent(case: Case, applies: Callable[[str, int], bool], extent: int, smaller: int) -> Case:
    """The graph with tensors that are cut where they have this extent; constants that hold it hold the smaller one."""

    def cut(name: str, value: Any) -> Any:
        for axis in range(value.ndim):
            if value.shape[axis] == extent and applies(name, axis):
                value = value.take(range(smaller), axis)
        if value.dtype == np.int64 and applies("", 0):
            value = np.where(value == extent, smaller, value)
        return value

    model = _copy(case.model)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(np.asarray(cut(tensor.name, numpy_helper.to_array(tensor))), tensor.name)
        )
    return Case(model, {name: cut(name, value) for name, value in case.feeds.items()})


def _changed(case: Case, outputs: list[str]) -> Case:
    model = _copy(case.model)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    return Case(model, case.feeds)


def _with_input(case: Case, name: str, value: Any) -> Case:
    """The graph with an inner value as an input."""
    model = _copy(case.model)
    for node in model.graph.node:
        for index, made in enumerate(node.output):
            if made == name:
                node.output[index] = f"{name}_unused"
    model.graph.input.append(helper.make_tensor_value_info(name, _type_of(value), value.shape))
    return Case(model, {**case.feeds, name: value})


def _without_node(case: Case, position: int, made: str, read: str) -> Case:
    """The graph without a node: what read its result reads one of its inputs."""
    model = _copy(case.model)
    node = model.graph.node[position]
    for other in model.graph.node:
        for index, name in enumerate(other.input):
            if name == made:
                other.input[index] = read
    for output in model.graph.output:
        if output.name == made:
            output.name = read
    del model.graph.node[position]
    assert node is not None
    return Case(model, case.feeds)


def _tidied(case: Case, values: Values) -> Case | None:
    """The graph without what nothing reads, and with the types of its outputs; None if it is not valid."""
    model = _copy(case.model)
    graph = model.graph
    wanted = {output.name for output in graph.output}
    kept = []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(_read(node))
    nodes = [_copied_node(node) for node in reversed(kept)]
    del graph.node[:]
    graph.node.extend(nodes)
    for field in (graph.input, graph.initializer):
        used = [entry for entry in field if entry.name in wanted]
        copies = [type(entry).FromString(entry.SerializeToString()) for entry in used]
        del field[:]
        field.extend(copies)
    feeds = {name: value for name, value in case.feeds.items() if name in wanted}
    for value in graph.input:
        if value.name in feeds:
            shape = feeds[value.name].shape
            value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape))
    tidied = Case(model, feeds)
    made = values(tidied, [output.name for output in graph.output])
    if made is None or len(made) < len(graph.output):
        return None
    for output in graph.output:
        value = made[output.name]
        output.CopyFrom(helper.make_tensor_value_info(output.name, _type_of(value), value.shape))
    return tidied


def values_of(case: Case, names: list[str]) -> dict[str, Any] | None:
    """What onnxruntime makes of inner values in this process, without sequences; None for a graph that is not valid."""
    model = _copy(case.model)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        found = session(model).run(names, case.feeds)
    except Exception:  # noqa: BLE001  onnxruntime's exceptions have no base class
        return None
    return {name: value for name, value in zip(names, found, strict=True) if isinstance(value, np.ndarray)}


def _read(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from (output.name for output in attribute.g.output)
            for inner in attribute.g.node:
                yield from _read(inner)


def _type_of(value: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(value.dtype))


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _copied_node(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
