from __future__ import annotations

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from stormdrop import operators


def reduced_across_threads(rows: int) -> PrimFunc:
    """Sums of 50 rows, 32 threads for each. With 8 rows per block the last block has 6 rows too many."""
    work = operators.reduce(shape=(50, 96), axis=1)
    schedule = Schedule(tvm.IRModule({"main": work.graph.function()}))
    row, term = schedule.get_loops(schedule.get_sblock(work.graph.stages[-1].name))
    blocks, element = schedule.split(row, [None, rows])
    _, lane = schedule.split(term, [None, 32])
    for loop, axis in ((blocks, "blockIdx.x"), (element, "threadIdx.y"), (lane, "threadIdx.x")):
        schedule.bind(loop, axis)
    return schedule.mod["main"]
