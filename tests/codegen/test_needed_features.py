"""Kernels that need a unit: refused with a reason by targets and CPUs that lack it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stand_ins.cpus import cpu
from stormdrop import operators
from stormdrop.bench.contender import ContenderSpec
from stormdrop.bench.contender_process import ContenderProcess
from stormdrop.codegen.compile import TunedKernel, build_module
from stormdrop.codegen.needed_features import check_host, check_target, needed_features
from stormdrop.errors import TargetError
from stormdrop.ir.attributes import NEEDS
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.contract import Variant
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.sketches.cpu.tiles.sketch import Tiles

PLAIN = cpu("cpu/x86-64-v4")
VNNI = replace(PLAIN, features=("avx512vnni",))


def schedule(dtype: str, target: Cpu) -> Variant:
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


def test_a_cpu_without_the_unit_is_refused() -> None:
    main = schedule("float32", PLAIN).main.with_attr(NEEDS, ["i8mm", "amx-tile"])  # no CPU has both
    with pytest.raises(TargetError, match=r"needs .*, which this CPU lacks"):
        check_host(main)
    with pytest.raises(TargetError, match="this CPU lacks"):
        TunedKernel(operators.dense(8, 32, 16), Cpu.detect(), Variant(main))


@pytest.mark.compiles
def test_each_process_that_compiles_a_kernel_may_use_tiles() -> None:
    """A kernel that was tuned elsewhere is compiled and called in a fresh process, as `stormdrop bench` does."""
    target = Cpu.detect()
    if "amx-bf16" not in target.features:
        pytest.skip("this machine has no tiles for bfloat16")
    workload = operators.dense(32, 32, 64, dtype="bfloat16")
    space = Tiles().space(workload, target)
    assert space is not None
    inputs = workload.random_inputs(0)
    settings = {
        "workload": workload,
        "sketch": "tiles",
        "config": space.config(space.origin),
        "inputs": inputs,
    }
    spec = ContenderSpec("ours", "stormdrop.bench.peers.ours:TunedOperator", settings)
    with ContenderProcess(spec, 1) as contender:
        (found,) = contender.outputs()
    np.testing.assert_array_equal(found, workload.reference(inputs)[0])
