"""A sketch of your own: `python examples/own_sketch.py` (some seconds).

A sketch is a family of schedules. `space` says what may vary, `apply` schedules a function at one configuration. This
one gives rows to cores and cuts columns into vectors. `check_sketch` compiles some of its schedules and compares what
they compute with NumPy. For a first try a template is shorter (docs/how-to/write-a-schedule.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.s_tir import Schedule

import stormdrop as sd
from stormdrop.ir.workload import Workload
from stormdrop.sketches.contract import Variant
from stormdrop.testing.sketches import check_sketch


class RowsAndVectors:
    """Parallel rows and vectors of columns, for functions of one stage with an output of two dimensions."""

    name = "rows_and_vectors"
    max_error = 0.0  # it computes what the function says, in another order

    def space(self, workload: Workload, target: sd.Cpu) -> sd.Space | None:
        if len(workload.graph.stages) != 1 or len(workload.outputs[0].shape) != 2:
            return None
        columns = workload.outputs[0].shape[1]
        return sd.Space(self.name, [sd.Ordinal("lanes", [n for n in (1, 2, 4, 8, 16, 32) if columns % n == 0])])

    def apply(self, workload: Workload, target: sd.Cpu, config: Mapping[str, Any]) -> Variant:
        schedule = Schedule(workload.function)
        (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
        rows, columns, *reductions = schedule.get_loops(block)
        outer, lanes = schedule.split(columns, [None, config["lanes"]])
        schedule.reorder(rows, outer, *reductions, lanes)
        schedule.vectorize(lanes)
        schedule.parallel(rows)
        return Variant(schedule.mod["main"])


def main() -> None:
    workload = sd.operators.matmul(64, 96, 32)
    check_sketch(RowsAndVectors(), workload, sd.Cpu.detect(), samples=4)
    result = sd.tune(workload, sketches=[RowsAndVectors()], trials=6)
    print(f"{result.best.seconds * 1e6:.1f} us with {result.best.config}")


if __name__ == "__main__":
    main()
