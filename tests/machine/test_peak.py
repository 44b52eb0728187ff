"""The measured limits: that the kernels do what is counted, and that the figures are kept."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
import tvm

from stormdrop.errors import LockTimeout, MeasureError
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.limits import kept_measurements, measuring
from stormdrop.machine.limits import peak as module
from stormdrop.machine.limits.kept_measurements import granted
from stormdrop.machine.limits.measuring import compile_function
from stormdrop.machine.limits.peak import Peak, known_peak, peak, peak_within
from stormdrop.machine.limits.peak_loops import accumulators, copy_function, fma_function
from stormdrop.machine.sharing.lock import MachineLock

TARGET = Cpu("cpu", "A CPU", "generic", 2, 8, 16, 1 << 15, 1 << 20, 1 << 25)


@pytest.mark.compiles
def test_the_multiply_adds_compute_what_they_claim() -> None:
    cores, vectors, lanes, steps = 3, 4, 8, 5
    kernel = compile_function(fma_function(cores, vectors, lanes, steps), Cpu.detect().mcpu, 2).jit()["main"]
    x = np.stack([np.linspace(0.5, 1.5, lanes), np.linspace(-1, 1, lanes)]).astype("float32")
    out = tvm.runtime.tensor(np.zeros((cores, vectors * lanes), "float32"))
    kernel(tvm.runtime.tensor(x), out)
    r = np.arange(vectors)[:, None] * x[0].astype("float64")
    for _ in range(steps):
        r = r * x[0] + x[1]
    np.testing.assert_allclose(out.numpy(), np.tile(r.reshape(-1), (cores, 1)), rtol=1e-5)


@pytest.mark.compiles
@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="reads x86 assembly")
@pytest.mark.parametrize(
    ("mcpu", "lanes", "registers", "register"), [("skylake-avx512", 16, 32, "zmm"), ("haswell", 8, 16, "ymm")]
)
def test_the_loop_is_multiply_adds_on_registers_and_nothing_else(
    mcpu: str, lanes: int, registers: int, register: str
) -> None:
    vectors = accumulators(registers)
    assembly = compile_function(fma_function(2, vectors, lanes, 1000), mcpu, 2).mod.inspect_source("asm")
    loops = re.findall(r"^(\.LBB\w+):\n((?:\t.*\n)+?)\tj\w+\t\1\n", assembly, flags=re.MULTILINE)
    (body,) = [body for _, body in loops if "vfmadd" in body]
    lines = [line.strip() for line in body.splitlines()]
    multiply_adds = [line for line in lines if line.startswith("vfmadd")]
    assert len(multiply_adds) % vectors == 0
    assert len({line.split("%")[-1] for line in multiply_adds}) == vectors  # independent accumulators
    assert all(line.count(f"%{register}") == 3 and "(" not in line for line in multiply_adds)
    others = [line.split()[0] for line in lines if line not in multiply_adds]
    assert len(others) <= 2
    assert all(re.match(r"(add|sub|inc|dec|cmp|test)[lq]", name) for name in others)


@pytest.mark.compiles
def test_the_copy_copies() -> None:
    kernel = compile_function(copy_function(2, 64, 16), Cpu.detect().mcpu, 2).jit()["main"]
    a = np.arange(128, dtype="float32").reshape(2, 64)
    b = tvm.runtime.tensor(np.zeros_like(a))
    kernel(tvm.runtime.tensor(a), b)
    np.testing.assert_array_equal(b.numpy(), a)


@pytest.mark.compiles
def test_this_machine_is_measured_in_sensible_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_TIMEOUT", 250.0)  # however busy it is
    target = Cpu.detect()
    measured = module._measure_in_child(module._shape(target, 1.0))
    # Two multiply-add pipelines at most run today at 1 to 6 GHz; a wrong factor of ten would leave this range,
    # a machine shared with other work does not.
    clock = measured.flops / (target.cores * target.lanes * 2 * 2)
    assert 1e8 < clock < 1e10
    assert 1e8 < measured.bandwidth < 1e13


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Peak]:
    """What the next measurements find, in order; what is left was not asked for. The cache is empty."""
    queue = [Peak(1e12, 1e11), Peak(2e12, 2e11)]
    monkeypatch.setattr(module, "_measure_in_child", lambda shape: queue.pop(0))
    monkeypatch.setattr(kept_measurements, "_measured", {})
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: str(tmp_path))
    # With a lock of its own: other tests may measure at the same time.
    monkeypatch.setattr("stormdrop.machine.sharing.lock.default_lock_path", lambda: tmp_path / "lock")
    return queue


def test_figures_are_kept(results: list[Peak]) -> None:
    assert peak(TARGET) == Peak(1e12, 1e11)
    assert peak(TARGET) == Peak(1e12, 1e11)
    assert len(results) == 1
    kept = json.loads(module.cache_path(TARGET).read_text())
    assert kept == {"cpu": "A CPU", "cores": 2, "flops": 1e12, "bandwidth": 1e11, "undisturbed": True}


def test_refresh_measures_again(results: list[Peak]) -> None:
    peak(TARGET)
    assert peak(TARGET, refresh=True) == Peak(2e12, 2e11)
    assert peak(TARGET) == Peak(2e12, 2e11)
    assert not results


def test_each_machine_and_core_count_has_its_own(results: list[Peak]) -> None:
    peak(TARGET)
    assert peak(dataclasses.replace(TARGET, cores=1)) == Peak(2e12, 2e11)


def test_the_best_of_disturbed_figures_stands_until_one_is_undisturbed(results: list[Peak]) -> None:
    results[:] = [Peak(5e11, 5e10, False), Peak(6e11, 4e10, False), Peak(2e11, 2e10), Peak(3e11, 3e10, False)]
    for expected in (Peak(5e11, 5e10, False), Peak(6e11, 5e10, False), Peak(2e11, 2e10), Peak(2e11, 2e10)):
        assert peak(TARGET, refresh=True) == expected
        kept_measurements._measured.clear()  # another process
        assert peak(TARGET) == known_peak(TARGET) == expected
    assert not results


def test_a_file_of_an_earlier_version_holds_undisturbed_figures(results: list[Peak]) -> None:
    kept_measurements.keep(module.cache_path(TARGET), {"cpu": "A CPU", "cores": 2, "flops": 3e12, "bandwidth": 3e11})
    assert peak(TARGET) == Peak(3e12, 3e11)


def test_what_is_not_known_is_not_measured(results: list[Peak]) -> None:
    assert known_peak(TARGET) is None
    assert known_peak(TARGET.with_runner("board:9090")) is None
    assert len(results) == 2


def test_the_wait_for_the_machine_has_a_deadline(results: list[Peak]) -> None:
    with closing(MachineLock()) as lock, lock.exclusive(), pytest.raises(LockTimeout):
        peak(TARGET, deadline=time.perf_counter() + 0.1)
    assert len(results) == 2


def test_it_is_measured_under_the_lock_that_this_process_holds(
    results: list[Peak], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(shape: object) -> Peak:
        with pytest.raises(LockTimeout), closing(MachineLock()) as lock, lock.shared(time.perf_counter()):
            pass
        return results.pop(0)

    monkeypatch.setattr(module, "_measure_in_child", measure)
    assert peak(TARGET) == Peak(1e12, 1e11)
    with closing(MachineLock()) as lock, lock.exclusive(time.perf_counter()):
        pass


def test_a_tuning_measures_it_if_there_is_time(results: list[Peak]) -> None:
    assert peak_within(TARGET, granted(20.0)) is None  # a measurement takes more than 3% of it
    assert peak_within(TARGET, granted(60.0)) == Peak(1e12, 1e11)
    assert peak_within(TARGET, granted(20.0)) == Peak(1e12, 1e11)
    assert len(results) == 1


def test_a_measurement_waits_for_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch, results: list[Peak]) -> None:
    asked: list[float] = []
    monkeypatch.setattr(kept_measurements, "is_quiet", lambda: True)
    monkeypatch.setattr(
        module, "_measure_in_child", lambda shape: asked.append(shape["patience"]) or Peak(1e12, 1e11, False)
    )
    for seconds in (2.0, math.inf):
        peak_within(TARGET, seconds)
    peak(TARGET, refresh=True)
    assert 0 < asked[0] <= 2.0 - module._COST
    assert asked[1:] == [module._PATIENCE_OF_TUNING, module._PATIENCE]  # the caches are measured, too


@pytest.mark.parametrize("quiet", [True, False])
def test_a_tuning_betters_a_disturbed_figure_if_nothing_else_runs_now(
    results: list[Peak], monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    disturbed = Peak(5e11, 5e10, undisturbed=False)
    results.insert(0, disturbed)
    monkeypatch.setattr(kept_measurements, "is_quiet", lambda: quiet)
    assert peak_within(TARGET, 2.0) == disturbed
    assert peak_within(TARGET, 1.0) == disturbed
    assert peak_within(TARGET, 2.0) == (Peak(1e12, 1e11) if quiet else disturbed)
    assert peak_within(TARGET, math.inf) == (Peak(1e12, 1e11) if quiet else disturbed)
    assert len(results) == (1 if quiet else 2)


@pytest.mark.parametrize(("pause", "windows"), [(0.0, 60), (0.02, 5)])
def test_long_windows_are_few(monkeypatch: pytest.MonkeyPatch, pause: float, windows: int) -> None:
    """Arrays of a gigabyte, for a last cache as its host reports it, are not copied sixty times."""
    clock = [0.0]
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: clock[0])  # type: ignore[attr-defined]
    monkeypatch.setattr(measuring.time, "process_time", lambda: 2 * clock[0])  # type: ignore[attr-defined]
    ran = []

    def run() -> None:
        ran.append(1)
        clock[0] += 0.001 + pause

    assert measuring.best_window(run, 2, patience=0.1) == (pytest.approx(0.001 + pause), True)  # type: ignore[comparison-overlap]
    assert len(ran) == 1 + windows


def test_a_tuning_does_without_it(results: list[Peak], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COST", 0.0)
    with closing(MachineLock()) as lock, lock.exclusive():
        assert peak_within(TARGET, 0.1) is None  # nobody gives the machine back within this time
    assert peak_within(TARGET.with_runner("board:9090"), math.inf) is None
    assert len(results) == 2


@pytest.mark.parametrize("home", ["~/.cache/stormdrop", "/dev/null/home/.cache/stormdrop"])
def test_without_a_home_nothing_is_cached(
    home: str, results: list[Peak], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: home)
    assert peak(TARGET) == peak(TARGET) == Peak(1e12, 1e11)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("lock")] == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"flops": "many"}', '{"flops": 0, "bandwidth": 1}', '{"flops": NaN, "bandwidth": 1}']
)
def test_a_damaged_file_is_measured_anew(results: list[Peak], text: str) -> None:
    path = module.cache_path(TARGET)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert peak(TARGET) == Peak(1e12, 1e11)
    assert json.loads(path.read_text())["flops"] == 1e12


@pytest.mark.compiles
def test_a_measurement_that_fails_says_why() -> None:
    shape: dict[str, Any] = {**measuring.shape_of(TARGET), "lanes": 0}
    with pytest.raises(MeasureError, match=r"measuring this machine's peak failed \(exit code 1\): .+"):
        module._measure_in_child(shape)
