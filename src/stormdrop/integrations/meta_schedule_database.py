"""Our results as records of a MetaSchedule database.

    mod, store  ->  the best schedules that MetaSchedule's design spaces hold  ->  their traces in the database

A trace can say what was tuned with `sketches="meta_schedule"`. Our own sketches rewrite functions in ways for which a
trace has no instruction; `ApplyRecords` applies those.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.tirx import PrimFunc

from ..errors import UnsupportedFunction
from ..ir.workload import Workload
from ..machine.contract import Machine
from ..machine.cpu import Cpu
from ..records import Store
from ..sketches.meta_schedule import MetaSchedule, recorded_schedule
from ..tuning.kernel import KernelTask
from ..tuning.options import TuneOptions


def export_records(
    mod: tvm.IRModule, store: Store, database: Any, target: Machine | None = None, tvm_target: Any = None
) -> list[str]:
    """Commits to a database what the records have for the functions of a module.

    Args:
        mod: The functions. A record is found again for a function that is structurally equal to one of these.
        store: The records.
        database: A `tvm.s_tir.meta_schedule.database.Database`, such as `JSONDatabase(work_dir="work")`.
        target: The machine whose records are taken; this machine by default.
        tvm_target: The target that the database's records name; by default that of `target`.

    Returns:
        The names of the functions that were exported. The others were not tuned with `sketches="meta_schedule"` on this
        machine, or the trace does not fit them because the tuned function was brought into normal form first.

    Example:
        ```python
        import tvm
        from tvm.s_tir import meta_schedule as ms

        import stormdrop as sd
        from stormdrop.integrations.meta_schedule_database import export_records

        mod = tvm.IRModule({"matmul": sd.operators.matmul(16, 16, 16).function})
        with sd.open_store("sqlite://") as store:
            exported = export_records(mod, store, ms.database.MemoryDatabase())
        ```
    """
    machine = target or Cpu.detect()
    named = tvm_target if tvm_target is not None else machine.tvm()
    exported = []
    for variable, function in mod.functions_items():
        if isinstance(function, PrimFunc) and _export(function, machine, store, database, named):
            exported.append(str(variable.name_hint))
    return exported


def _export(function: PrimFunc, machine: Machine, store: Store, database: Any, tvm_target: Any) -> bool:
    try:
        task = KernelTask.create(Workload.create("function", function), machine, TuneOptions(sketches="meta_schedule"))
    except UnsupportedFunction:
        return False
    result = task.answered(store, 0, None)
    if result is None or result.best is None:
        return False
    sketch = MetaSchedule(int(result.best.sketch.rpartition(".")[2]))
    trace = recorded_schedule(sketch, task.workload, machine, result.best.config).trace
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    try:
        trace.apply_to_schedule(Schedule(module, debug_mask="none"), remove_postproc=False)
    except (tvm.error.InternalError, tvm.s_tir.ScheduleError, ValueError):  # its blocks have other names
        return False
    arguments = ms.arg_info.ArgInfo.from_prim_func(function)
    workload = database.commit_workload(module)
    record = ms.database.TuningRecord(trace, workload, [result.best.seconds], tvm_target, arguments)
    database.commit_tuning_record(record)
    return True
