"""The sketch `gpu_rows`: norms, softmax, sums, one-row products and elementwise chains, which memory limits.

    for groups of rows:                                         blockIdx.x
        for rows of a group:                                    threadIdx.y
            for lanes:                                          threadIdx.x
                registers = what several stages read            vectors of 16 bytes
            for lanes:
                partial = the terms of the lane
            total = partial of all lanes                        by shuffles; of several warps by shared memory
            for lanes:
                output = f(registers, totals)                   vectors of 16 bytes

The sums of a softmax or a norm read what is in registers. If a row has too many elements for them, each stage reads it
again, some vectors ahead of the arithmetic. So do sums of products, such as those of a matrix and a vector, whose rows
are those of the matrix. Without sums, blocks share the elements of a row. If neighbouring sums read neighbours, as in a
vector times a matrix, vectors go along these: see `columns`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from ....errors import UnsupportedFunction
from ....ir.expressions import Expr, rewrite_loads
from ....ir.kept import kept
from ....ir.workload import Workload
from ....machine.gpu import WARP, Gpu
from ....space import Constraint, Ordinal, Space
from ...contract import Variant
from ..contraction import find_fused_contraction
from ..times.movement import Pass, expected_seconds
from .columns import columns_kernel
from .kernel import rows_kernel
from .stages import RowStages, find_columns, find_rows

_THREADS = (32, 64, 128, 256, 512, 1024)
_LANES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_VECTORS = (1, 2, 4, 8, 16)
_AHEAD = (1, 2, 4, 8)

_STEPS = 8  # vectors of a lane that are not worth more warps
_AHEAD_OF = 4  # vectors that a thread reads ahead as a default, if there are enough
_SHARE = 0.85  # of the threads that have something to do, which is enough
_BUSY = 512  # threads that keep a multiprocessor busy


class GpuRows:
    """The sketch that this module describes."""

    name: ClassVar[str] = "gpu_rows"
    max_error: ClassVar[float] = 0.0

    def space(self, workload: Workload, target: Gpu) -> Space | None:
        """The schedules of a function that reads along its terms or along neighbouring sums; None for any other one.

        The knobs are the threads of a block, the lanes that share a row or a column, the elements of a vector, and the
        vectors of a lane that are read ahead.
        """
        return _space(workload, target)

    def estimate(self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The seconds that `times/movement.py` expects of n configurations, shape (n,)."""
        found = _found(workload)
        lanes, vector, ahead = knobs["lanes"], knobs["vector"], knobs["ahead"]
        groups, terms = knobs["threads"] // lanes, found.term.extent
        if found.columns:
            rows, along, run = groups * vector, found.row.var, np.minimum(groups, WARP) * vector
        else:
            rows, along, run = np.minimum(groups, found.row.extent), found.term.var, np.minimum(lanes, WARP) * vector
        parts = 1 if found.sums else -(-terms // (lanes * vector * ahead))
        kept = {each.load.source for each in found.repeated}
        passes = []
        for number, stage in enumerate(found.stages):
            if number:  # what several stages read is in registers
                stage = replace(stage, value=rewrite_loads(stage.value, partial(_one_of, kept)))
            work = rows * terms / parts if found.term in stage.axes else rows
            elements = rows if stage.reductions else work
            passes.append(Pass(stage, work, elements, along, run, lanes, ahead))
        blocks = -(-found.row.extent // rows) * parts
        return expected_seconds(passes, target, blocks, groups * lanes)

    def apply(self, workload: Workload, target: Gpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        found = _found(workload)
        return Variant((columns_kernel if found.columns else rows_kernel)(found, **config))


def _found(workload: Workload) -> RowStages:
    try:
        return find_rows(workload)
    except UnsupportedFunction:
        return find_columns(workload)


def _one_of(kept: Collection[Any], load: Any) -> Expr | None:
    """A number in place of what is in registers."""
    return tirx.const(1, str(load.source.dtype)) if load.source in kept else None


@kept
def _space(workload: Workload, target: Gpu) -> Space | None:
    try:
        found = _found(workload)
    except UnsupportedFunction:
        return None
    if _used_again(workload):
        return None
    threads = [count for count in _THREADS if count <= target.threads_per_block]
    vectors = found.term.extent // (1 if found.columns else found.vector)
    lanes = [count for count in _LANES if count < min(2 * vectors, 2 * threads[-1])]
    if found.columns:
        default = _lanes_of_columns(found, lanes, target)
    else:
        default = _lanes_of_sums(found, lanes, target) if found.sums else _lanes_of_elements(found, lanes)
    filled = found.row.extent * vectors >= _AHEAD_OF * target.multiprocessors * target.threads_per_block
    size = np.dtype(str(found.stages[0].buffer.dtype)).itemsize

    def fits(threads: int, vector: int) -> bool:
        return threads * vector * size <= target.shared_per_block

    return Space(
        GpuRows.name,
        [
            Ordinal("threads", threads),
            Ordinal("lanes", lanes),
            Ordinal("vector", [count for count in _VECTORS if count <= found.vector]),
            Ordinal("ahead", _AHEAD),
        ],
        [
            Constraint(("threads", "lanes"), lambda threads, lanes: lanes <= threads, "lanes fit"),
            *(
                [Constraint(("threads", "vector"), fits, f"{target.shared_per_block} bytes shared")]
                if found.columns
                else ()
            ),
        ],
        {
            "threads": min(threads[-1], max(128 if found.sums and not found.columns else 256, default)),
            "lanes": default,
            "vector": found.vector,
            "ahead": _AHEAD_OF if found.sums or filled else 1,
        },
    )


def _lanes_of_sums(found: RowStages, lanes: Sequence[int], target: Gpu) -> int:
    """A warp, or more threads for rows that are too long for its registers, or too few to keep the device busy."""
    vectors, count = found.term.extent // found.vector, min(lanes[-1], WARP)
    while count < lanes[-1] and (
        (count * _STEPS < vectors and found.repeated) or found.row.extent * count < target.multiprocessors * _BUSY
    ):
        count *= 2
    return count


def _lanes_of_columns(found: RowStages, lanes: Sequence[int], target: Gpu) -> int:
    """As many that 256 threads read 128 bytes of a term, or less if that keeps more multiprocessors busy."""
    vectors, most = found.row.extent // found.vector, max(count for count in lanes if count <= found.term.extent)
    count = min(most, 32)
    while count < min(most, 128) and vectors * count < 256 * target.multiprocessors:
        count *= 2
    return count


def _lanes_of_elements(found: RowStages, lanes: Sequence[int]) -> int:
    """The most threads up to 256 of which few have nothing to do at the end of a row."""
    vectors = found.term.extent // found.vector

    def share(count: int) -> float:
        return vectors / (-(-vectors // count) * count)

    few = [count for count in lanes if count <= 256]
    return max(few, key=lambda count: (min(share(count), _SHARE), count))


def _used_again(workload: Workload) -> bool:
    """Whether it is a contraction that uses what it has read several times, which tiles make use of."""
    try:
        return not find_fused_contraction(workload).axes.read_once
    except UnsupportedFunction:
        return False
