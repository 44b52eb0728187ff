"""Norms, softmax, sums of rows and one-row products on GPUs: which schedules they have, and what these compute."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from tvm import te, topi

from stand_ins.cuda_on_host import execute_on_host
from stand_ins.memory_sectors import sectors_of
from stormdrop import operators
from stormdrop.codegen.cuda import launches
from stormdrop.codegen.thread_bounds import accesses_out_of_bounds
from stormdrop.errors import SpaceError
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import GPUS, SECTOR
from stormdrop.sketches.gpu.rows.sketch import GpuRows
from stormdrop.sketches.gpu.rows.stages import find_rows
from stormdrop.sketches.gpu.streaming import GpuStreaming
from stormdrop.sketches.registry import sketches_for

A100, SKETCH = GPUS["a100"], GpuRows()


def config_of(work: Workload, **knobs: Any) -> dict[str, Any]:
    space = SKETCH.space(work, A100)
    assert space is not None
    return {**space.config(space.origin), **knobs}


def normalised_images(channels: int, height: int, width: int) -> Workload:
    """An instance norm as models have it: the axes that are summed over stay, with the extent 1."""
    x = te.placeholder((1, channels, height, width), name="x")
    mean = topi.divide(topi.sum(x, [2, 3], keepdims=True), float(height * width))
    centred = topi.subtract(x, mean)
    variance = topi.divide(topi.sum(topi.multiply(centred, centred), [2, 3], keepdims=True), float(height * width))
    y = topi.divide(centred, topi.sqrt(topi.add(variance, te.const(1e-5))))
    return Workload.create("instance_norm", te.create_prim_func([x, y]))


def half_rows(m: int, n: int) -> Workload:
    """A softmax of rows of float16, computed in float32."""
    x = te.placeholder((m, n), "float16", name="x")
    y = topi.cast(topi.nn.softmax(topi.cast(x, "float32"), axis=-1), "float16")
    return Workload.create("half_softmax", te.create_prim_func([x, y]))


def biased(shape: tuple[int, ...], axis: int, dtype: str) -> Workload:
    """relu(x + bias), with a bias for each position of an axis."""
    x = te.placeholder(shape, dtype, name="x")
    bias = te.placeholder([extent if at == axis else 1 for at, extent in enumerate(shape)], dtype, name="bias")
    return Workload.create(f"bias{axis} {dtype}", te.create_prim_func([x, bias, topi.nn.relu(topi.add(x, bias))]))


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("work", "knobs"),
    [
        (operators.softmax(5, 50), {"threads": 64, "lanes": 16}),  # vectors of 2, and 4 rows of a block
        (operators.softmax(3, 300), {"lanes": 64}),  # two warps of a row
        (operators.softmax(2, 264), {"threads": 32, "lanes": 1}),  # too many elements for the registers of a thread
        (operators.layer_norm(3, 51), {}),  # no vectors
        (operators.dense(1, 13, 88, bias=1), {"ahead": 2}),
        (operators.dense(1, 5, 96, dtype="int8"), {"threads": 32, "lanes": 4}),
        (operators.reduce((7, 9, 4), (1, 2), kind="max"), {"threads": 32, "lanes": 4}),
        (normalised_images(3, 6, 10), {}),
        (half_rows(3, 72), {"threads": 64, "lanes": 4}),
        (operators.matmul(1, 20, 37), {"threads": 64, "lanes": 16}),  # sums along columns, whose terms do not divide
        (operators.global_pool2d(2, 3, 3, 12), {"threads": 32, "lanes": 4, "ahead": 2}),
        (
            operators.reduce((9, 7), 0, kind="min"),
            {"threads": 32, "lanes": 8},
        ),  # no vectors, and threads without columns
        (biased((1, 5, 9, 20), 3, "float32"), {"threads": 32, "lanes": 4}),  # 45 rows, 8 of a block
        (biased((1, 5, 9, 8), 1, "float16"), {"threads": 32, "lanes": 2, "ahead": 2}),  # a bias for each row
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_rows_are_computed(work: Workload, knobs: dict[str, int], sanitizer: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ on the PATH")
    inputs = work.random_inputs(0)
    function = SKETCH.apply(work, A100, config_of(work, **knobs)).main
    (execution,) = execute_on_host(function, A100, inputs, (sanitizer,))
    (expected,) = evaluate_graph(work.graph, inputs)
    assert execution.complaints == ()
    np.testing.assert_allclose(execution.outputs[0], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "work",
    [operators.softmax(16, 1024), operators.layer_norm(16, 768), half_rows(16, 256), operators.elementwise((8, 100))],
    ids=lambda work: work.name,
)
def test_a_row_is_read_once_and_written_once(work: Workload) -> None:
    sectors = sectors_of(SKETCH.apply(work, A100, config_of(work)).main, A100)
    row = next(spec for spec in work.inputs)
    least = np.prod(row.shape) * np.dtype(row.dtype).itemsize // SECTOR
    assert (sectors["x0"], sectors["y0"]) == (least, least)


@pytest.mark.parametrize(
    ("work", "rows", "terms", "vector"),
    [
        (biased((1, 8, 10, 12), 3, "float32"), 80, 12, 4),
        (biased((1, 8, 10, 12), 1, "float16"), 8, 120, 8),
        (operators.elementwise((10, 50)), 1, 500, 4),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_without_sums_rows_are_what_all_accesses_step_over_together(
    work: Workload, rows: int, terms: int, vector: int
) -> None:
    found = find_rows(work)
    assert (found.row.extent, found.term.extent, found.vector) == (rows, terms, vector)


def halved_columns(rows: int, columns: int) -> Workload:
    """x[i, j] + z[i, j // 2], of which z is read element by element."""
    x, z = te.placeholder((rows, columns), name="x"), te.placeholder((rows, columns // 2), name="z")
    y = te.compute((rows, columns), lambda i, j: x[i, j] + z[i, j // 2], name="y")
    return Workload.create("halved", te.create_prim_func([x, z, y]))


def scaled_product(columns: int, terms: int) -> Workload:
    """sum over k of x[k] * w[k, j] * scale[k // 32, j]: a vector times a matrix that has scales by groups of rows."""
    x, w = te.placeholder((terms,), name="x"), te.placeholder((terms, columns), name="w")
    scale, k = te.placeholder((-(-terms // 32), columns), name="scale"), te.reduce_axis((0, terms))
    y = te.compute((columns,), lambda j: te.sum(x[k] * w[k, j] * scale[k // 32, j], k), name="y")
    return Workload.create("scaled", te.create_prim_func([x, w, scale, y]))


@pytest.mark.parametrize(
    ("work", "knobs"),
    [
        (biased((1, 100, 7, 8), 1, "float32"), {}),  # rows of a block that are not there have no bias
        (halved_columns(3, 300), {"threads": 64, "lanes": 64, "ahead": 4}),
        (scaled_product(104, 70), {"threads": 256, "lanes": 16}),
    ],
    ids=["bias", "halved", "scaled"],
)
def test_what_is_not_fetched_in_vectors_is_read_within_its_buffer(work: Workload, knobs: dict[str, int]) -> None:
    space = GpuRows().space(work, A100)
    assert space is not None
    function = GpuRows().apply(work, A100, {**space.config(space.origin), **knobs}).main
    assert accesses_out_of_bounds(function, A100) == []


@pytest.mark.parametrize(
    "work",
    [operators.global_pool2d(1, 1, 1, 64), operators.reduce((50, 1, 24), (1,)), biased((0, 64), 1, "float32")],
    ids=["pool", "one term", "empty"],
)
def test_sums_of_one_term_and_empty_arrays_are_left_to_others(work: Workload) -> None:
    assert GpuRows().space(work, A100) is None


def test_elements_of_a_long_row_are_shared_by_blocks() -> None:
    work = operators.elementwise((1000, 1000))
    (launch,) = launches(SKETCH.apply(work, A100, config_of(work)).main, A100)
    assert (launch.blocks, launch.threads) == (977, 256)


def test_vectors_are_as_wide_as_all_rows_are_aligned() -> None:
    vectors = [config_of(operators.layer_norm(8, n))["vector"] for n in (768, 50, 765)]
    assert [*vectors, config_of(half_rows(8, 768))["vector"]] == [4, 2, 1, 8]


def test_a_warp_has_a_short_row_and_a_block_a_long_one() -> None:
    lanes = [config_of(operators.softmax(m, n))["lanes"] for m, n in ((4096, 16), (4096, 512), (64, 32000))]
    assert lanes == [4, 32, 1024]


def test_few_rows_have_more_threads_each() -> None:
    assert [config_of(operators.dense(1, n, 8192))["lanes"] for n in (4096, 64)] == [32, 1024]


@pytest.mark.parametrize(
    "work",
    [
        operators.dense(64, 64, 64),  # tiles use its rows again
        operators.elementwise((7, 33)),  # no vectors
        operators.transpose((64, 64), (1, 0)),
    ],
    ids=lambda work: work.name,
)
def test_what_is_not_contiguous_is_left_to_others(work: Workload) -> None:
    assert SKETCH.space(work, A100) is None


def test_few_columns_share_their_terms_among_more_threads() -> None:
    lanes = [config_of(operators.matmul(1, n, 4096))["lanes"] for n in (16384, 1000)]
    assert lanes == [32, 128]


def test_sums_of_a_block_fit_in_shared_memory() -> None:
    x = te.placeholder((64, 64), "int8", name="x")
    term = te.reduce_axis((0, 64))
    y = te.compute((64,), lambda i: te.sum(x[term, i].astype("int32"), term), name="y")
    space = SKETCH.space(Workload.create("sums_of_bytes", te.create_prim_func([x, y])), A100)
    assert space is not None
    largest = {**space.config(space.origin), "vector": 16, "threads": 512}
    space.point(largest)
    with pytest.raises(SpaceError, match="bytes shared"):
        space.point({**largest, "threads": 1024})


def test_schedules_of_older_records_stay() -> None:
    names = [sketch.name for sketch, _ in sketches_for(operators.softmax(8, 64), A100)]
    assert names == [GpuRows.name, GpuStreaming.name]
