"""What holds of the layers of any graph: each kernel computes some, and what none computes takes no computing."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fuzz.batch import rng_of
from fuzz.drawing import Case
from fuzz.graphs import draw
from fuzz.shrink import values_of

from stormdrop.model.graph.graph import Graph
from stormdrop.model.graph.onnx_origin import OnnxOrigin, origin_of
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.onnx.nodes import names_read

GRAPHS = 60


@pytest.mark.long
def test_each_kernel_computes_layers_and_what_none_computes_only_passes_values_on() -> None:
    folded = 0
    for number in range(GRAPHS):
        case = draw(rng_of(f"layers/{number}"))
        graph = load_graph(case.model)
        assert all(graph.layers.calls), f"{number}: a call computes no layer"
        assert all(task.layers for task in graph.tasks)
        computed = {layer for call in graph.layers.calls for layer in call}
        left = [layer.node for at, layer in enumerate(graph.layers.all) if at not in computed]
        wrong = [node for node in left if not passes_on(case, graph, node)]
        assert not wrong, f"{number}: no kernel computes {wrong}"
        folded += len(left)
    assert folded > GRAPHS / 4, "the graphs have no nodes that are folded away"


def passes_on(case: Case, graph: Graph, name: str) -> bool:
    """Whether a node only passes on what it reads: the very elements, in their order, or what no input changes."""
    origin = origin_of(graph.source)
    assert isinstance(origin, OnnxOrigin)
    model = origin.model
    node = next(each for each in model.graph.node if name in (each.name, *each.output))
    needed = {output.name for output in model.graph.output}
    for each in reversed(model.graph.node):
        if needed.intersection(each.output):
            needed.update(names_read(each))
    return all(_is_passed_on(Case(model, case.feeds), node, made) for made in needed.intersection(node.output))


def _is_passed_on(case: Case, node: onnx.NodeProto, made: str) -> bool:
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in case.model.graph.initializer}
    given = [name for name in node.input if name and name not in case.feeds and name not in constants]
    # Of an input the nodes see other elements; each is one that the input may have.
    turned = {name: np.roll(value.ravel(), 1).reshape(value.shape) for name, value in case.feeds.items()}
    found, other = (values_of(Case(case.model, feeds), [made, *given]) for feeds in (case.feeds, turned))
    assert found is not None and other is not None
    if made not in found:
        return node.op_type in {"SequenceConstruct", "SplitToSequence"}  # which hold tensors together
    values = {**constants, **case.feeds, **found}
    read = [values[name] for name in node.input if name in values]
    return np.array_equal(found[made], other[made]) or any(
        value.size == found[made].size and np.array_equal(value.ravel(), found[made].ravel(), equal_nan=True)
        for value in read
        if value.dtype.kind == found[made].dtype.kind
    )
