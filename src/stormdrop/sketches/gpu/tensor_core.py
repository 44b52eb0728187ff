"""A matmul in half precision on tensor cores: tiles of 16 x 16, 16 deep, that a warp multiplies at once.

    for blocks of rows and columns:                                         blockIdx.x
        for warps:                                                          threadIdx.y
            for steps:
                shared memory = the parts of both operands that the block needs for a step
                for fragments of the step:
                    fragments of both operands = shared memory              wmma.load_matrix_sync
                    for fragments of rows, of columns:
                        accumulators += product of fragments                wmma.mma_sync
            shared memory = accumulators                                    wmma.store_matrix_sync
        output = shared memory, with all that follows element by element

Operands are float16, sums float32. The two dimensions and the depth have to be multiples of 16; other axes (of a batch)
are blocks. Tensor cores need a GPU: without one the same schedule is checked with plain loops in their place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from ...errors import UnsupportedFunction
from ...ir.attributes import APART
from ...ir.roles import multiplied
from ...ir.workload import Workload
from ...machine.gpu import WARP, Device
from ...space import Constraint, Ordinal, Space, Tile
from ..contract import Variant
from ..rules.blocks import largest_divisor
from .contraction import Parts, take_apart

_SIDE = 16  # of a fragment
_WARPS = 16  # of a block
_ACCUMULATORS = 16  # fragments of a warp, of 8 registers per thread each
_VECTORS = (1, 2, 4, 8)  # elements that a thread fetches at a time
_PADDING = (0, 8)  # elements after each row in shared memory: rows then begin in different banks
_HALF, _SINGLE = 2, 4  # bytes
_SHARED = "shared"


@dataclass(frozen=True, eq=False)
class _Matmul:
    """`transposed`: the second operand is read as [column, depth]."""

    parts: Parts
    rows: int
    columns: int
    depth: int
    transposed: bool

    def shared(self, rows: tuple[int, ...], columns: tuple[int, ...], steps: tuple[int, ...], padding: int) -> int:
        """Bytes of shared memory of a block."""
        high, wide, deep = (_SIDE * math.prod(tile[1:]) for tile in (rows, columns, steps))
        second = wide * (deep + padding) if self.transposed else deep * (wide + padding)
        return _HALF * (high * (deep + padding) + second) + _SINGLE * high * wide


@lru_cache(maxsize=64)
def _take_apart(workload: Workload) -> _Matmul:
    """Raises `UnsupportedFunction` where the function is no matmul in half precision, or not in whole fragments."""
    parts = take_apart(workload)
    loads = multiplied(parts.stage)
    assert loads is not None
    types = [str(load.source.dtype) for load in loads]
    if types != ["float16", "float16"] or str(parts.stage.buffer.dtype) != "float32" or parts.before:
        raise UnsupportedFunction("no product of float16 with float32 sums")
    spatial, reductions = parts.contraction.spatial, parts.contraction.reductions
    single = all(len(dimension) == 1 for operand in parts.contraction.operands for dimension in operand.dimensions)
    if not single or len(reductions) != 1 or len(spatial) < 2:
        raise UnsupportedFunction("no product of matrices")
    read = [[dimension[0] for dimension in operand.dimensions] for operand in parts.contraction.operands]
    *batch, (row, rows), (column, columns) = spatial
    outer, (depth, extent) = [name for name, _ in batch], reductions[0]
    names = [[name for name, factor in dimensions if factor == 1] for dimensions in read]
    seconds = [[*kept, *last] for kept in (outer, []) for last in ([depth, column], [column, depth])]
    if names[0] != [*outer, row, depth] or names[1] not in seconds:
        raise UnsupportedFunction("the operands are laid out otherwise")
    if any(size % _SIDE for size in (rows, columns, extent)):
        raise UnsupportedFunction(f"not in whole fragments of {_SIDE} x {_SIDE}")
    return _Matmul(parts, rows, columns, extent, names[1][-1] == depth)


class GpuTensorCore:
    """The sketch of this module; see there."""

    name: ClassVar[str] = "gpu_tensor_core"
    max_error: ClassVar[float] = 0.0

    def space(self, workload: Workload, target: Device) -> Space | None:
        """Knobs: blocks, warps and fragments of rows and of columns, the depth of a step, fetches, padding."""
        return _space(workload, target)

    def apply(self, workload: Workload, target: Device, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration; raises `UnsupportedFunction` for another function."""
        return Variant(scheduled(workload, config))


def scheduled(workload: Workload, config: Mapping[str, Any], tensorized: bool = True) -> PrimFunc:
    """The schedule at a configuration; not `tensorized`, with plain loops for what a warp does at once."""
    matmul = _take_apart(workload)
    parts = matmul.parts
    schedule = Schedule(tvm.IRModule({"main": parts.graph.function()}), debug_mask=0)
    block = schedule.get_sblock(parts.stage.name)
    if parts.epilogue is None:
        written = schedule.cache_write(block, 0, _SHARED)
    else:
        schedule.set_scope(block, 0, _SHARED)
        written = schedule.get_sblock(parts.epilogue.name)
    stored = schedule.cache_write(block, 0, "wmma.accumulator" if tensorized else "local")
    *batch, row, column, deep = schedule.get_loops(block)
    i0, i1, i2, i3 = schedule.split(row, [*config["rows"], _SIDE])
    j0, j1, j2, j3 = schedule.split(column, [*config["columns"], _SIDE])
    k0, k1, k2 = schedule.split(deep, [*config["steps"], _SIDE])
    schedule.reorder(*batch, i0, j0, i1, j1, k0, k1, i2, j2, i3, j3, k2)
    blocks, warps = schedule.fuse(*batch, i0, j0), schedule.fuse(i1, j1)
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(warps, "threadIdx.y")
    schedule.reverse_compute_at(stored, warps)
    schedule.reverse_compute_at(written, blocks)
    count = config["rows"][1] * config["columns"][1]

    def together(nest: Any, outside: Any, vector: int) -> None:
        """All threads of a block share the work of a nest, neighbouring ones a vector apart."""
        fused = schedule.fuse(*schedule.get_loops(nest)[outside:])
        _, warp, lane, elements = schedule.split(fused, [None, count, WARP, vector])
        schedule.bind(warp, "threadIdx.y")
        schedule.bind(lane, "threadIdx.x")
        schedule.vectorize(elements)

    together(written, 1, config["write"])
    loaded = []
    for position, fragment in enumerate(("wmma.matrix_a", "wmma.matrix_b")):
        staged = schedule.cache_read(block, position, _SHARED)
        schedule.compute_at(staged, k0)
        together(staged, 3, config[f"fetch{position}"])
        if config["padding"]:
            schedule.storage_align(staged, 0, -2, _SIDE, config["padding"])
        loaded.append(schedule.cache_read(block, position, fragment if tensorized else "local"))
        schedule.compute_at(loaded[-1], k1)
    filled = schedule.decompose_reduction(block, k0)
    tiled = [_fragments(schedule, nest) for nest in (*loaded, stored)]
    if tensorized:
        # Parses the tensor intrinsics of all GPUs: seconds, once in a process.
        from tvm.s_tir.tensor_intrin.cuda import get_wmma_intrin_group

        names = get_wmma_intrin_group(_SHARED, _SHARED, "float16", "float32", matmul.transposed)
        for loop, kind in zip(tiled, ("load_a", "load_b", "store"), strict=True):
            schedule.tensorize(loop, names[kind])
        schedule.tensorize(i3, names["compute"])
        schedule.tensorize(schedule.get_loops(filled)[-2], names["init"])
    # TVM would lay arrays of several types over one another, which its intrinsics then refuse.
    return schedule.mod["main"].with_attr(APART, True)


def _fragments(schedule: Schedule, nest: Any) -> Any:
    """The last two loops of a nest in tiles of a fragment; the outer loop of the tile."""
    high, wide = schedule.get_loops(nest)[-2:]
    (i0, i1), (j0, j1) = schedule.split(high, [None, _SIDE]), schedule.split(wide, [None, _SIDE])
    schedule.reorder(i0, j0, i1, j1)
    return i1


@lru_cache(maxsize=64)
def _space(workload: Workload, target: Device) -> Space | None:
    try:
        matmul = _take_apart(workload)
    except UnsupportedFunction:
        return None
    knobs = [
        Tile("rows", matmul.rows // _SIDE, 3),
        Tile("columns", matmul.columns // _SIDE, 3),
        Tile("steps", matmul.depth // _SIDE, 2),
        Ordinal("fetch0", _VECTORS),
        Ordinal("fetch1", _VECTORS),
        Ordinal("write", _VECTORS),
        Ordinal("padding", _PADDING),
    ]
    constraints = [
        Constraint(("rows", "columns"), lambda rows, columns: rows[1] * columns[1] <= _WARPS, f"{_WARPS} warps"),
        Constraint(
            ("rows", "columns"),
            lambda rows, columns: rows[2] * columns[2] <= _ACCUMULATORS,
            f"{_ACCUMULATORS} accumulators of a warp",
        ),
        Constraint(
            ("rows", "columns", "steps", "padding"),
            lambda *values: matmul.shared(*values) <= target.shared_per_block,
            f"{target.shared_per_block} bytes of shared memory",
        ),
    ]
    origin: dict[str, Any] = {"fetch0": 4, "fetch1": 4, "write": 4, "padding": 8}
    for name, fragments in (("rows", matmul.rows // _SIDE), ("columns", matmul.columns // _SIDE)):
        held = largest_divisor(fragments, 2)
        warps = largest_divisor(fragments // held, 2)
        origin[name] = (fragments // held // warps, warps, held)
    deep = largest_divisor(matmul.depth // _SIDE, 2)
    origin["steps"] = (matmul.depth // _SIDE // deep, deep)
    return Space(GpuTensorCore.name, knobs, constraints, origin)
