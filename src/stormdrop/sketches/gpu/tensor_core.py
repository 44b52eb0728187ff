"""The sketch `gpu_tensor_core`: a matmul in half precision on tensor cores, in fragments of 16 x 16 x 16.

    for blocks of rows and columns:                                         blockIdx.x
        for warps:                                                          threadIdx.y
            for steps:
                shared memory = the parts of both operands that the block needs for a step
                for fragments of the step:
                    fragments of both operands = shared memory              wmma.load_matrix_sync
                    for fragments of rows, of columns:
                        accumulators += product of fragments                wmma.mma_sync
            shared memory = accumulators                                    wmma.store_matrix_sync
        output = epilogue(shared memory)

A warp multiplies two fragments at once. Operands are float16, sums are float32. Rows, columns and depth have to be
multiples of 16. Other axes, such as that of a batch, are blocks. Tensor cores need a GPU. Without one, the same
schedule is checked with plain loops in their place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from ...errors import UnsupportedFunction
from ...ir.attributes import DISJOINT_SHARED
from ...ir.contractions.contraction import multiplied_loads
from ...ir.kept import kept
from ...ir.workload import Workload
from ...machine.gpu import WARP, Gpu
from ...space import Constraint, Ordinal, Space, Tile
from ...space.tile import largest_divisor
from ..contract import Variant
from .contraction import FusedContraction, find_fused_contraction
from .intrinsics import cuda_intrinsics

_SIDE = 16  # of a fragment
_WARPS = 16  # the most warps of a block
_ACCUMULATORS = 16  # the most fragments that a warp accumulates, each in 8 registers of a thread
_VECTORS = (1, 2, 4, 8)  # elements that a thread fetches at a time
_PADDING = (0, 8)  # elements after each row in shared memory, so that rows begin in different banks
_HALF, _SINGLE = 2, 4  # bytes
_SHARED = "shared"


class GpuTensorCore:
    """The sketch that this module describes."""

    name: ClassVar[str] = "gpu_tensor_core"
    max_error: ClassVar[float] = 0.0

    def space(self, workload: Workload, target: Gpu) -> Space | None:
        """The tilings of a matmul within the device's limits; None if the function is no such matmul.

        The knobs are blocks, warps and fragments of rows and of columns, the depth of a step, the elements per fetch
        and per write, and the padding.
        """
        return _space(workload, target)

    def apply(self, workload: Workload, target: Gpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        return Variant(schedule_matmul(workload, config))


def schedule_matmul(workload: Workload, config: Mapping[str, Any], tensorized: bool = True) -> PrimFunc:
    """The schedule at a configuration.

    Args:
        workload: A matmul in half precision.
        config: The values of the knobs.
        tensorized: Whether to use tensor cores; if not, plain loops do what a warp does at once.

    Raises:
        UnsupportedFunction: The function is no matmul in half precision.
    """
    matmul = _find_matmul(workload)
    fused = matmul.fused
    schedule = Schedule(tvm.IRModule({"main": fused.graph.function()}), debug_mask=0)
    block = schedule.get_sblock(fused.stage.name)
    if fused.epilogue is None:
        output = schedule.cache_write(block, 0, _SHARED)
    else:
        schedule.set_scope(block, 0, _SHARED)
        output = schedule.get_sblock(fused.epilogue.name)
    stored = schedule.cache_write(block, 0, "wmma.accumulator" if tensorized else "local")
    *batch, row, column, depth = schedule.get_loops(block)
    i0, i1, i2, i3 = schedule.split(row, [*config["rows"], _SIDE])
    j0, j1, j2, j3 = schedule.split(column, [*config["columns"], _SIDE])
    k0, k1, k2 = schedule.split(depth, [*config["steps"], _SIDE])
    schedule.reorder(*batch, i0, j0, i1, j1, k0, k1, i2, j2, i3, j3, k2)
    blocks, warps = schedule.fuse(*batch, i0, j0), schedule.fuse(i1, j1)
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(warps, "threadIdx.y")
    schedule.reverse_compute_at(stored, warps)
    schedule.reverse_compute_at(output, blocks)
    count = config["rows"][1] * config["columns"][1]
    _share_among_threads(schedule, output, 1, count, config["write"])
    loaded = []
    for position, fragment in enumerate(("wmma.matrix_a", "wmma.matrix_b")):
        staged = schedule.cache_read(block, position, _SHARED, [block])  # what follows may read it as well
        schedule.compute_at(staged, k0)
        _share_among_threads(schedule, staged, 3, count, config[f"fetch{position}"])
        if config["padding"]:
            schedule.storage_align(staged, 0, -2, _SIDE, config["padding"])
        loaded.append(schedule.cache_read(block, position, fragment if tensorized else "local"))
        schedule.compute_at(loaded[-1], k1)
    initial = schedule.decompose_reduction(block, k0)
    fragments = [_split_into_fragments(schedule, nest) for nest in (*loaded, stored)]
    if tensorized:
        names = cuda_intrinsics().get_wmma_intrin_group(_SHARED, _SHARED, "float16", "float32", matmul.transposed)
        for loop, kind in zip(fragments, ("load_a", "load_b", "store"), strict=True):
            schedule.tensorize(loop, names[kind])
        schedule.tensorize(i3, names["compute"])
        schedule.tensorize(schedule.get_loops(initial)[-2], names["init"])
    # Otherwise TVM lets arrays of several types share memory, which its intrinsics then refuse.
    return schedule.mod["main"].with_attr(DISJOINT_SHARED, True)


def _share_among_threads(schedule: Schedule, nest: Any, outside: int, warps: int, vector: int) -> None:
    """Divides the loops of a nest, after the `outside` outermost, among all threads of a block, vector by vector."""
    fused = schedule.fuse(*schedule.get_loops(nest)[outside:])
    _, warp, lane, elements = schedule.split(fused, [None, warps, WARP, vector])
    schedule.bind(warp, "threadIdx.y")
    schedule.bind(lane, "threadIdx.x")
    schedule.vectorize(elements)


def _split_into_fragments(schedule: Schedule, nest: Any) -> Any:
    """Tiles the last two loops of a nest in fragments; returns the outer loop inside of a fragment."""
    rows, columns = schedule.get_loops(nest)[-2:]
    (i0, i1), (j0, j1) = schedule.split(rows, [None, _SIDE]), schedule.split(columns, [None, _SIDE])
    schedule.reorder(i0, j0, i1, j1)
    return i1


@dataclass(frozen=True, eq=False)
class _Matmul:
    """A product of matrices; `transposed` says that the second operand is read as [column, depth]."""

    fused: FusedContraction
    rows: int
    columns: int
    depth: int
    transposed: bool

    def shared_bytes(
        self, rows: tuple[int, ...], columns: tuple[int, ...], steps: tuple[int, ...], padding: int
    ) -> int:
        """Bytes of shared memory of a block, given the tiles and the padding."""
        height, width, depth = (_SIDE * math.prod(tile[1:]) for tile in (rows, columns, steps))
        second = width * (depth + padding) if self.transposed else depth * (width + padding)
        return _HALF * (height * (depth + padding) + second) + _SINGLE * height * width


@kept
def _find_matmul(workload: Workload) -> _Matmul:
    """The matmul of a function. Raises `UnsupportedFunction` if it is none in half precision, in whole fragments."""
    fused = find_fused_contraction(workload)
    loads = multiplied_loads(fused.stage)
    assert loads is not None
    types = [str(load.source.dtype) for load in loads]
    if types != ["float16", "float16"] or str(fused.stage.buffer.dtype) != "float32" or fused.producers:
        raise UnsupportedFunction("no product of float16 with float32 sums")
    spatial, reductions, operands = fused.axes.spatial, fused.axes.reductions, fused.axes.operands
    one_axis_each = all(len(dimension) == 1 for operand in operands for dimension in operand.dimensions)
    if not one_axis_each or len(reductions) != 1 or len(spatial) < 2:
        raise UnsupportedFunction("no product of matrices")
    *batch, (row, rows), (column, columns) = spatial
    outer, (depth, extent) = [name for name, _ in batch], reductions[0]
    read = [[dimension[0] for dimension in operand.dimensions] for operand in operands]
    first, second = [[name for name, factor in dimensions if factor == 1] for dimensions in read]
    allowed = [[*leading, *matrix] for leading in (outer, []) for matrix in ([depth, column], [column, depth])]
    if first != [*outer, row, depth] or second not in allowed:
        raise UnsupportedFunction("the operands are laid out otherwise")
    if any(size % _SIDE for size in (rows, columns, extent)):
        raise UnsupportedFunction(f"not in whole fragments of {_SIDE} x {_SIDE}")
    return _Matmul(fused, rows, columns, extent, second[-1] == depth)


@kept
def _space(workload: Workload, target: Gpu) -> Space | None:
    if not target.tensor_cores:
        return None
    try:
        matmul = _find_matmul(workload)
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
            lambda *values: matmul.shared_bytes(*values) <= target.shared_per_block,
            f"{target.shared_per_block} bytes of shared memory",
        ),
    ]
    origin: dict[str, Any] = {"fetch0": 4, "fetch1": 4, "write": 4, "padding": 8}
    for name, fragments in (("rows", matmul.rows // _SIDE), ("columns", matmul.columns // _SIDE)):
        inner = largest_divisor(fragments, 2)
        warps = largest_divisor(fragments // inner, 2)
        origin[name] = (fragments // inner // warps, warps, inner)
    deep = largest_divisor(matmul.depth // _SIDE, 2)
    origin["steps"] = (matmul.depth // _SIDE // deep, deep)
    return Space(GpuTensorCore.name, knobs, constraints, origin)
