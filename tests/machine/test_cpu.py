"""Other machines: names, what is refused, and the machine code of kernels for them (cross-compiled, not run)."""

from __future__ import annotations

import math
import pickle
import platform
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from stand_ins.assembly import assembly
from stand_ins.cpus import cpu
from stormdrop import operators
from stormdrop.codegen.compile import TunedKernel
from stormdrop.errors import TargetError
from stormdrop.ir.reference import evaluate
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.machine.known_cpus import KNOWN_CPUS
from stormdrop.sketches.registry import sketches_for
from stormdrop.tuning.tune import tune

NEON = tuple(
    name for name, known in KNOWN_CPUS.items() if re.match("aarch64|arm64", known.triple) and not known.sve_bits
)
ARM = ("cpu/cortex-a76", "cpu/neoverse-n1", "cpu/neoverse-v1", "cpu/apple-m1")
X86 = {"cpu/x86-64-v3": "ymm", "cpu/x86-64-v4": "zmm"}
BUILT = ("cpu/neoverse-n1", *X86)

KERNELS = {
    "matmul": operators.matmul(256, 256, 256),
    "conv2d": operators.conv2d(1, 28, 28, 64, 64, 3, 3, 1, 1),
    "depthwise": operators.depthwise_conv2d(1, 28, 28, 64, 3, 3, 1, 1),
    "softmax": operators.softmax(64, 1000),
    "relu": operators.elementwise((64, 1000), "relu"),
}
CONTRACTIONS = ("matmul", "conv2d", "depthwise")


def text_of(machine: Cpu, kernel: str) -> str:
    """The assembly of the default schedule."""
    (sketch, space), *_ = sketches_for(KERNELS[kernel], machine)
    variant = sketch.apply(KERNELS[kernel], machine, space.config(space.origin))
    return assembly(variant.main, machine.tvm())


@cache
def origins(target: str, kernel: str) -> dict[str, tuple[dict[str, Any], str]]:
    """The origin of each sketch that applies, and its assembly."""
    machine, kernels = parse_machine(target), {}
    for sketch, space in sketches_for(KERNELS[kernel], machine):
        config = space.config(space.origin)
        variant = sketch.apply(KERNELS[kernel], machine, config)
        kernels[sketch.name] = (config, assembly(variant.main, machine.tvm()))
    return kernels


def innermost(text: str) -> list[list[str]]:
    """The instructions of each loop that holds no other."""
    lines = [line for line in (re.split(r"//|#|;", line)[0].rstrip() for line in text.splitlines()) if line.strip()]
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        if label := re.match(r"(\.?L\w+):", line):
            labels[label[1]] = number
        elif (jump := re.match(r"\s+(?:b|b\.\w+|t?cbn?z|tbn?z|j\w+)\s+(?:.*,\s*)?(\.?L\w+)$", line)) and jump[
            1
        ] in labels:
            loops.append((labels[jump[1]], number))
    inside = [
        loop
        for loop in loops
        if not any(other != loop and loop[0] <= other[0] and other[1] <= loop[1] for other in loops)
    ]
    return [[line.strip() for line in lines[first : last + 1] if line[0].isspace()] for first, last in inside]


def fmas(target: str, loop: list[str]) -> list[str]:
    """The multiply-adds of whole vectors of float32 in a loop."""
    whole = rf"vfn?madd\d+ps\s.*%{X86[target]}" if target in X86 else r"fmla(\.4s\s|\s+v\d+\.4s)"
    return [line for line in loop if re.match(whole, line)]


def hottest(target: str, text: str) -> list[str]:
    """The innermost loop with most multiply-adds."""
    return max(innermost(text), key=lambda loop: len(fmas(target, loop)))


def on_stack(loop: list[str]) -> list[str]:
    """Vector registers that are stored to the stack or loaded from it."""
    return [line for line in loop if re.search(r"\[sp\b|\(%rsp", line) and re.search(r"\b[qvsd]\d|%[xyz]mm", line)]


def test_machines_have_names_and_pickle() -> None:
    for name in KNOWN_CPUS:
        target = parse_machine(f" {name.upper()} ")
        assert target.name == name
        target.tvm()
        assert pickle.loads(pickle.dumps(target)) == target
    assert {KNOWN_CPUS[name].lanes for name in NEON} == {4}
    assert {"cpu/cortex-a72", "cpu/neoverse-v2", "cpu/apple-m4", *ARM} <= set(NEON)
    assert (KNOWN_CPUS["cpu/x86-64-v3"].lanes, KNOWN_CPUS["cpu/x86-64-v3"].registers) == (8, 16)
    assert (KNOWN_CPUS["cpu/x86-64-v4"].lanes, KNOWN_CPUS["cpu/x86-64-v4"].registers) == (16, 32)


def test_this_machine_is_none_of_them() -> None:
    assert parse_machine("cpu") == Cpu.detect()
    assert Cpu.detect().triple == ""
    with pytest.raises(TargetError, match=r"only to compile: .*cpu/cortex-a72.*cpu/neoverse-n1"):
        parse_machine("cpu/pentium")


def test_another_machine_is_not_measured() -> None:
    with pytest.raises(TargetError, match="cpu/neoverse-n1 is another machine"):
        tune(KERNELS["relu"], target=parse_machine("cpu/neoverse-n1"), trials=2)


@pytest.mark.compiles
def test_the_a64fx_has_vectors_of_512_bits() -> None:
    """LLVM uses SVE for a vector of 16 float32 only if it knows that no vector is shorter."""
    target = cpu("cpu/a64fx")
    assert (target.lanes, target.sve_bits, target.cores, target.kind) == (16, 512, 48, "llvm a64fx sve512")
    _, with_sve = origins("cpu/a64fx", "matmul")["register_blocked"]
    neon = replace(target, sve_bits=0)
    assert neon.kind == "llvm a64fx" and neon.tvm() != target.tvm()
    without = text_of(neon, "matmul")
    multiply_adds = [len(re.findall(rf"\sfmla\s+{kind}\d+\.", text)) for text in (with_sve, without) for kind in "zv"]
    assert multiply_adds[0] >= 4 and multiply_adds[1] == 0  # SVE, and nothing else
    assert multiply_adds[2] == 0 and multiply_adds[3] >= 16  # four instructions of NEON for each of SVE


@pytest.mark.compiles
def test_the_cortex_a7_is_a_32_bit_processor_with_neon() -> None:
    """LLVM multiplies and adds apart for it, because its fused instruction is slow."""
    assert KNOWN_CPUS["cpu/cortex-a7"].triple.startswith("armv7")
    text = text_of(cpu("cpu/cortex-a7"), "matmul")
    assert len(re.findall(r"\svmul\.f32\s+q\d+", text)) >= 4 and len(re.findall(r"\svadd\.f32\s+q\d+", text)) >= 4


@pytest.mark.compiles
@pytest.mark.parametrize("kernel", CONTRACTIONS)
@pytest.mark.parametrize("target", BUILT)
def test_contractions_multiply_and_add_whole_vectors(target: str, kernel: str) -> None:
    for sketch, (_, text) in origins(target, kernel).items():
        loop = hottest(target, text)
        assert len(fmas(target, loop)) >= 4, sketch
        single = [line for line in loop if re.match(r"fn?madd\s|vfn?m(add|sub)\d+ss\s", line)]
        assert not single, sketch


@pytest.mark.compiles
@pytest.mark.parametrize("kernel", ["matmul", "conv2d"])
@pytest.mark.parametrize("target", BUILT)
def test_accumulators_are_registers(target: str, kernel: str) -> None:
    """The inner loop has one multiply-add per vector of the tile and step, and no register goes to the stack."""
    config, text = origins(target, kernel)["register_blocked"]
    loop = hottest(target, text)
    rows = config["rows"] * config.get("rows_outer", 1)
    assert len(fmas(target, loop)) == rows * math.ceil(config["columns"] / KNOWN_CPUS[target].lanes) * config["unroll"]
    assert not on_stack(loop)
    assert not any(re.match(r"str|stp|stur|v?mov\w+\s+%[xyz]mm\d+, .*\(", line) for line in loop)


@pytest.mark.compiles
@pytest.mark.parametrize("target", ARM)
def test_neon_multiplies_by_an_element(target: str) -> None:
    """Scalars of the other operand stand in a vector register: hardly any instruction spreads them first."""
    _, text = origins(target, "matmul")["register_blocked"]
    loop = hottest(target, text)
    by_element = [line for line in fmas(target, loop) if line.endswith("]")]
    spread = [line for line in loop if re.match(r"dup|ld1r", line)]
    assert len(by_element) >= 4
    assert len(spread) * 8 <= len(by_element)
    loads = sum(2 if line.startswith("ldp") else 1 for line in loop if line.startswith("ld"))
    assert loads <= 0.75 * len(by_element)


@pytest.mark.compiles
@pytest.mark.parametrize("kernel", ["softmax", "relu"])
@pytest.mark.parametrize("target", BUILT)
def test_rows_run_in_whole_vectors(target: str, kernel: str) -> None:
    # ARM's fmaxnm would turn NaN into 0: a ReLU is a comparison and a mask there.
    greatest = rf"vmaxps\s.*%{X86[target]}" if target in X86 else r"(fmax(nm)?|fcmlt)\s+v\d+\.4s"
    for _, text in origins(target, kernel).values():
        assert re.search(greatest, text)
        assert "expf" not in text


@pytest.mark.compiles
@pytest.mark.skipif(platform.machine() != "x86_64" or Cpu.detect().lanes < 8, reason="this machine has no AVX2")
@pytest.mark.parametrize(
    "workload",
    [
        operators.matmul(61, 100, 37),
        operators.dense(30, 50, 20, bias=1, act="relu"),
        operators.conv2d(1, 17, 17, 12, 24, 3, 3, 1, 1),
        operators.depthwise_conv2d(1, 15, 15, 20, 3, 3, 2, 1),
        operators.softmax(7, 333),
    ],
    ids=lambda workload: workload.name,
)
def test_avx2_kernels_compute_what_numpy_does(workload: Workload) -> None:
    target = parse_machine("cpu/x86-64-v3")
    rng = np.random.default_rng(0)
    inputs = workload.random_inputs(0)
    (expected,) = evaluate(workload.function, inputs)
    for sketch, space in sketches_for(workload, target):
        for config in (space.config(space.origin), space.config(space.sample(rng)), space.config(space.sample(rng))):
            kernel = TunedKernel(workload, target, sketch.apply(workload, target, config))
            scale = float(np.abs(expected).max())
            assert float(np.abs(kernel(*inputs) - expected).max()) <= max(1e-5, sketch.max_error) * scale, config
