"""Counts what the warps of a scheduled function move from and to global memory: sectors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from tvm.ir.prim import expr as prim
from tvm.tirx import AttrStmt, PrimFunc

from stormdrop.codegen.gpu_lowering import lower_for_gpu
from stormdrop.codegen.thread_bounds import ALWAYS, KernelWalk
from stormdrop.machine.gpu import SECTOR, WARP, Gpu


def sectors_of(function: PrimFunc, device: Gpu) -> Counter[str]:
    """By parameter the sectors that its loads or stores touch: of each access of a warp the distinct ones.

    Args:
        function: The scheduled function.
        device: The GPU that it was scheduled for.
    """
    _, kernels = lower_for_gpu(function, device.tvm())
    found: Counter[str] = Counter()
    for name, kernel in kernels.items():
        walk = _Counting(name)
        walk.statement(kernel.body, ALWAYS)
        found += walk.sectors
    return found


class _Counting(KernelWalk):
    """Has the extents of the loops around an access, the innermost first, and which of them are the threads."""

    def __init__(self, kernel: str) -> None:
        super().__init__(kernel)
        self.sectors: Counter[str] = Counter()
        self._extents: list[int] = []
        self._threads = 0

    def statement(self, node: Any, holds: Any) -> None:
        if isinstance(node, AttrStmt) and node.attr_key == "thread_extent" and node.node.thread_tag == "threadIdx.x":
            self._threads = -1 - self.depth
        super().statement(node, holds)

    def loop(self, variable: Any, start: int, extent: int, body: Any, holds: Any) -> None:
        self._extents.insert(0, extent)
        super().loop(variable, start, extent, body, holds)
        self._extents.pop(0)

    def access(self, verb: str, buffer: Any, indices: Any, holds: Any) -> None:
        if buffer.scope() != "global":
            return
        (index,) = indices
        last = 0
        if isinstance(index, prim.Ramp):
            last, index = int(index.lanes) - 1, index.base
        first = self.value(index)
        item = np.dtype(str(buffer.dtype).partition("x")[0]).itemsize
        places = np.stack([(first + step) * item // SECTOR for step in (0, last)], axis=-1)
        places = np.where(np.asarray(holds)[..., None], places, -1)
        places = np.broadcast_to(places, (*self._extents, 2))
        by_warp = np.moveaxis(places, self._threads - 1, -2)
        missing = -by_warp.shape[-2] % WARP
        by_warp = np.pad(by_warp, [*[(0, 0)] * (by_warp.ndim - 2), (0, missing), (0, 0)], constant_values=-1)
        ordered = np.sort(by_warp.reshape(-1, 2 * WARP), axis=1)
        distinct = (np.diff(ordered, axis=1, prepend=-1) > 0) & (ordered >= 0)
        self.sectors[str(buffer.name)] += int(distinct.sum())
