"""OpenCL kernels by PoCL and by Oclgrind, which has to find the faults that are put into them."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from stand_ins.opencl_execution import (
    BARRIER,
    EMULATED,
    Execution,
    Job,
    execute,
    without_barrier,
    without_guard,
)
from stormdrop import operators
from stormdrop.codegen.opencl import OpenClModule, build_opencl
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.workload import Workload
from stormdrop.machine.opencl import opencl_devices
from stormdrop.sketches.registry import sketches_for

WORKS = [
    operators.softmax(m=3, n=40),
    operators.reduce(shape=(10, 24), axis=1),
    operators.matmul(8, 16, 8),
    operators.pool2d(n=1, h=4, w=4, c=12, kh=3, kw=3, pad=1, kind="avg"),
]


@pytest.fixture(params=[False, True], ids=["pocl", "oclgrind"])
def oclgrind(request: pytest.FixtureRequest) -> bool:
    need(request.param)
    return bool(request.param)


def need(oclgrind: bool) -> None:
    if not opencl_devices():
        pytest.skip("OpenCL finds no device here (it needs pyopencl and a driver such as PoCL)")
    if oclgrind and shutil.which("oclgrind") is None:
        pytest.skip("there is no oclgrind on the PATH")


def default(work: Workload, **knobs: int) -> OpenClModule:
    (sketch, space), *_ = sketches_for(work, EMULATED)
    config = {**space.config(space.origin), **knobs}
    return build_opencl(sketch.apply(work, EMULATED, config).main, EMULATED.tvm())


def job(work: Workload, module: OpenClModule) -> Job:
    return Job(module, work.random_inputs(0), [(spec.shape, spec.dtype) for spec in work.outputs])


def is_right(work: Workload, execution: Execution) -> bool:
    (expected,) = evaluate_graph(work.graph, work.random_inputs(0))
    return bool(np.allclose(execution.outputs[0], expected, rtol=1e-4, atol=1e-6))


def test_default_schedules(oclgrind: bool) -> None:
    works = WORKS if oclgrind else WORKS[1::2]  # PoCL takes seconds to compile a kernel
    executions = execute([job(work, default(work)) for work in works], oclgrind)
    for work, execution in zip(works, executions, strict=True):
        assert is_right(work, execution) and not execution.error and not execution.complaints, work.name


def test_oclgrind_finds_what_was_removed() -> None:
    need(oclgrind=True)
    softmax, relu = operators.softmax(m=2, n=40), operators.elementwise(shape=(7, 5), kind="relu")
    module, guarded = default(softmax, threads=64), default(relu, threads=32)
    assert module.source.count(BARRIER) > 3
    faulty = [job(softmax, without_barrier(module, position)) for position in (1, 2)]
    barrier, reduction, guard, divergent, right = execute(
        [*faulty, job(relu, without_guard(guarded, 0)), job(relu, with_divergence(guarded)), job(softmax, module)],
        oclgrind=True,
    )
    for race in (barrier, reduction):
        assert any("data race" in complaint for complaint in race.complaints), race
    assert any("Invalid write" in complaint for complaint in guard.complaints), guard
    assert any("divergence" in complaint for complaint in divergent.complaints), divergent
    assert not right.complaints and is_right(softmax, right)


def with_divergence(module: OpenClModule) -> OpenClModule:
    """The module with a barrier that only the work-items inside of a condition reach."""
    source = module.source.replace(") {\n", f") {{\n    {BARRIER}\n", 2)
    return replace(module, source=source.replace(f") {{\n    {BARRIER}\n", ") {\n", 1))


def test_a_kernel_that_does_not_compile_is_one_line_and_the_next_one_runs() -> None:
    need(oclgrind=False)
    work = WORKS[1]
    module = default(work)
    broken = replace(module, source=f"{module.source}\nno declaration")
    failed, right = execute([job(work, broken), job(work, module)])
    assert ": its compiler refuses the kernels: " in failed.error and "\n" not in failed.error and not failed.outputs
    assert is_right(work, right) and not right.error


def test_there_are_only_so_many_barriers_and_guards() -> None:
    module = default(WORKS[0])
    with pytest.raises(ValueError, match="there are"):
        without_barrier(module, 99)
    with pytest.raises(ValueError, match="there are"):
        without_guard(module, 99)
