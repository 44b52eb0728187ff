"""What a worker does with the candidates of one workload: outputs that it refuses, and constants that it copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stormdrop import operators
from stormdrop.ir import reference
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.limits.passing import Passing
from stormdrop.measure.pool.jobs import Build, Data, Race, Raced, Run
from stormdrop.measure.timing import TimingPlan
from stormdrop.measure.worker import prepared_constants
from stormdrop.measure.worker.workbench import Workbench
from stormdrop.sketches.registry import sketches_for
from stormdrop.space import Ordinal
from stormdrop.trial import Status

pytestmark = pytest.mark.compiles

NAN, INF = float("nan"), float("inf")


def floats(*values: float) -> Any:
    return np.array(values, "float32")


class _Partial:
    """A sketch that copies its input and leaves the last `holes` elements out."""

    name = "partial"
    max_error = 0.0

    def apply(self, workload: Workload, target: Cpu, config: Any) -> Any:
        from stormdrop.sketches.contract import Variant

        return Variant(copy_function(8 - int(config["holes"])))


def copy_function(count: int) -> Any:
    """`b[i] = a[i]` for the first `count` of 8 elements."""
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            a = T.arg("a", T.buffer((8,), "float32"))
            b = T.arg("b", T.buffer((8,), "float32"))
            with T.serial(count) as i:
                T.buffer_store(b, a[i], [i])
        return builder.get()


@pytest.mark.parametrize(("holes", "status"), [(0, None), (1, Status.WRONG_ANSWER)])
@pytest.mark.parametrize("value", [NAN, INF, 1.0])
def test_outputs_that_are_not_finite_are_checked(holes: int, status: Status | None, value: float) -> None:
    from tvm import te

    a = te.placeholder((8,), "float32", name="a")
    b = te.compute((8,), lambda i: a[i], name="b")
    target = Cpu.detect()
    workload = Workload.create("copy", te.create_prim_func([a, b]))
    bench = Workbench(workload, target, {"partial": _Partial()}, lambda step: None)  # type: ignore[dict-item]
    values = floats(1, 2, 3, 4, 5, 6, 7, value)
    bench.take(Data(inputs=(values,), outputs=(values,), tolerance=0.0))
    built = bench.build(Build(key=0, sketch="partial", config={"holes": holes}))
    assert not hasattr(built, "status"), built
    ran = bench.run(Run(key=0, plan=TimingPlan(1, 1e-4), check=True))
    assert getattr(ran, "status", None) is status
    if status:
        assert f"not {value:.6g}; 1 of 8 elements" in getattr(ran, "error", "")


@pytest.mark.parametrize(
    ("passing", "constants", "others"),
    [
        (None, 1, 1),
        (Passing(100 << 10, 100 << 10, "the last cache"), 1, 1),
        (Passing(200 << 10, 400 << 10, "the last cache"), 2, 2),  # an execution takes 384 KiB
        (Passing(1 << 20, 1 << 20, "memory"), 8, 3),
    ],
)
def test_all_arguments_pass_through_the_caches_between_executions(
    passing: Passing | None, constants: int, others: int
) -> None:
    from tvm import te

    a, b = (te.placeholder((128, 256), "float32", name=name) for name in "ab")
    c = te.compute((128, 256), lambda i, j: a[i, j] + b[i, j], name="c")
    target = Cpu.detect()
    workload = Workload.create("add", te.create_prim_func([a, b, c]), [1])
    sketches = {sketch.name: (sketch, space) for sketch, space in sketches_for(workload, target)}
    name, (sketch, space) = next(iter(sketches.items()))
    bench = Workbench(workload, target, {name: sketch}, lambda step: None, passing)
    given = tuple(np.full((128, 256), value, np.float32) for value in (1, 2))
    bench.take(Data(inputs=given, outputs=(given[0] + given[1],), tolerance=1e-6))
    assert not hasattr(bench.build(Build(0, name, space.config(space.origin))), "status")
    assert not hasattr(bench.run(Run(0, TimingPlan(1, 1e-4), check=True)), "status")
    seen: list[Any] = []
    built = bench._built[0]
    bench._built[0] = replace(built, kernel=replace(built.kernel, call=lambda *arguments: seen.append(arguments)))
    call = bench._call(0)
    for _ in range(16):
        call()
    for index, copies in enumerate((others, constants, others)):
        places = [np.from_dlpack(arguments[index]).ctypes.data for arguments in seen]
        assert len(set(places)) == copies and places[:copies] == places[copies : 2 * copies]
        if index < 2:
            assert all(np.array_equal(np.from_dlpack(arguments[index]), given[index]) for arguments in seen)


@pytest.mark.parametrize("passing", [None, Passing(1 << 20, 1 << 20, "memory")], ids=["warm", "cold"])
def test_a_race_lays_out_the_constants_of_each_kernel_once(
    monkeypatch: pytest.MonkeyPatch, passing: Passing | None
) -> None:
    """Not all constants of the kernels that race stay in the cache, if they are large. Outputs have copies if cold."""
    monkeypatch.setattr(prepared_constants, "_CACHE_BYTES", 0)
    target, workload = Cpu.detect(), operators.dense(512, 48, 64)
    sketch, space = next(found for found in sketches_for(workload, target) if found[0].name == "register_blocked")
    bench = Workbench(workload, target, {sketch.name: sketch}, lambda step: None, passing)
    inputs = workload.random_inputs(1)
    bench.take(Data(tuple(inputs), tuple(workload.reference(inputs)), tolerance=0.0))
    columns = next(knob for knob in space.knobs if knob.name == "columns")
    assert isinstance(columns, Ordinal)
    keys = range(3)
    for key in keys:
        config = {**space.config(space.origin), "columns": columns.values[key]}
        assert not hasattr(bench.build(Build(key, sketch.name, config)), "status")
    laid_out: list[Any] = []
    monkeypatch.setattr(
        prepared_constants, "evaluate", lambda *arguments: laid_out.append(0) or reference.evaluate(*arguments)
    )
    raced = bench.race(Race((0, 1, 2, 1), 3, 1e-5))
    assert isinstance(raced, Raced) and not any(raced.wrong.values())
    assert (len(bench._further) > 0) == (passing is not None)
    assert len(laid_out) == len(keys) and not bench._racing
