"""The sketch `gpu_tensor_core`: a matmul in half precision on tensor cores before sm_80, in fragments of 16 x 16 x 16.

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
schedule is checked with plain loops in their place. GPUs since sm_80 have `gpu_mma`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from ...errors import UnsupportedFunction
from ...ir.attributes import DISJOINT_SHARED
from ...ir.dtypes import FLOAT16
from ...ir.kept import kept
from ...ir.workload import Workload
from ...machine.gpu import Gpu
from ...space import Constraint, Ordinal, Space, Tile
from ...space.tile import largest_divisor
from ..contract import Variant
from .intrinsics import cuda_intrinsics
from .matrix_product import (
    MOST_FRAGMENTS,
    MOST_WARPS,
    SIDE,
    HalfMatmul,
    find_matmul,
    share_among_threads,
    speedup_of_tensor_cores,
    split_into_fragments,
    thread_registers,
    tile_in_warps,
)
from .times.fragments import FragmentTilings, expected_seconds

_VECTORS = (1, 2, 4, 8)  # elements that a thread fetches at a time
_PADDING = (0, 8)  # elements after each row in shared memory, so that rows begin in different banks
_HALF, _SINGLE = 2, 4  # bytes
_SHARED = "shared"


class GpuTensorCore:
    """The sketch that this module describes."""

    name: ClassVar[str] = "gpu_tensor_core"
    max_error: ClassVar[float] = 0.0

    def speedup_bound(self, workload: Workload, target: Gpu) -> float:
        """See `Bounded`: how much faster tensor cores multiply such factors than lanes multiply float32."""
        return speedup_of_tensor_cores(find_matmul(workload), target)

    def space(self, workload: Workload, target: Gpu) -> Space | None:
        """The tilings of a matmul within the device's limits; None if the function or the device is none for it.

        The knobs are blocks, warps and fragments of rows and of columns, the depth of a step, the elements per fetch
        and per write, and the padding.
        """
        return _space(workload, target)

    def estimate(self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The seconds that `times/fragments.py` expects of n configurations, shape (n,)."""
        matmul = find_matmul(workload)
        rows, columns, steps = (np.asarray(knobs[name]).T for name in ("rows", "columns", "steps"))
        shared = _shared_bytes(matmul, rows, columns, steps, knobs["padding"])
        conflicts = np.where(knobs["padding"], 1, np.minimum(8, 2 * steps[1]))  # of eight rows of eight elements
        stages, registers = np.ones_like(shared), thread_registers(rows, columns)
        sizes = (matmul.batches, rows, columns, steps, stages, registers, shared)
        tilings = FragmentTilings(*sizes, fetch=(knobs["fetch0"], knobs["fetch1"]), conflicts=conflicts)
        return expected_seconds(tilings, target, workload.bytes)

    def apply(self, workload: Workload, target: Gpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        return Variant(_schedule(workload, config), plain=partial(_schedule, workload, config, tensorized=False))


def _schedule(workload: Workload, config: Mapping[str, Any], tensorized: bool = True) -> PrimFunc:
    """The schedule at a configuration; if not `tensorized`, plain loops do what a warp does at once."""
    matmul = find_matmul(workload)
    fused = matmul.fused
    schedule = Schedule(tvm.IRModule({"main": fused.graph.function()}), debug_mask=0)
    block = schedule.get_sblock(fused.stage.name)
    if fused.epilogue is None:
        output = schedule.cache_write(block, 0, _SHARED)
    else:
        schedule.set_scope(block, 0, _SHARED)
        output = schedule.get_sblock(fused.epilogue.name)
    stored = schedule.cache_write(block, 0, "wmma.accumulator" if tensorized else "local")
    loops = tile_in_warps(schedule, block, config)
    schedule.reverse_compute_at(stored, loops.warps)
    schedule.reverse_compute_at(output, loops.blocks)
    count = config["rows"][1] * config["columns"][1]
    share_among_threads(schedule, output, 1, count, config["write"])
    loaded = []
    for position, fragment in enumerate(("wmma.matrix_a", "wmma.matrix_b")):
        staged = schedule.cache_read(block, position, _SHARED, [block])  # what follows may read it as well
        schedule.compute_at(staged, loops.steps)
        share_among_threads(schedule, staged, 3, count, config[f"fetch{position}"])
        if config["padding"]:
            schedule.storage_align(staged, 0, -2, SIDE, config["padding"])
        loaded.append(schedule.cache_read(block, position, fragment if tensorized else "local"))
        schedule.compute_at(loaded[-1], loops.fragments)
    initial = schedule.decompose_reduction(block, loops.steps)
    fragments = [split_into_fragments(schedule, nest) for nest in (*loaded, stored)]
    if tensorized:
        names = cuda_intrinsics().get_wmma_intrin_group(_SHARED, _SHARED, "float16", "float32", matmul.transposed)
        for loop, kind in zip(fragments, ("load_a", "load_b", "store"), strict=True):
            schedule.tensorize(loop, names[kind])
        schedule.tensorize(loops.product, names["compute"])
        schedule.tensorize(schedule.get_loops(initial)[-2], names["init"])
    # Otherwise TVM lets arrays of several types share memory, which its intrinsics then refuse.
    return schedule.mod["main"].with_attr(DISJOINT_SHARED, True)


def _shared_bytes(
    matmul: HalfMatmul, rows: Sequence[Any], columns: Sequence[Any], steps: Sequence[Any], padding: Any
) -> Any:
    """Bytes of shared memory of a block, given the tiles and the padding."""
    height, width, depth = (SIDE * math.prod(tile[1:]) for tile in (rows, columns, steps))
    second = width * (depth + padding) if matmul.transposed else depth * (width + padding)
    return _HALF * (height * (depth + padding) + second) + _SINGLE * height * width


@kept
def _space(workload: Workload, target: Gpu) -> Space | None:
    if not target.tensor_cores or target.asynchronous_copies:
        return None
    try:
        matmul = find_matmul(workload)
    except UnsupportedFunction:
        return None
    if not matmul.direct or matmul.dtype != FLOAT16:
        return None
    knobs = [
        Tile("rows", matmul.rows // SIDE, 3),
        Tile("columns", matmul.columns // SIDE, 3),
        Tile("steps", matmul.depth // SIDE, 2),
        Ordinal("fetch0", _VECTORS),
        Ordinal("fetch1", _VECTORS),
        Ordinal("write", _VECTORS),
        Ordinal("padding", _PADDING),
    ]
    constraints = [
        Constraint(
            ("rows", "columns"), lambda rows, columns: rows[1] * columns[1] <= MOST_WARPS, f"{MOST_WARPS} warps"
        ),
        Constraint(
            ("rows", "columns"),
            lambda rows, columns: rows[2] * columns[2] <= MOST_FRAGMENTS,
            f"{MOST_FRAGMENTS} accumulators of a warp",
        ),
        Constraint(
            ("rows", "columns", "steps", "padding"),
            lambda *values: _shared_bytes(matmul, *values) <= target.shared_per_block,
            f"{target.shared_per_block} bytes of shared memory",
        ),
    ]
    origin: dict[str, Any] = {"fetch0": 4, "fetch1": 4, "write": 4, "padding": 8}
    for name, fragments in (("rows", matmul.rows // SIDE), ("columns", matmul.columns // SIDE)):
        inner = largest_divisor(fragments, 2)
        warps = largest_divisor(fragments // inner, 2)
        origin[name] = (fragments // inner // warps, warps, inner)
    deep = largest_divisor(matmul.depth // SIDE, 2)
    origin["steps"] = (matmul.depth // SIDE // deep, deep)
    return Space(GpuTensorCore.name, knobs, constraints, origin)
