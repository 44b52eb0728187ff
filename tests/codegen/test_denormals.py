"""Kernels take denormals for zero, in all threads, and leave the mode of the caller's thread as it was."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace

import numpy as np
import pytest

from stand_ins.assembly import assembly
from stormdrop import operators
from stormdrop.codegen.compile import TunedKernel
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.sketches.registry import sketches_for

ROWS = 128  # more than there are threads, and so many that each has some


def kernel(target: Cpu) -> TunedKernel:
    workload = operators.dense(ROWS, 32, 8, bias=1)
    sketch, space = sketches_for(workload, target)[0]
    return TunedKernel(workload, target, sketch.apply(workload, target, space.config(space.origin)))


def host_keeps_denormals() -> bool:
    """Whether NumPy, in this thread, computes with denormals."""
    return bool(np.float32(1e-30) * np.float32(1e-10) > 0)


@pytest.mark.compiles
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("x", "w"), [(1e-20, 1e-20), (1e-40, 1.0)], ids=["result", "operand"])
def test_denormals_are_flushed_in_all_threads_unless_they_are_kept(keep: bool, x: float, w: float) -> None:
    run = kernel(replace(Cpu.detect(), keep_denormals=keep))
    inputs = [np.full((ROWS, 8), x, "float32"), np.full((32, 8), w, "float32"), np.zeros(32, "float32")]
    output = run(*inputs)
    if keep:
        np.testing.assert_allclose(output, 8e-40, rtol=1e-4)
    else:
        assert not output.any()
    normal = run(np.full((ROWS, 8), 1e-18, "float32"), np.full((32, 8), 1e-18, "float32"), inputs[2])
    np.testing.assert_allclose(normal, 8e-36, rtol=1e-5)
    assert host_keeps_denormals()


@pytest.mark.compiles
def test_the_mode_of_the_caller_is_restored() -> None:
    run, ones = kernel(Cpu.detect()), [np.ones((ROWS, 8), "float32"), np.ones((32, 8), "float32")]
    libm = ctypes.CDLL("libm.so.6")
    upward = 0x800  # FE_UPWARD on x86
    nearest = libm.fegetround()
    if np.dtype("P").itemsize != 8 or libm.fesetround(upward) != 0:
        pytest.skip("needs x86")
    try:
        run(*ones, np.zeros(32, "float32"))
        assert libm.fegetround() == upward
    finally:
        libm.fesetround(nearest)


@pytest.mark.parametrize(
    ("name", "instructions"),
    [("cpu/x86-64-v3", ["stmxcsr", "ldmxcsr", "ldmxcsr"]), ("cpu/neoverse-n1", ["mrs", "msr", "msr"])],
)
def test_each_thread_sets_the_mode_and_restores_it(name: str, instructions: list[str]) -> None:
    target, workload = parse_machine(name), operators.dense(ROWS, 32, 8)
    sketch, space = sketches_for(workload, target)[0]
    function = sketch.apply(workload, target, space.config(space.origin)).main
    code = assembly(function, target.tvm())
    uses = re.findall(r"^\s*v?(stmxcsr|ldmxcsr|mrs|msr)\b", code, re.MULTILINE)
    assert uses == 2 * instructions  # the calling thread, and the threads of the parallel loop
