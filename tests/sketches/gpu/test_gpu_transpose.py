"""Transposes for GPUs: which axes a tile has, what is computed, and that both sides of it coalesce."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from stand_ins.cuda_on_host import SANITIZERS, execute_on_host
from stand_ins.memory_sectors import sectors_of
from stormdrop import operators
from stormdrop.codegen.compile import compile_together
from stormdrop.codegen.cuda import cuda_source, resources_of
from stormdrop.codegen.serial_loops import with_serial_loops
from stormdrop.codegen.thread_bounds import accesses_out_of_bounds
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS, SECTOR
from stormdrop.sketches.gpu.rows.sketch import GpuRows
from stormdrop.sketches.gpu.streaming import GpuStreaming
from stormdrop.sketches.gpu.transpose import BESIDE, READ, WRITE, GpuTranspose, find_moved
from stormdrop.sketches.registry import sketches_for
from stormdrop.space import Space

A100 = GPUS["a100"]
transpose = operators.transpose


def computed(*shapes: tuple[int, ...], to: tuple[int, ...], dtype: str = "float32", of: Callable[..., Any]) -> Workload:
    """The function whose output is `of` the inputs and the indices."""
    inputs = [te.placeholder(shape, dtype, name=f"x{number}") for number, shape in enumerate(shapes)]
    output = te.compute(to, lambda *i: of(*inputs, *i), name="y")
    return Workload.create("computed", te.create_prim_func([*inputs, output]), ())


def shuffled(pixels: int, channels: int, groups: int) -> Workload:
    """A shuffle of channels and a product, as a model has them after views were inlined."""
    size, shape = channels // groups, (1, pixels, channels)
    return computed(shape, to=shape, of=lambda x, n, p, c: x[n, p, c % groups * size + c // groups] * 2.0)


WORKS = {
    "ragged": transpose((50, 33), (1, 0)),
    "images": transpose((2, 7, 7, 40), (0, 3, 1, 2)),
    "colours": transpose((1, 3, 9, 11), (0, 2, 3, 1)),
    "keys": transpose((1, 12, 3, 16), (0, 2, 3, 1)),
    "short": transpose((3, 70, 5), (2, 1, 0)),
    "shuffle": shuffled(81, 24, 3),
    "residual": computed(
        (40, 20), (20, 40), (20,), to=(20, 40), of=lambda x, z, b, i, j: x[j, i] * x[j, i] + z[i, j] + b[i]
    ),
    "two": computed((18, 34), (18, 34), to=(34, 18), of=lambda x, z, i, j: x[j, i] - z[j, i]),
    "half": computed((36, 20), to=(20, 36), dtype="float16", of=lambda x, i, j: x[j, i]),
    "part": computed((36, 20), to=(12, 30), of=lambda x, i, j: x[j + 6, i + 8]),
}


def space_of(work: Workload) -> Space:
    space = GpuTranspose().space(work, A100)
    assert space is not None
    return space


def schedules(work: Workload, count: int) -> list[Any]:
    """The schedules at the default and at random points."""
    space, rng = space_of(work), np.random.default_rng(0)
    points = [space.origin, *(space.sample(rng) for _ in range(count))]
    return [GpuTranspose().apply(work, A100, space.config(point)).main for point in points]


@pytest.mark.compiles
@pytest.mark.parametrize("name", WORKS)
def test_the_right_answer_within_the_buffers(name: str) -> None:
    work = WORKS[name]
    inputs = work.random_inputs(0)
    (expected,) = evaluate_graph(work.graph, inputs)
    functions = schedules(work, 3)
    assert not [line for function in functions for line in accesses_out_of_bounds(function, A100)]
    for kernel in compile_together(list(map(with_serial_loops, functions)), Cpu.detect().tvm()):
        output = tvm.runtime.empty(expected.shape, work.outputs[0].dtype)
        kernel.call(*(tvm.runtime.tensor(array) for array in inputs), output)
        np.testing.assert_allclose(output.numpy(), expected, rtol=1e-3 if name == "half" else 1e-6)


@pytest.mark.parametrize(
    ("name", "tile", "written", "read"),
    [
        ("ragged", {WRITE: 50, READ: 33}, (READ, WRITE), (WRITE, READ)),
        ("images", {BESIDE: 2, WRITE: 49, READ: 40}, (BESIDE, READ, WRITE), (BESIDE, WRITE, READ)),
        ("colours", {WRITE: 3, READ: 99}, (READ, WRITE), (WRITE, READ)),
        ("keys", {WRITE: 12, READ: 48}, (READ, WRITE), (WRITE, READ)),
        ("short", {BESIDE: 70, WRITE: 3, READ: 5}, (READ, BESIDE, WRITE), (WRITE, BESIDE, READ)),
        ("shuffle", {BESIDE: 81, WRITE: 3, READ: 8}, (BESIDE, READ, WRITE), (BESIDE, WRITE, READ)),
    ],
)
def test_the_axes_of_a_tile(name: str, tile: dict[str, int], written: tuple[str, ...], read: tuple[str, ...]) -> None:
    moved = find_moved(WORKS[name])
    assert (moved.tile, moved.written, moved.orders) == (tile, written, (read,))


@pytest.mark.parametrize(("name", "copies"), [("residual", 1), ("two", 2)])
def test_what_is_read_along_another_axis_is_copied_once(name: str, copies: int) -> None:
    assert len(find_moved(WORKS[name]).graph.stages) == copies + 1


@pytest.mark.parametrize(
    "work",
    [
        transpose((2, 30, 4, 16), (0, 2, 1, 3)),  # heads: the innermost axis stays
        operators.elementwise((7, 9)),
        operators.reduce((7, 9), axis=0),
        operators.elementwise((7, 9), kind="bias_add"),
        computed((9, 7), to=(9, 9), of=lambda x, i, j: x[j, i % 7]),  # 7 does not divide 9
        computed((9, 7), to=(7, 9), of=lambda x, i, j: te.if_then_else(j < 5, x[j + 4, i], 0.0)),  # a part only
    ],
    ids=str,
)
def test_other_functions_are_not_transposed(work: Workload) -> None:
    assert GpuTranspose().space(work, A100) is None
    with pytest.raises(UnsupportedFunction):
        find_moved(work)
    assert {sketch.name for sketch, _ in sketches_for(work, A100)} <= {GpuRows.name, GpuStreaming.name}


@pytest.mark.parametrize(
    "work",
    [
        transpose((128, 64), (1, 0)),
        transpose((1, 16, 16, 64), (0, 3, 1, 2)),
        transpose((1, 64, 16, 16), (0, 2, 3, 1)),
        transpose((1, 3, 32, 32), (0, 2, 3, 1)),
        transpose((32, 4, 16), (1, 2, 0)),
        shuffled(64, 96, 3),
    ],
    ids=str,
)
def test_no_sector_of_memory_is_moved_twice(work: Workload) -> None:
    ((sketch, _),) = sketches_for(work, A100)
    assert sketch.name == GpuTranspose.name
    (function,) = schedules(work, 0)
    least = work.bytes / 2 / SECTOR
    assert sectors_of(function, A100) == {"x0": least, "y0": least}
    streaming = GpuStreaming()
    other = streaming.space(work, A100)
    assert other is not None
    uncoalesced = sectors_of(streaming.apply(work, A100, other.config(other.origin)).main, A100)
    assert uncoalesced["x0"] > 1.4 * least


def elements_of(config: Mapping[str, Any]) -> int:
    """The elements of a tile."""
    return math.prod(size for name, size in config.items() if name != "threads")


@pytest.mark.compiles
@pytest.mark.parametrize("name", ["a100", "rtx3080"])
def test_nvcc_takes_them_without_spills_and_the_shared_memory_that_they_may_have(name: str) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc on the PATH")
    device = GPUS[name]
    sources = []
    for work in WORKS.values():
        space, rng = space_of(work), np.random.default_rng(1)
        configs = [space.config(space.sample(rng)) for _ in range(50)]
        largest = max(configs, key=elements_of)
        for config in (space.config(space.origin), configs[0], largest):
            sources.append(cuda_source(GpuTranspose().apply(work, device, config).main, device))
    for (kernel,) in resources_of(sources, device):
        assert kernel.spilled == 0 and 0 < kernel.shared <= device.shared_per_block


@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH")
def test_sanitizers_find_a_removed_barrier_and_nothing_else() -> None:
    work = WORKS["residual"]
    inputs = work.random_inputs(0)
    (expected,) = evaluate_graph(work.graph, inputs)
    (function,) = schedules(work, 0)
    for execution in execute_on_host(function, A100, inputs, SANITIZERS):
        np.testing.assert_allclose(execution.outputs[0], expected, rtol=1e-6)
        assert not execution.complaints and not execution.error
    barrier = "__syncthreads();"
    (faulty,) = execute_on_host(function, A100, inputs, ("thread",), lambda source: source.replace(barrier, "", 1))
    assert faulty.complaints == ("data race",)
