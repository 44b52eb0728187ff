"""Arithmetic units: that the loops which measure them are the instruction and nothing else, and that rates are kept."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import platformdirs
import pytest
import tvm

from stand_ins.cpus import cpu
from stormdrop.errors import MeasureError
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.machine.detect import cpu_family, host_features
from stormdrop.machine.limits import kept_measurements
from stormdrop.machine.limits import unit_rates as module
from stormdrop.machine.limits.peak_loops import accumulators
from stormdrop.machine.limits.unit_loops import Loop, loop_function
from stormdrop.machine.limits.unit_rates import UnitRate, unit_rates
from stormdrop.machine.units import (
    UNITS,
    features_of_family,
    features_that_may_be_hidden,
    unit_features,
    units_with,
)

BY_NAME = {unit.name: unit for unit in UNITS}
INSTRUCTIONS = {
    "avx512_vnni": r"vpdpbusd\t%zmm",
    "avx_vnni": r"(\{vex\}\t)?vpdpbusd\t%ymm",
    "avx512bw": r"vpmaddwd\t%zmm",
    "avx2": r"vpmaddwd\t%ymm",
    "avx512_bf16": r"vdpbf16ps\t%zmm",
    "avx512_fp16": r"vfmadd\d+ph\t%zmm",
    "amx_int8": r"tdpbusd\t%tmm",
    "amx_bf16": r"tdpbf16ps\t%tmm",
    "amx_fp16": r"tdpfp16ps\t%tmm",
    "asimddp": r"sdot\tv",
    "i8mm": r"usmmla\tv",
    "bf16": r"bfmmla\tv",
}
KNOWN = {"x86": "cpu/x86-64-v4", "arm": "cpu/neoverse-n1"}


def machine_with(name: str) -> Cpu:
    """A target that has one unit, and no other."""
    unit = BY_NAME[name]
    target = parse_machine(KNOWN[unit.family])
    assert isinstance(target, Cpu)
    return replace(target, features=unit.requires)


@pytest.mark.compiles
@pytest.mark.parametrize("name", BY_NAME)
def test_a_loop_is_the_instruction_on_registers_and_nothing_else(name: str) -> None:
    target = machine_with(name)
    loop = Loop.of(BY_NAME[name], target)
    module_ = tvm.compile(tvm.IRModule({"main": loop_function(loop, 2)}), target.tvm()).mod
    text = module_.inspect_source("asm")
    label = r"^(\.LBB\w+):[^\n]*\n((?:(?!\.LBB)[^\n]*\n)*?)\s+(?:j\w+|b\.\w+|cbn?z\s+\w+,)\s+\1$"
    bodies = [body for _, body in re.findall(label, text, flags=re.MULTILINE)]
    lines = next(
        [line.strip() for line in body.splitlines() if line.strip() and not line.strip().startswith(("#", "//", "."))]
        for body in bodies
        if re.search(INSTRUCTIONS[name], body)
    )
    units = [line for line in lines if re.match(INSTRUCTIONS[name], line)]
    assert len(units) >= loop.instructions and len(units) % loop.instructions == 0
    assert not any("(" in line or "[" in line for line in units)  # no operand in memory
    adding = [line for line in lines if re.match(r"vpaddd\t%[yz]mm", line)]
    assert len(adding) == (len(units) if "vpmaddwd" in INSTRUCTIONS[name] else 0)  # it does not add to a sum itself
    assert len(lines) - len(units) - len(adding) <= 4  # what counts the steps


@pytest.mark.compiles
@pytest.mark.parametrize("name", ["avx512_vnni", "avx_vnni", "asimddp"])
def test_a_loop_computes_what_is_counted(name: str) -> None:
    target = Cpu.detect()
    if BY_NAME[name] not in units_with(target.features):
        pytest.skip(f"this machine has no {name}")
    loop, steps = Loop.of(BY_NAME[name], target), 5
    out = tvm.runtime.tensor(np.zeros((2, 2048), "uint8"))
    kernel = tvm.compile(tvm.IRModule({"main": loop_function(loop, 2)}), target.tvm()).jit()["main"]
    kernel(tvm.runtime.tensor(loop.operands), out, tvm.runtime.tensor(np.array([steps], "int64")))
    lanes = BY_NAME[name].operations // 8
    assert loop.instructions == accumulators(16 if name == "avx_vnni" else target.registers)
    sums = out.numpy().view("int32").reshape(2, -1, 16)[:, : loop.instructions, :lanes]
    assert np.all(sums == steps * 4 * 100 * -3)


def test_units_need_all_of_their_extensions() -> None:
    assert units_with(cpu("cpu/x86-64-v4").features) == ()
    assert units_with(["amx-int8"]) == ()
    assert units_with(["amx-int8", "amx-tile"]) == (BY_NAME["amx_int8"],)


def test_this_machine_has_what_its_cpu_reports() -> None:
    target = Cpu.detect()
    assert set(target.features) == set(features_of_family(cpu_family())) & host_features()
    assert unit_features(["avx", "avx512vnni"], "x86") == ("avx512vnni",)
    assert unit_features(["avx512vnni"], "arm") == ()


def test_llvm_is_told_what_there_is_and_what_is_hidden() -> None:
    target = replace(Cpu.detect(), features=())
    hidden = {str(attribute) for attribute in target.tvm().attrs.get("mattr", [])}
    assert hidden == {f"-{name}" for name in features_that_may_be_hidden(cpu_family())}
    assert features_that_may_be_hidden("x86") == {*features_of_family("x86")} - {"avx2", "avx512bw"}
    board = parse_machine("cpu/neoverse-n1")
    assert isinstance(board, Cpu)
    assert "mattr" not in board.tvm().attrs
    having = replace(board, features=("dotprod",)).tvm().attrs["mattr"]
    assert [str(attribute) for attribute in having] == ["+dotprod"]


def rate(name: str, times: float, undisturbed: bool = True, problem: str = "") -> UnitRate:
    """A rate as a measurement finds it."""
    return UnitRate(BY_NAME[name], times * 1e12, times, undisturbed, problem)


def test_a_unit_is_offered_if_it_runs_and_is_faster_and_has_kernels() -> None:
    assert rate("avx512_vnni", 4.0).offered
    assert rate("avx512_vnni", 0.9).reason == "not faster than float32"
    assert rate("avx512_fp16", 2.0).reason == "no kernel of this version uses it"
    assert rate("amx_int8", 0.0, problem="SIGILL").reason == "does not run: SIGILL"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[UnitRate, ...]]:
    """What the next measurements find, in order; what is left was not asked for. Nothing is kept yet."""
    queue = [(rate("avx512_vnni", 4.0),), (rate("avx512_vnni", 3.0), rate("avx512_bf16", 0.0, problem="SIGILL"))]
    monkeypatch.setattr(module, "_measure", lambda target: queue.pop(0))
    monkeypatch.setattr(kept_measurements, "_measured", {})
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: str(tmp_path))
    monkeypatch.setattr("stormdrop.machine.sharing.lock.default_lock_path", lambda: tmp_path / "lock")
    return queue


TARGET = Cpu("cpu", "A CPU", "generic", 2, 16, 32, 1 << 15, 1 << 20, 1 << 25, features=("avx512vnni",))


def test_rates_are_kept(results: list[tuple[UnitRate, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = results
    assert unit_rates(TARGET) == first
    monkeypatch.setattr(kept_measurements, "_measured", {})
    assert unit_rates(TARGET) == first  # from the file
    assert unit_rates(TARGET, refresh=True) == second
    monkeypatch.setattr(kept_measurements, "_measured", {})
    assert unit_rates(TARGET) == second
    assert not results


def test_disturbed_rates_stand_until_they_are_undisturbed(
    results: list[tuple[UnitRate, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed = (rate("avx512_vnni", 2.0, undisturbed=False),)
    results.insert(0, disturbed)
    assert unit_rates(TARGET) == disturbed
    monkeypatch.setattr(kept_measurements, "_measured", {})
    assert unit_rates(TARGET) == disturbed  # from the file
    undisturbed = results[0]
    assert unit_rates(TARGET, refresh=True) == undisturbed
    results.insert(0, disturbed)
    assert unit_rates(TARGET, refresh=True) == undisturbed


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[["no unit", 1, 1, ""]]', '[["avx512_vnni", "much", 1, ""]]'])
def test_a_damaged_file_is_measured_again(results: list[tuple[UnitRate, ...]], text: str) -> None:
    path = module._path(TARGET)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert unit_rates(TARGET)[0].rate == 4e12


@pytest.mark.parametrize("target", [replace(TARGET, triple="aarch64-linux"), TARGET.with_runner("board:9090")])
def test_other_machines_are_not_measured(target: Cpu) -> None:
    with pytest.raises(MeasureError, match="it is another machine"):
        unit_rates(target)


@pytest.mark.compiles
def test_a_unit_that_is_not_there_costs_no_other_unit_its_measurement() -> None:
    target = Cpu.detect()
    if cpu_family() != "x86" or "amx-tile" in target.features or "avx512vnni" not in target.features:
        pytest.skip("needs an x86 with VNNI and without AMX")
    claiming = replace(target, features=(*target.features, "amx-tile", "amx-int8"))
    found = {rate.unit.name: rate for rate in module._measure(claiming)}
    assert re.match(r"its loop ended the measuring process \(\w.*\): .", found["amx_int8"].problem)
    assert found["amx_int8"].rate == 0 and not found["amx_int8"].offered
    # One instruction of 16 lanes a cycle at least, at 0.1 to 10 GHz: a wrong factor of ten would leave this range.
    assert 1e8 < found["avx512_vnni"].rate / (128 * target.cores) < 2e10
