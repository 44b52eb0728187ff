"""This machine as a CPU with fewer arithmetic units: what is hidden, from whom, and under which name."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tvm.target import codegen

from stormdrop.errors import TargetError
from stormdrop.machine import fewer_units, tiles
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.cpu_flags import missing_features
from stormdrop.machine.detect import cpu_model, host_features
from stormdrop.machine.fewer_units import CPUS, VARIABLE
from stormdrop.machine.limits import memory_rates, peak, unit_rates
from stormdrop.machine.process import child_process
from stormdrop.machine.units import unit_features
from stormdrop.model.artifact.metadata import lacking_features

AVX2, AVX512 = {"gfni", "avx", "avx2"}, {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEFT = {
    "x86-64-v3": AVX2,
    "avx_vnni": {*AVX2, "avxvnni"},
    "x86-64-v4": {*AVX2, *AVX512},
    "avx512_vnni": {*AVX2, *AVX512, "avx512vnni"},
    "avx512_bf16": {*AVX2, *AVX512, "avx512vnni", "avx512bf16", "avxvnni"},
}
EVERYTHING = frozenset({*LEFT["avx512_bf16"], "avx512fp16", "avx512vbmi", "avxifma", "avx10.1", "amx-tile", "amx-int8"})


@pytest.fixture(autouse=True)
def _as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(tiles, "ask_for_tiles", tiles.ask_for_tiles.__wrapped__)  # it asks once per process


@pytest.fixture(params=CPUS)
def name(request: pytest.FixtureRequest) -> str:
    """A CPU that this machine may pass for."""
    if not host_features() >= {"avx2", *CPUS[request.param].keeps}:
        pytest.skip(f"this CPU has not all units of {request.param}")
    return str(request.param)


@pytest.mark.parametrize("name", CPUS)
def test_what_is_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, name)
    assert fewer_units.remaining_features(EVERYTHING) == LEFT[name]
    assert fewer_units.hidden_features(EVERYTHING) == EVERYTHING - LEFT[name]


def test_nothing_is_hidden_by_default() -> None:
    assert fewer_units.remaining_features(EVERYTHING) == EVERYTHING and not fewer_units.hidden_features(EVERYTHING)
    assert fewer_units.model_name("A CPU") == "A CPU"


def test_units_can_only_be_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "avx512_vnni")
    with pytest.raises(TargetError, match="STORMDROP_CPU=avx512_vnni: this CPU lacks avx512vnni; units can only be"):
        fewer_units.remaining_features(frozenset({*AVX2, *AVX512}))


def test_another_name_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "pentium")
    with pytest.raises(TargetError, match=r"STORMDROP_CPU=pentium: no CPU that .*: use one of x86-64-v3, avx_vnni, "):
        Cpu.detect()


def test_whoever_asks_sees_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, name)
    target = Cpu.detect()
    assert (target.lanes, target.registers) == ((16, 32) if "avx512f" in LEFT[name] else (8, 16))
    assert target.features == unit_features(LEFT[name], "x86")
    assert target.kind == f"llvm {CPUS[name].mcpu}"
    compiled_for = {str(feature) for feature in codegen.llvm_get_cpu_features(target.tvm())}
    for seen in (host_features(), compiled_for):
        assert not seen & EVERYTHING - LEFT[name]
    gone = EVERYTHING - LEFT[name]
    assert gone <= set(lacking_features(EVERYTHING)), "what a saved model needs, where LLVM is"
    assert gone <= set(missing_features(EVERYTHING)), "and where it is not"


def test_tiles_are_not_permitted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(TargetError, match=f"needs tile registers, and this CPU as {name} has no tile registers"):
        tiles.permit(["amx-tile"])


@pytest.mark.parametrize("name", ["x86-64-v3"], indirect=True)
def test_a_child_process_sees_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, name)
    child = child_process.ChildProcess(f"{__name__}:serve_model", ())
    try:
        assert child.answer(60.0) == cpu_model()
    finally:
        child.close()


def serve_model(connection: Connection) -> None:
    """Tells what CPU a child process believes to run on."""
    connection.send(cpu_model())


def test_nothing_that_is_kept_is_taken_for_the_machine_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(target: Cpu) -> set[str | Path]:
        memory = (memory_rates._kept(target).path, memory_rates._kept_caches(target).path)
        return {target.machine, peak.cache_path(target), *memory, unit_rates._path(target)}

    here = Cpu.detect()
    monkeypatch.setenv(VARIABLE, name)
    target = Cpu.detect()
    assert target.cpu == cpu_model() == f"{here.cpu} as {name}"
    assert len(kept(here)) == 5 and not kept(here) & kept(target)
