"""`ApplyRecords(store)`: a pass of TVM that schedules the functions of a module as the records say.

    mod  ->  each function in normal form  ->  the schedule that its tuning found  ->  mod with scheduled functions

It takes the place of MetaSchedule's `MetaScheduleApplyDatabase` in a pipeline. Nothing is measured.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.tirx import PrimFunc

from ..codegen.needed_features import needed_features
from ..errors import InputError, UnsupportedFunction
from ..ir.workload import Workload
from ..machine.contract import CPU, Machine
from ..machine.cpu import Cpu
from ..records import Store
from ..tuning.kernel import KernelTask
from ..tuning.options import TuneOptions

_SCHEDULED = "tirx.is_scheduled"  # passes with default schedules leave functions with this attribute alone


def ApplyRecords(store: Store, target: Machine | None = None, sketches: str | None = None) -> Any:
    """A pass that schedules each function of a module as its latest tuning on this machine has found best.

    A function that was not tuned here, or that no sketch takes, stays as it is. A function that was scheduled before
    does, too, and one whose best schedule uses an arithmetic unit: only this package's own lowering makes the
    instructions of units. Names and attributes stay.

    Args:
        store: The records.
        target: The CPU to schedule for; this machine by default.
        sketches: The source of sketches that the tuning used, as in `sd.tune`.

    Returns:
        A pass, for `tvm.transform.Sequential` or to be called with a module.

    Raises:
        InputError: The target is no CPU.

    Example:
        ```python
        import tvm

        import stormdrop as sd
        from stormdrop.integrations.apply_records import ApplyRecords

        mod = tvm.IRModule({"matmul": sd.operators.matmul(16, 16, 16).function})
        with sd.open_store("sqlite://") as store:
            mod = ApplyRecords(store)(mod)
        ```
    """
    machine = target or Cpu.detect()
    if machine.device != CPU:
        raise InputError(f"ApplyRecords schedules for CPUs; the target is {machine.name}")
    options = TuneOptions(sketches=sketches)

    def apply(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        scheduled = {
            variable: found
            for variable, function in mod.functions_items()
            if isinstance(function, PrimFunc) and (found := _scheduled(function, machine, options, store)) is not None
        }
        updated = mod.clone()
        for variable, function in scheduled.items():
            updated.update_func(variable, function)
        return updated

    return tvm.transform.module_pass(apply, opt_level=0, name="stormdrop.ApplyRecords")


def _scheduled(function: PrimFunc, machine: Machine, options: TuneOptions, store: Store) -> PrimFunc | None:
    """The function as it was tuned, or None if the records have nothing for it."""
    attributes = dict(function.attrs) if function.attrs is not None else {}
    if attributes.get(_SCHEDULED):
        return None
    try:
        task = KernelTask.create(Workload.create("function", function), machine, options)
    except UnsupportedFunction:
        return None
    result = task.answered(store, 0, None)
    if result is None or result.best is None:
        return None
    variant = result.best.apply(task.workload, machine, result.best.config)
    main = variant.main
    if needed_features(main):
        return None
    for name, value in attributes.items():
        main = main.with_attr(name, value)
    return main.with_attr(_SCHEDULED, True)
