"""Kernels that need a unit: refused with a reason by targets and CPUs that lack it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stormdrop import operators
from stormdrop.codegen.compile import TunedKernel, build_module
from stormdrop.codegen.needed_features import check_host, check_target, needed_features
from stormdrop.errors import TargetError
from stormdrop.ir.attributes import NEEDS
from stormdrop.machine.cpu import Target
from stormdrop.sketches.contract import Variant
from stormdrop.sketches.cpu.register_blocked import RegisterBlocked

PLAIN = Target.parse("cpu/x86-64-v4")
assert isinstance(PLAIN, Target)
VNNI = replace(PLAIN, features=("avx512vnni",))


def schedule(dtype: str, target: Target) -> Variant:
    """The default schedule of a small layer."""
    workload, sketch = operators.dense(8, 32, 16, dtype=dtype), RegisterBlocked()
    space = sketch.space(workload, target)
    assert space is not None
    return sketch.apply(workload, target, space.config(space.origin))


def test_a_schedule_says_what_it_needs() -> None:
    assert needed_features(schedule("uint8", VNNI).main) == {"avx512vnni"}
    assert not needed_features(schedule("uint8", PLAIN).main)
    assert not needed_features(schedule("float32", VNNI).main)


def test_a_target_without_the_unit_is_refused_before_llvm_aborts() -> None:
    main = schedule("uint8", VNNI).main
    with pytest.raises(TargetError, match="the kernel needs avx512vnni, which its target lacks"):
        build_module(main, PLAIN.tvm())
    check_target(main, VNNI.tvm())
    assert "vpdpbusd" in build_module(main, VNNI.tvm()).inspect_source("asm")


def test_a_cpu_without_the_unit_is_refused_unless_another_machine_runs_the_kernel() -> None:
    main = schedule("float32", PLAIN).main.with_attr(NEEDS, ["i8mm", "amx-tile"])  # no CPU has both
    with pytest.raises(TargetError, match=r"needs .*, which this CPU lacks"):
        check_host(main, Target.detect())
    check_host(main, PLAIN.with_runner("board:9090"))
    with pytest.raises(TargetError, match="this CPU lacks"):
        TunedKernel(operators.dense(8, 32, 16), Target.detect(), Variant(main))
