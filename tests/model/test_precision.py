"""Which values of a model are stored in bfloat16, and that the lowered model computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from sized_models import pooled_model
from tiny_models import attention_model, make_model

from stormdrop.ir.dtypes import BFLOAT16
from stormdrop.model.importer.graph import Graph, load_graph
from stormdrop.model.importer.isolated import import_graph
from stormdrop.model.importer.tasks import kernel_calls
from stormdrop.model.precision import last_layers, layers, lowered
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.verification.exact import ExactModel
from stormdrop.model.verification.samples import random_feeds


def types_of(graph: Graph) -> list[str]:
    """What each kernel of a graph stores, in order."""
    return [str(call.ty.dtype) for call in kernel_calls(graph.mod)]


def difference(graph: Graph, low: Graph) -> float:
    """The largest difference of the outputs of two graphs, relative to the largest value."""
    feeds = random_feeds(graph.inputs, 0)
    (exact, _), (rounded, _) = ExactModel(graph).run(feeds), ExactModel(low).run(feeds, rounded=True)
    return max(float(np.abs(rounded[name] - value).max() / np.abs(value).max()) for name, value in exact.items())


def test_what_contractions_multiply_is_in_bfloat16(residual: Graph) -> None:
    """The last layer, which makes the output of the model, stays as it is."""
    last = last_layers(residual)
    names = {task.index: task.name for task in residual.tasks}
    assert [names[index] for index in last] == [names[layers(residual)[-1]]]
    low, done = lowered(residual, last)
    assert done == set(layers(residual)) - last
    assert types_of(low)[0] == BFLOAT16 and types_of(low)[-1] == "float32"
    assert 1e-4 < difference(residual, low) < 2e-2


def test_scores_and_sums_before_a_normalisation_stay_in_float32() -> None:
    graph = load_graph(seed_weights(attention_model(), seed=1))
    low, done = lowered(graph, last_layers(graph))
    stored = {call.args[0].name_hint: str(call.ty.dtype) for call in kernel_calls(low.mod)}
    softmax = [dtype for name, dtype in stored.items() if "softmax" in name]
    assert softmax == [BFLOAT16]  # its result is a factor; what it reads is none
    reads = {str(call.args[1].fields[0].ty.dtype) for call in kernel_calls(low.mod) if "softmax" in str(call.args[0])}
    assert reads == {"float32"}
    assert done and 1e-4 < difference(graph, low) < 2e-2


def test_with_all_layers_kept_nothing_changes(residual: Graph) -> None:
    low, done = lowered(residual, layers(residual))
    assert not done and types_of(low) == types_of(residual)
    assert difference(residual, low) < 1e-6


def test_a_value_that_the_caller_reads_stays_in_float32() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"]),
        helper.make_node("Conv", ["d", "u"], ["y"]),
    ]
    weights: dict[str, tuple[int, ...]] = dict.fromkeys("wvu", (16, 16, 1, 1))
    shape: tuple[int | str, ...] = (1, 16, 8, 8)
    outputs = {"y": shape, "r": shape}
    graph = load_graph(seed_weights(make_model(nodes, weights, {"x": shape}, outputs), seed=1))
    low, _ = lowered(graph, ())
    convolutions = [call for call in kernel_calls(low.mod) if "conv2d" in call.args[0].name_hint]
    reads = [str(call.args[1].fields[0].ty.dtype) for call in convolutions]
    assert reads == [BFLOAT16, "float32", BFLOAT16]  # the second one reads `r`, which is an output
    assert 1e-5 < difference(graph, low) < 2e-2


def test_all_sizes_are_lowered_alike() -> None:
    graph = import_graph(pooled_model(), {"x": ((1, 4), 3, 8, 8)})
    low, done = lowered(graph, ())
    assert done and len(low.sizes) == 2
    assert all(each.tasks is low.tasks for each in low.sizes)
    for before, after in zip(graph.sizes, low.sizes, strict=True):
        assert 1e-5 < difference(before, after) < 2e-2


@pytest.mark.parametrize("kept", [0, 1])
def test_a_kept_layer_reads_float32(residual: Graph, kept: int) -> None:
    index = layers(residual)[kept]
    low, done = lowered(residual, {index})
    assert index not in done
    function = next(task.function for task in residual.tasks if task.index == index)
    assert {str(parameter.dtype) for parameter in function.params} == {"float32"}
    assert difference(residual, low) < 2e-2
