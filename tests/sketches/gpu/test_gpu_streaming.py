"""Reductions along other axes than the last one on GPUs: which schedules they have, and what these compute."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from tvm import te, topi

from stand_ins.cuda_on_host import execute_on_host
from stormdrop.codegen.cuda import launches
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.gpu.streaming import GpuStreaming
from stormdrop.space import Space

pytestmark = pytest.mark.compiles

A100, SKETCH = GPUS["a100"], GpuStreaming()


def softmax(shape: tuple[int, ...], axis: int) -> Workload:
    x = te.placeholder(shape, name="x")
    return Workload.create("softmax", te.create_prim_func([x, topi.nn.softmax(x, axis=axis)]))


def sums_of_both_axes(images: int, rows: int, columns: int) -> Workload:
    """x / (its sum over the rows) + its largest value along the columns."""
    x = te.placeholder((images, rows, columns), name="x")
    row, column = te.reduce_axis((0, rows)), te.reduce_axis((0, columns))
    total = te.compute((images, columns), lambda i, j: te.sum(x[i, row, j], row), name="total")
    most = te.compute((images, rows), lambda i, j: te.max(x[i, j, column], column), name="most")
    y = te.compute(x.shape, lambda i, j, k: x[i, j, k] / total[i, k] + most[i, j], name="y")
    return Workload.create("sums_of_both_axes", te.create_prim_func([x, y]))


def space_of(work: Workload) -> Space:
    space = SKETCH.space(work, A100)
    assert space is not None
    return space


def check(work: Workload, **knobs: Any) -> None:
    """Executes a schedule under ThreadSanitizer, and compares it with NumPy."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ on the PATH")
    space, inputs = space_of(work), work.random_inputs(0)
    function = SKETCH.apply(work, A100, {**space.config(space.origin), **knobs}).main
    (execution,) = execute_on_host(function, A100, inputs, ("thread",))
    (expected,) = evaluate_graph(work.graph, inputs)
    assert execution.complaints == ()
    np.testing.assert_allclose(execution.outputs[0], expected, rtol=1e-4, atol=1e-5)


def test_threads_share_the_columns_of_a_softmax_over_channels() -> None:
    check(softmax((1, 16, 4, 21), 1), threads=64, lanes=8)


def test_many_threads_share_the_terms_of_one_column() -> None:
    check(softmax((1, 100, 1), 1))


def test_columns_along_an_axis_in_the_middle() -> None:
    check(softmax((2, 5, 3, 6), 2), threads=32, lanes=1)


def test_many_columns_fill_the_blocks() -> None:
    work = softmax((1, 16, 4, 2100), 1)  # of a YOLOv8n: its sums do not fit in the shared memory of a block
    space = space_of(work)
    (launch,) = launches(SKETCH.apply(work, A100, {**space.config(space.origin), "lanes": 1, "threads": 64}).main, A100)
    assert (launch.blocks, launch.threads) == (-(-4 * 2100 // 64), 64)


def test_a_row_with_several_sums_adds_in_registers() -> None:
    check(sums_of_both_axes(2, 7, 50), threads=32)


def test_few_columns_share_their_terms_among_more_threads() -> None:
    for columns, lanes in ((1, 256), (2, 128), (16, 16), (40, 8)):
        space = space_of(softmax((1, 1000, columns), 1))
        assert space.columns([space.origin])["lanes"] >= lanes


@pytest.mark.parametrize(("columns", "fits"), [(12_080, True), (12_087, False)])  # each array begins at 64 bytes
def test_a_row_whose_sums_exceed_shared_memory_has_no_schedule(columns: int, fits: bool) -> None:
    assert (SKETCH.space(sums_of_both_axes(2, 201, columns), A100) is not None) is fits
