"""temporary"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.s_tir import Schedule

from ...machine.gpu import Gpu
from .fallback import Fallback


def schedule_gpu_fallback(function: tirx.PrimFunc, device: Gpu) -> Fallback:
    schedule = Schedule(tvm.IRModule({"main": function}))
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        loops = schedule.get_loops(block)
        kinds = [int(axis.iter_type) for axis in schedule.get(block).iter_vars]
        spatial = [l for l, k in zip(loops, kinds) if k == 0]
        red = [l for l, k in zip(loops, kinds) if k != 0]
        if not spatial:
            spatial = [schedule.add_unit_loop(block)]
        schedule.reorder(*spatial, *red)
        fused = schedule.fuse(*spatial) if len(spatial) > 1 else spatial[0]
        a, b = schedule.split(fused, [None, min(256, int(schedule.get(fused).extent))])
        schedule.bind(a, "blockIdx.x")
        schedule.bind(b, "threadIdx.x")
    return Fallback(schedule.mod["main"], "blocks and threads")
