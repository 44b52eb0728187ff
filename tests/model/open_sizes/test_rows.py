"""Axes that a kernel treats alike."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te

from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.stages import StageGraph, shape_of
from stormdrop.model.open_sizes.rows import merged


def of(inputs: list[te.Tensor], output: te.Tensor) -> StageGraph:
    return StageGraph.parse(te.create_prim_func([*inputs, output]))


def shapes(graph: StageGraph) -> list[tuple[int, ...]]:
    return [shape_of(buffer) for buffer in graph.parameters]


def same(graph: StageGraph, fewer: StageGraph) -> bool:
    """Whether two functions compute the same elements of the same memory."""
    inputs = [np.random.default_rng(0).normal(size=shape_of(buffer)).astype("f4") for buffer in graph.inputs]
    reshaped = [array.reshape(shape_of(buffer)) for array, buffer in zip(inputs, fewer.inputs, strict=True)]
    (one,), (two,) = evaluate_graph(graph, inputs), evaluate_graph(fewer, reshaped)
    return np.array_equal(one.ravel(), two.ravel())


def test_rows_of_a_product() -> None:
    x, w = te.placeholder((3, 5, 8), name="x"), te.placeholder((8, 6), name="w")
    k = te.reduce_axis((0, 8), name="k")
    product = te.compute((3, 5, 6), lambda b, n, j: te.sum(x[b, n, k] * w[k, j], k), name="p")
    y = te.compute((3, 5, 6), lambda b, n, j: product[b, n, j] * 2.0, name="y")
    graph = of([x, w], y)
    fewer = merged(graph)
    assert shapes(fewer) == [(15, 8), (8, 6), (15, 6)] and same(graph, fewer)


def test_all_axes_of_a_softmax_but_the_last() -> None:
    x = te.placeholder((2, 3, 4, 5), name="x")
    k = te.reduce_axis((0, 5), name="k")
    largest = te.compute((2, 3, 4), lambda a, b, c: te.max(x[a, b, c, k], k), name="m")
    y = te.compute((2, 3, 4, 5), lambda a, b, c, d: te.exp(x[a, b, c, d] - largest[a, b, c]), name="y")
    graph = of([x], y)
    fewer = merged(graph)
    assert shapes(fewer) == [(24, 5), (24, 5)] and same(graph, fewer)


@pytest.mark.parametrize("kind", ["another matrix for each text", "a table for each word", "transposed", "a count"])
def test_what_treats_them_differently(kind: str) -> None:
    x = te.placeholder((3, 5, 8), name="x")
    if kind == "another matrix for each text":
        w = te.placeholder((3, 8, 6), name="w")
        k = te.reduce_axis((0, 8), name="k")
        graph = of([x, w], te.compute((3, 5, 6), lambda b, n, j: te.sum(x[b, n, k] * w[b, k, j], k), name="y"))
    elif kind == "a table for each word":
        w = te.placeholder((5, 8), name="w")
        graph = of([x, w], te.compute((3, 5, 8), lambda b, n, j: x[b, n, j] + w[n, j], name="y"))
    elif kind == "transposed":
        graph = of([x], te.compute((5, 3, 8), lambda n, b, j: x[b, n, j], name="y"))
    else:
        graph = of([x], te.compute((3, 5, 8), lambda b, n, j: x[b, n, j] * n.astype("float32"), name="y"))
    assert merged(graph) is graph


def test_a_slice_is_none() -> None:
    """The rows that are read do not lie behind each other."""
    x = te.placeholder((3, 7, 8), name="x")
    graph = of([x], te.compute((3, 5, 8), lambda b, n, j: x[b, n, j] * 2.0, name="y"))
    assert merged(graph) is graph
