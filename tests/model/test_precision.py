"""Which values of a model are stored in bfloat16, and that the model in mixed precision computes the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import helper
from sized_models import pooled_model
from tiny_models import attention_model, make_model

from stormdrop.ir.dtypes import BFLOAT16
from stormdrop.model.graph.graph import Graph
from stormdrop.model.graph.tasks import kernel_calls
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.isolated import import_graph
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.precision.mixed import in_mixed_precision
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.verification.exact import ExactModel


def types_of(graph: Graph) -> list[str]:
    """What each kernel of a graph stores, in order."""
    return [str(call.ty.dtype) for call in kernel_calls(graph.mod)]


def difference(graph: Graph, low: Graph) -> float:
    """The largest difference of the outputs of two graphs, relative to the largest value."""
    feeds = random_feeds(graph.inputs, 0)
    (exact, _), (rounded, _) = ExactModel(graph).run(feeds), ExactModel(low).run(feeds, rounded=True)
    return max(float(np.abs(rounded[name] - value).max() / np.abs(value).max()) for name, value in exact.items())


def reads_of(graph: Graph, name: str) -> list[str]:
    """The types of what the kernels with this in their names read first, in order; without those that round inputs."""
    names = [(call, call.args[0].name_hint) for call in kernel_calls(graph.mod)]
    calls = [call for call, each in names if name in each and not each.endswith("_input")]
    return [str(call.args[1].fields[0].ty.dtype) for call in calls]


def chain_of_convolutions(count: int, outputs: Sequence[str] = ()) -> Graph:
    """1x1 convolutions one after the other; all but the last two have the same function."""
    names = ["x", *(f"c{number}" for number in range(1, count)), "y"]
    nodes = [helper.make_node("Conv", [names[number], f"w{number}"], [names[number + 1]]) for number in range(count)]
    shape: tuple[int | str, ...] = (1, 16, 8, 8)
    weights: dict[str, tuple[int, ...]] = {f"w{number}": (16, 16, 1, 1) for number in range(count)}
    made = make_model(nodes, weights, {"x": shape}, dict.fromkeys(("y", *outputs), shape))
    return load_graph(seed_weights(made, seed=1))


def test_what_contractions_multiply_is_in_bfloat16(residual: Graph) -> None:
    """The last layer, which makes the output of the model, stays as it is."""
    low = in_mixed_precision(residual)
    assert len(low.layers) == 3 and list(low.low) == list(low.layers[:2])
    assert types_of(low.graph)[0] == BFLOAT16 and types_of(low.graph)[-1] == "float32"
    assert 1e-4 < difference(residual, low.graph) < 2e-2


def test_scores_and_sums_before_a_normalisation_stay_in_float32() -> None:
    graph = load_graph(seed_weights(attention_model(), seed=1))
    low = in_mixed_precision(graph)
    stored = {call.args[0].name_hint: str(call.ty.dtype) for call in kernel_calls(low.graph.mod)}
    assert [dtype for name, dtype in stored.items() if "softmax" in name] == [BFLOAT16]  # its result is a factor
    assert reads_of(low.graph, "softmax") == ["float32"]
    assert low.low and 1e-4 < difference(graph, low.graph) < 2e-2


def test_layers_of_one_function_are_lowered_one_by_one() -> None:
    graph = chain_of_convolutions(5)
    low = in_mixed_precision(graph)
    assert len(set(low.layers)) == 1 and len(low.layers) == 5
    assert len(low.low) == 4
    assert reads_of(low.graph, "conv2d") == [BFLOAT16] * 4 + ["float32"]


def test_with_all_layers_kept_nothing_changes(residual: Graph) -> None:
    low = in_mixed_precision(residual, in_mixed_precision(residual).layers)
    assert not low.low and types_of(low.graph) == types_of(residual)
    assert difference(residual, low.graph) < 1e-6


def test_a_value_that_the_caller_reads_stays_in_float32() -> None:
    graph = chain_of_convolutions(4, outputs=["c1"])
    low = in_mixed_precision(graph)
    # The first and the last one make an output, and the second one reads it.
    assert reads_of(low.graph, "conv2d") == ["float32", "float32", BFLOAT16, "float32"]
    assert 1e-5 < difference(graph, low.graph) < 2e-2


def test_all_sizes_are_lowered_alike() -> None:
    graph = import_graph(pooled_model(), {"x": ((1, 4), 3, 8, 8)})
    low = in_mixed_precision(graph)
    assert low.low and len(low.graph.sizes) == 2
    assert all(each.tasks is low.graph.tasks for each in low.graph.sizes)
    for before, after in zip(graph.sizes, low.graph.sizes, strict=True):
        assert 1e-5 < difference(before, after) < 2e-2


@pytest.mark.parametrize("kept", [0, 1])
def test_a_kept_layer_reads_float32(residual: Graph, kept: int) -> None:
    layers = in_mixed_precision(residual).layers
    low = in_mixed_precision(residual, {layers[kept]})
    assert list(low.low) == [layers[1 - kept]]
    assert reads_of(low.graph, "conv2d")[kept] == "float32"
    assert difference(residual, low.graph) < 2e-2


def test_layers_that_pad_an_input_share_the_kernel_that_rounds_it() -> None:
    padded = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], **padded),
        helper.make_node("Conv", ["x", "w2"], ["b"], **padded),
        helper.make_node("Mul", ["a", "b"], ["c"]),
        helper.make_node("Add", ["c", "x"], ["d"]),
        helper.make_node("Conv", ["d", "w3"], ["y"]),
    ]
    weights: dict[str, tuple[int, ...]] = {"w1": (3, 3, 3, 3), "w2": (3, 3, 3, 3), "w3": (8, 3, 1, 1)}
    made = make_model(nodes, weights, {"x": (1, 3, 8, 8)}, {"y": (1, 8, 8, 8)})
    graph = load_graph(seed_weights(made, seed=1))
    low = in_mixed_precision(graph)
    assert len(low.layers) == 3 and len(low.low) == 2
    inputs = [call for call in kernel_calls(low.graph.mod) if call.args[0].name_hint.endswith("_input")]
    assert len(inputs) == 1 and str(inputs[0].args[1].fields[0].ty.dtype) == "float32"
    assert 1e-5 < difference(graph, low.graph) < 2e-2


def test_a_concatenation_is_in_one_type() -> None:
    """Its result is read by a layer that is kept: its parts stay in float32, too."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"]),
        helper.make_node("Conv", ["x", "w2"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
        helper.make_node("Conv", ["c", "w3"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Conv", ["e", "w4"], ["y"]),
    ]
    weights: dict[str, tuple[int, ...]] = {
        "w1": (16, 16, 1, 1),
        "w2": (16, 16, 3, 3),
        "w3": (16, 32, 1, 1),
        "w4": (8, 16, 1, 1),
    }
    made = make_model(nodes, weights, {"x": (1, 16, 8, 8)}, {"y": (1, 8, 8, 8)})
    graph = load_graph(seed_weights(made, seed=1))
    low = in_mixed_precision(graph)
    (after,) = [call for call in kernel_calls(low.graph.mod) if "concat" in call.args[0].name_hint]
    types = {str(field.ty.dtype) for field in after.args[1].fields} | {str(after.ty.dtype)}
    assert types == {BFLOAT16}
    third = next(index for index in low.layers if _reads_channels(graph, index) == 32)
    kept = in_mixed_precision(graph, {third})
    (after,) = [call for call in kernel_calls(kept.graph.mod) if "concat" in call.args[0].name_hint]
    types = {str(field.ty.dtype) for field in after.args[1].fields} | {str(after.ty.dtype)}
    assert types == {"float32"}


def _reads_channels(graph: Graph, index: int) -> int:
    task = next(task for task in graph.tasks if task.index == index)
    return int(task.function.params[0].shape[-1])
