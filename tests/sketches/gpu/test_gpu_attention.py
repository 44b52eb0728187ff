"""Attention as one kernel of a GPU: which functions are one, what it computes, and that no thread races."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import te

from stand_ins.cuda_on_host import SANITIZERS, execute_on_host
from stand_ins.opencl_execution import EMULATED, Execution, Job, execute
from stormdrop import operators
from stormdrop.codegen.compile import compile_together
from stormdrop.codegen.cuda import cuda_source, launches, resources_of
from stormdrop.codegen.opencl import build_opencl
from stormdrop.codegen.serial_loops import with_serial_loops
from stormdrop.codegen.thread_bounds import accesses_out_of_bounds
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.dtypes import limits
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS
from stormdrop.machine.opencl import opencl_devices
from stormdrop.operators.rows import softmax_of
from stormdrop.sketches.gpu.attention.parts import find_attention
from stormdrop.sketches.gpu.attention.sketch import GpuAttention
from stormdrop.sketches.registry import sketches_for
from stormdrop.space import Space

A100 = GPUS["a100"]
Array = NDArray[Any]

WORKS = {
    "ragged": operators.attention(2, 17, 35, 8, 19, mask=1),
    "whole": operators.attention(2, 16, 32, 16, 16),
    "one query": operators.attention(3, 1, 40, 12, 16),
    "one element": operators.attention(1, 37, 13, 1, 1),
    "long": operators.attention(1, 3, 1500, 20, 36),
}


def expected(work: Workload, inputs: list[Array]) -> Array:
    """The attention of an operator by NumPy in float64."""
    queries, keys, *mask, values = (array.astype(np.float64) for array in inputs)
    scores = queries @ keys.transpose(0, 2, 1) / math.sqrt(queries.shape[-1])
    scores = scores + mask[0] if mask else scores
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ values


def space_of(work: Workload) -> Space:
    space = GpuAttention().space(work, A100)
    assert space is not None
    return space


def schedules(work: Workload, count: int = 0) -> list[Any]:
    """The default schedule and random ones."""
    space, rng = space_of(work), np.random.default_rng(0)
    points = [space.origin, *(space.sample(rng) for _ in range(count))]
    return [GpuAttention().apply(work, A100, space.config(point)).main for point in points]


def tiled(work: Workload, parts: int = 1) -> Any:
    """A schedule of several blocks and tiles, in which threads have several rows, keys and columns."""
    config = {"rows": 2, "row_threads": 4, "keys": 2, "key_threads": 8, "parts": parts}
    return GpuAttention().apply(work, A100, config).main


def in_series(functions: list[Any], inputs: list[Array], shape: tuple[int, ...], dtype: str = "float32") -> list[Array]:
    outputs = []
    for kernel in compile_together(list(map(with_serial_loops, functions)), Cpu.detect().tvm()):
        output = tvm.runtime.empty(shape, dtype)
        kernel.call(*(tvm.runtime.tensor(array) for array in inputs), output)
        outputs.append(output.numpy())
    return outputs


@pytest.mark.compiles
@pytest.mark.parametrize("name", WORKS)
def test_the_right_answer_within_the_buffers(name: str) -> None:
    work = WORKS[name]
    inputs, functions = list(work.random_inputs(0)), schedules(work, 3)
    assert not [line for function in functions for line in accesses_out_of_bounds(function, A100)]
    for output in in_series(functions, inputs, work.outputs[0].shape):
        np.testing.assert_allclose(output, expected(work, inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.compiles
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_of_16_bits(dtype: str) -> None:
    work = operators.attention(2, 17, 35, 8, 19, mask=1, dtype=dtype)
    inputs, functions = list(work.random_inputs(0)), [*schedules(work), tiled(work)]
    assert not [line for function in functions for line in accesses_out_of_bounds(function, A100)]
    wanted, step = expected(work, inputs), float(limits(dtype).eps)
    for output in in_series(functions, inputs, wanted.shape, dtype):
        np.testing.assert_allclose(output.astype("f8"), wanted, rtol=0, atol=2 * step * np.abs(wanted).max())


@pytest.mark.compiles
def test_masks_of_whole_tiles_and_of_whole_rows() -> None:
    """A row without a key is no number, as it is where the softmax stands alone; other rows do not notice."""
    work = WORKS["ragged"]
    queries, keys, mask, values = work.random_inputs(0)
    mask = np.where(np.arange(35)[None, :] <= np.arange(17)[:, None], mask, -np.inf).astype(np.float32)
    mask[3], mask[4], mask[5, :32] = -np.inf, np.finfo(np.float32).min, -np.inf
    mask[5, 33] = 1.0
    inputs = [queries, keys, mask, values]
    wanted = expected(work, inputs)
    assert np.isnan(wanted[:, 3]).all() and np.isfinite(wanted[:, [4, 5]]).all()
    for output in in_series([*schedules(work), tiled(work), tiled(work, 2), tiled(work, 4)], inputs, wanted.shape):
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.compiles
def test_parts_of_which_some_have_no_keys() -> None:
    """The 35 keys are three tiles."""
    work = WORKS["ragged"]
    inputs, functions = list(work.random_inputs(0)), [tiled(work, parts) for parts in (2, 8)]
    assert not [line for function in functions for line in accesses_out_of_bounds(function, A100)]
    for output in in_series(functions, inputs, work.outputs[0].shape):
        np.testing.assert_allclose(output, expected(work, inputs), rtol=1e-5, atol=1e-6)


def test_few_queries_have_blocks_enough() -> None:
    """Where they have none, the default divides the keys, and another launch adds up."""
    for rows, parts in ((1, True), (2048, False)):
        work = operators.attention(12, rows, 4096, 64, 64)
        space = space_of(work)
        config: dict[str, Any] = dict(space.config(space.origin))
        assert (config["parts"] > 1) == parts
        first, *adding = launches(GpuAttention().apply(work, A100, config).main, A100)
        assert first.blocks >= A100.multiprocessors and len(adding) == parts


def test_one_kernel_that_hands_nothing_on() -> None:
    function = tiled(WORKS["long"])
    (launch,) = launches(function, A100)
    assert sorted(launch.arguments) == sorted(str(buffer.name) for buffer in function.params)


def test_it_is_the_only_sketch_of_an_attention() -> None:
    for device in (A100, GPUS["t4"], EMULATED):
        assert [sketch.name for sketch, _ in sketches_for(WORKS["ragged"], device)] == ["gpu_attention"]


def right(work: Workload, execution: Execution) -> bool:
    wanted = expected(work, list(work.random_inputs(0)))
    return not execution.error and bool(np.allclose(execution.outputs[0], wanted, rtol=1e-4, atol=1e-6))


@pytest.mark.compiles
@pytest.mark.parametrize("oclgrind", [False, True], ids=["pocl", "oclgrind"])
def test_by_opencl(oclgrind: bool) -> None:
    if not opencl_devices() or (oclgrind and shutil.which("oclgrind") is None):
        pytest.skip("there is no OpenCL device, or no oclgrind on the PATH")
    works = [WORKS["ragged"], WORKS["one query"], WORKS["ragged"]]
    functions = [tiled(works[0]), schedules(works[1])[0], tiled(works[2], 2)]
    jobs = [
        Job(build_opencl(function, EMULATED.tvm()), work.random_inputs(0), [(work.outputs[0].shape, "float32")])
        for work, function in zip(works, functions, strict=True)
    ]
    for work, execution in zip(works, execute(jobs, oclgrind), strict=True):
        assert right(work, execution) and not execution.complaints


@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH")
def test_the_cuda_source_on_the_host_and_without_a_barrier() -> None:
    work = WORKS["ragged"]
    inputs = work.random_inputs(0)
    for parts in (1, 2):
        for execution in execute_on_host(tiled(work, parts), A100, inputs, SANITIZERS):
            assert right(work, execution) and not execution.complaints
    barriers = cuda_source(tiled(work), A100).count("__syncthreads();")

    def without(position: int) -> Callable[[str], str]:
        def edit(source: str) -> str:
            before = source.split("__syncthreads();")
            return "__syncthreads();".join(before[: position + 1]) + "__syncthreads();".join(before[position + 1 :])

        return edit

    assert barriers > 3
    for position in range(1, barriers - 1):
        (execution,) = execute_on_host(tiled(work), A100, inputs, ("thread",), without(position))
        assert "data race" in execution.complaints, position


@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc on the PATH")
@pytest.mark.parametrize("device", ["t4", "a100", "rtx3080"])
def test_default_schedules_do_not_spill(device: str) -> None:
    machine = GPUS[device]
    shapes = [(12, 128, 64), (96, 197, 64), (16, 2048, 64), (8, 1024, 128), (4, 100, 256), (12, 1, 64), (8, 50, 80)]
    sources = []
    for heads, rows, size in shapes:
        work = operators.attention(heads, rows, max(rows, 200), size, size, mask=1)
        ((sketch, space),) = sketches_for(work, machine)
        sources.append(cuda_source(sketch.apply(work, machine, space.config(space.origin)).main, machine))
    kernels = [kernel for of_source in resources_of(sources, machine) for kernel in of_source]
    assert len(kernels) > len(sources), "some attentions have parts"
    for needed in kernels:
        assert needed.spilled == 0 and needed.shared <= machine.shared_per_block


def attention(
    scores: Callable[..., Any] = lambda product, *i: product[i],
    weights: Callable[[Any], Any] = softmax_of,
    output: Callable[[Any], Any] = lambda sums: sums,
    query_of: Callable[..., Any] = lambda queries, b, h, i, d: queries[b, i, h * 8 + d],
) -> Workload:
    """Attention of two sequences with 3 heads of 8, which stand beside one another: queries share two heads of keys."""
    queries, keys = te.placeholder((2, 17, 24), name="q"), te.placeholder((2, 20, 8), name="k")
    values = te.placeholder((2, 20, 12), name="v")
    step, key = te.reduce_axis((0, 8), name="d"), te.reduce_axis((0, 20), name="s")
    product = te.compute(
        (2, 3, 17, 20), lambda b, h, i, j: te.sum(query_of(queries, b, h, i, step) * keys[b, j, step], axis=step)
    )
    made = weights(te.compute((2, 3, 17, 20), lambda *i: scores(product, *i)))
    sums = te.compute((2, 3, 17, 12), lambda b, h, i, c: te.sum(made[b, h, i, key] * values[b, key, c], axis=key))
    return Workload.create("attention", te.create_prim_func([queries, keys, values, output(sums)]))


@pytest.mark.compiles
@pytest.mark.parametrize(
    "work",
    [
        attention(),
        attention(lambda product, *i: te.if_then_else(i[2] >= i[3], product[i] * 0.25, -1e9)),
        attention(output=lambda sums: te.compute((2, 3, 17, 12), lambda *i: te.tanh(sums[i]))),
        attention(query_of=lambda queries, b, h, i, d: queries[b, i, h * 8 + d] * 2.0),
    ],
    ids=["shared keys", "causal", "epilogue", "scaled queries"],
)
def test_other_layouts_and_scores(work: Workload) -> None:
    ((sketch, space),) = sketches_for(work, A100)
    inputs = list(work.random_inputs(0))
    function = sketch.apply(work, A100, space.config(space.origin)).main
    (wanted,) = evaluate_graph(work.graph, inputs)
    for output in in_series([function, tiled(work)], inputs, wanted.shape):
        np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-6)


def without_maximum(scores: Any) -> Any:
    """A softmax whose weights are computed from the scores themselves."""
    key = te.reduce_axis((0, 20))
    total = te.compute((2, 3, 17), lambda b, h, i: te.sum(te.exp(scores[b, h, i, key]), axis=key))
    return te.compute(scores.shape, lambda b, h, i, j: te.exp(scores[b, h, i, j]) / total[b, h, i])


def with_another_row(product: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return product[b, h, i, j] + product[b, h, 16 - i, j]


@pytest.mark.parametrize(
    "work",
    [
        operators.matmul(8, 8, 8),
        operators.attention_scores(2, 8, 8, 8),
        attention(weights=without_maximum),
        attention(weights=lambda scores: te.compute(scores.shape, lambda *i: softmax_of(scores)[i] + 1.0)),
        attention(with_another_row),
        attention(query_of=lambda queries, b, h, i, d: te.exp(queries[b, i, h * 8 + d])),
        attention(query_of=lambda queries, b, h, i, d: queries[b, i, h * 8 + d].astype("float16").astype("float32")),
    ],
    ids=["matmul", "scores", "no maximum", "changed weights", "another row", "computed queries", "rounded queries"],
)
def test_other_functions_are_refused(work: Workload) -> None:
    with pytest.raises(UnsupportedFunction):
        find_attention(work.graph)
    assert GpuAttention().space(work, A100) is None
