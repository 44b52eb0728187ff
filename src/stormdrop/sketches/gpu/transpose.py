"""The sketch `gpu_transpose`: data that is read along one axis and written along another goes through shared memory.

    for tiles, in parallel:                             blocks
        shared[b, w, r] = x[...]                        neighbouring threads along r: neighbours in x
        y[...] = f(shared[b, w, r])                     neighbouring threads along w: neighbours in y

Without that one of the two accesses would take a transaction for each thread. It is for transposes, other orders of
axes, shuffles of channels, and what is computed element by element with them.

Axes are taken apart where a load divides them (channels of a shuffle are groups and channels of a group), and become
one where all accesses step over them in the same way (rows and columns of an image). Then a tile has up to three axes:
r and w are the innermost ones of what is read and of what is written, and b is the next one of what is written, so that
short r and w make a tile, too. Rows of shared memory have an odd number of words, so that the elements of a warp are in
different banks in both directions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, ClassVar

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.ir.prim.expr import IntImm
from tvm.s_tir import Schedule
from tvm_ffi import structural_equal

from ...errors import UnsupportedFunction
from ...ir.contractions.split_axes import divisors_of, split_axis
from ...ir.expressions import Expr, rewrite_loads, simplified, unraveled
from ...ir.kept import kept
from ...ir.stages import Axis, Buffer, Stage, StageGraph, intermediate, variable
from ...ir.strides import Strides, strides_of
from ...ir.workload import Workload
from ...machine.gpu import WARP, WORD, Gpu
from ...space import Constraint, Knob, Ordinal, Space
from ..contract import Variant
from .tiling import shared_bytes
from .times.movement import Pass, expected_seconds

BESIDE, WRITE, READ = "beside", "write", "read"
"""The axes of a tile, and the knobs that have its extents along them."""

_SIZES = {BESIDE: (1, 2, 4, 8, 16, 32), WRITE: (8, 16, 32, 64, 128), READ: (8, 16, 32, 64, 128)}
_THREADS = (32, 64, 128, 256, 512, 1024)
_ELEMENTS = 1024  # of the default tile


class GpuTranspose:
    """The sketch that this module describes."""

    name: ClassVar[str] = "gpu_transpose"
    max_error: ClassVar[float] = 0.0

    def space(self, workload: Workload, target: Gpu) -> Space | None:
        """The tiles of a function that reads along one axis and writes along another; None for any other function.

        The knobs are the extents of a tile, and the threads of a block. Each of them moves the same number of elements.
        """
        return _space(workload, target)

    def estimate(self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The seconds that `times/movement.py` expects of n configurations, shape (n,)."""
        moved, threads = find_moved(workload), knobs["threads"]
        elements = np.prod([knobs[name] for name in moved.tile], axis=0)
        *copies, store = moved.graph.stages
        others = math.prod(axis.extent for axis in store.axes) // math.prod(moved.tile.values())
        blocks = others * np.prod([-(-extent // knobs[name]) for name, extent in moved.tile.items()], axis=0)
        passes = []
        for stage, (*_, name) in zip((*copies, store), (*moved.orders, moved.written), strict=True):
            axis = stage.axes[[*moved.tile].index(name) - len(moved.tile)]
            passes.append(Pass(stage, elements, elements, axis.var, np.minimum(knobs[name], WARP)))
        shared = sum(elements * np.dtype(str(copy.buffer.dtype)).itemsize for copy in copies)
        return expected_seconds(passes, target, blocks, threads, shared)

    def apply(self, workload: Workload, target: Gpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        moved = find_moved(workload)
        schedule = Schedule(tvm.IRModule({"main": moved.graph.function()}), debug_mask=0)
        *copies, store = (schedule.get_sblock(stage.name) for stage in moved.graph.stages)
        loops = schedule.get_loops(store)
        others, tiled = loops[: -len(moved.tile)], loops[-len(moved.tile) :]
        split = [schedule.split(loop, [None, config[name]]) for name, loop in zip(moved.tile, tiled, strict=True)]
        inner = dict(zip(moved.tile, (parts[1] for parts in split), strict=True))
        outer = [*others, *(parts[0] for parts in split)]
        schedule.reorder(*outer, *inner.values())
        blocks = schedule.fuse(*outer)
        schedule.bind(blocks, "blockIdx.x")
        for copy, order in zip(copies, moved.orders, strict=True):
            schedule.compute_at(copy, blocks, preserve_unit_loops=True)
            fetched = dict(zip(moved.tile, schedule.get_loops(copy)[-len(moved.tile) :], strict=True))
            _share(schedule, [fetched[name] for name in order], config["threads"])
            words = _words(str(schedule.get(copy).writes[0].source.dtype))
            schedule.storage_align(copy, 0, -2, 2 * words, words)
        # After the copies, whose size TVM would overestimate if the threads did not divide the tile.
        _share(schedule, [inner[name] for name in moved.written], config["threads"])
        return Variant(schedule.mod["main"])


@dataclass(frozen=True, eq=False)
class Moved:
    """A function as copies into shared memory and a stage that reads them.

    Attributes:
        graph: The copies, and after them the stage that writes the output. The last axes of all are those of the tile.
        tile: The axes of a tile with their extents: `WRITE`, `READ`, and `BESIDE` before them if there is a third one.
        written: The names of these axes as they lie in the output, the innermost last.
        orders: The same as they lie in what each copy reads.
    """

    graph: StageGraph
    tile: Mapping[str, int]
    written: tuple[str, ...]
    orders: tuple[tuple[str, ...], ...]


@kept
def find_moved(workload: Workload) -> Moved:
    """The function as one that moves what lies along one axis to another one.

    Raises:
        UnsupportedFunction: The function is something else, or it reads and writes along the same axis.
    """
    graph = workload.graph.inlined(lambda stage: False)
    if len(graph.stages) != 1 or graph.stages[0].reductions:
        raise UnsupportedFunction("not one stage without reductions")
    stage, output, reads = _merged(_without_quotients(graph.stages[0]))
    write = min(stage.axes, key=output.__getitem__)
    innermost = [strides and min(stage.axes, key=strides.__getitem__) for strides in reads]
    read = next((axis for axis in innermost if axis and axis is not write), None)
    if read is None:
        raise UnsupportedFunction("what is read and what is written have the same innermost axis")
    others = sorted({*stage.axes} - {read, write}, key=lambda axis: -output[axis])
    names = dict.fromkeys(others[-1:], BESIDE) | {write: WRITE, read: READ}

    def order(strides: Mapping[Axis, int]) -> tuple[str, ...]:
        return tuple(names[axis] for axis in sorted(names, key=lambda axis: -strides[axis]))

    axes = (*others[:-1], *names)
    copies: list[Stage] = []
    elements: dict[Any, Expr] = {}  # of shared memory, by the loads in whose place they stand
    orders = []
    for load, strides, axis in zip(stage.loads(), reads, innermost, strict=True):
        if strides and axis is read and not any(structural_equal(load, known) for known in elements):
            copies.append(_copy(load, axes, f"tile{len(copies)}"))
            orders.append(order(strides))
            elements[load] = copies[-1].buffer[tuple(axis.var for axis in axes)]
    value = rewrite_loads(
        stage.value, lambda load: next((new for old, new in elements.items() if structural_equal(load, old)), None)
    )
    graph = StageGraph(graph.parameters, (*copies, replace(stage, axes=axes, value=value)))
    return Moved(graph, {name: axis.extent for axis, name in names.items()}, order(output), tuple(orders))


def _copy(load: Any, axes: Sequence[Axis], name: str) -> Stage:
    """The stage that brings what is loaded at each position of some axes to shared memory."""
    own = [Axis(variable(axis.name), axis.extent) for axis in axes]
    shared = intermediate(name, [axis.extent for axis in axes], str(load.source.dtype), "shared")
    copy = Stage(name, tuple(axes), shared, tuple(axis.var for axis in axes), load)
    return copy.over(own, {axis.var: new.var for axis, new in zip(axes, own, strict=True)})


def _without_quotients(stage: Stage) -> Stage:
    """The stage with two axes in place of each axis that a load divides, if the divisor divides its extent."""
    while True:
        stage = replace(stage, value=simplified(stage.value, {axis.var: axis.extent for axis in stage.axes}))
        found = [
            (axis, divisor)
            for axis in stage.axes
            for divisor in divisors_of(stage.loads(), axis)
            if axis.extent % divisor == 0
        ]
        if not found:
            return stage
        stage, _, _ = split_axis(stage, stage, *min(found, key=lambda pair: pair[1]))


def _merged(stage: Stage) -> tuple[Stage, Strides, list[Strides | None]]:
    """A stage over as few axes as its accesses allow, and how they step over these axes.

    Before:     for n, h, w, c:  y[n, c, h, w] = x[n, h, w, c]      x and y have 7 rows of 7 pixels
    After:      for n, p, c:     y[n, c, p // 7, p % 7] = x[n, p // 7, p % 7, c]

    Returns:
        The stage, the strides of its store, and of each load; None for a load that does not read another element at
        each position.

    Raises:
        UnsupportedFunction: The strides of the store are not known, or the stage has less than two axes.
    """
    output = _strides(stage.buffer, stage.indices, stage.axes)
    if output is None:
        raise UnsupportedFunction("the output is not written along its dimensions")
    reads = [_strides(load.source, load.indices, stage.axes) for load in stage.loads()]
    accesses = [output, *filter(None, reads)]
    groups: list[tuple[Axis, ...]] = [(axis,) for axis in stage.axes if axis.extent > 1]

    def continues(first: tuple[Axis, ...], second: tuple[Axis, ...]) -> bool:
        return all(strides[first[-1]] == strides[second[0]] * second[0].extent for strides in accesses)

    while pair := next((pair for pair in permutations(groups, 2) if continues(*pair)), None):
        groups = [group for group in groups if group not in pair] + [(*pair[0], *pair[1])]
    if len(groups) < 2:
        raise UnsupportedFunction("the elements are read and written in the same order")
    axes = {group: Axis(variable(group[-1].name), math.prod(axis.extent for axis in group)) for group in groups}
    values: dict[Any, Expr] = {axis.var: IntImm("int32", 0) for axis in stage.axes}
    for group, whole in axes.items():
        positions = unraveled(whole.var, [axis.extent for axis in group])
        values |= {axis.var: position for axis, position in zip(group, positions, strict=True)}

    def of_merged(strides: Strides) -> Strides:
        return {whole: strides[group[-1]] for group, whole in axes.items()}

    merged = stage.over(list(axes.values()), values)
    return merged, of_merged(output), [strides and of_merged(strides) for strides in reads]


def _strides(buffer: Buffer, indices: Sequence[Expr], axes: Sequence[Axis]) -> Strides | None:
    """The strides of an access along axes; None if it may leave the buffer, or repeats elements."""
    strides = strides_of(buffer, indices, axes)
    repeats = strides is None or not all(stride for axis, stride in strides.items() if axis.extent > 1)
    return None if repeats else strides


def _share(schedule: Schedule, loops: Sequence[Any], threads: int) -> None:
    """Divides the elements of a tile among the threads of a block, neighbours along the last loop to neighbours."""
    schedule.reorder(*loops)
    _, lane = schedule.split(schedule.fuse(*loops), [None, threads])
    schedule.bind(lane, "threadIdx.x")


@kept
def _space(workload: Workload, target: Gpu) -> Space | None:
    try:
        moved = find_moved(workload)
    except UnsupportedFunction:
        return None
    types = [str(copy.buffer.dtype) for copy in moved.graph.stages[:-1]]
    sizes = {name: [size for size in _SIZES[name] if size < extent] for name, extent in moved.tile.items()}
    for name, extent in moved.tile.items():
        if extent <= _SIZES[name][-1]:
            sizes[name].append(extent)
    threads = [count for count in _THREADS if count <= target.threads_per_block]

    def fits(*tile: int) -> bool:
        tiles = (math.prod(tile[:-1]) * _row_bytes(tile[-1], dtype) for dtype in types)
        return bool(shared_bytes(tiles) <= target.shared_per_block)

    def has_work(*tile_and_threads: int) -> bool:
        *tile, count = tile_and_threads
        return count <= max(WARP, math.prod(tile))

    def largest(counts: Sequence[int], most: int) -> int:
        return max((count for count in counts if count <= most), default=counts[0])

    origin = dict.fromkeys(sizes, 1)
    for name, most in ((WRITE, WARP), (READ, _ELEMENTS), (WRITE, _ELEMENTS), (BESIDE, _ELEMENTS)):
        if name in sizes:
            others = math.prod(size for other, size in origin.items() if other != name)
            origin[name] = largest(sizes[name], min(most, _ELEMENTS // others))
    if not fits(*origin.values()):
        return None
    origin["threads"] = largest(threads, min(256, max(WARP, math.prod(origin.values()))))
    knobs: list[Knob] = [*(Ordinal(name, counts) for name, counts in sizes.items()), Ordinal("threads", threads)]
    constraints = [
        Constraint(tuple(sizes), fits, f"{target.shared_per_block} bytes shared"),
        Constraint((*sizes, "threads"), has_work, "an element for each thread"),
    ]
    return Space(GpuTranspose.name, knobs, constraints, origin)


def _words(dtype: str) -> int:
    """The elements of a word of shared memory, at least one."""
    return max(1, WORD // np.dtype(dtype).itemsize)


def _row_bytes(size: int, dtype: str) -> int:
    """The bytes of a row of a tile in shared memory: those of an odd number of words."""
    words = _words(dtype)
    return (size + (words - size) % (2 * words)) * np.dtype(dtype).itemsize
