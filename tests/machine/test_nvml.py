"""What the driver says, by a stand-in for NVML."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from stormdrop.machine import nvml as driver

NAMES = ("NVIDIA H200", "NVIDIA A100-SXM4-80GB")


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    state = SimpleNamespace(reasons=pynvml.nvmlClocksThrottleReasonSwPowerCap, clock=210)
    monkeypatch.setattr(driver, "_driver_loads", lambda: True)
    monkeypatch.delenv(driver.VISIBLE_DEVICES, raising=False)
    for name, stand_in in {
        "nvmlDeviceGetCount": lambda: len(NAMES),
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetHandleByUUID": {"GPU-b": 1}.__getitem__,
        "nvmlDeviceGetIndex": lambda handle: handle,
        "nvmlDeviceGetName": lambda handle: NAMES[handle],
        "nvmlSystemGetDriverVersion": lambda: "580.1",
        "nvmlDeviceGetClockInfo": lambda _, kind: {pynvml.NVML_CLOCK_SM: state.clock}[kind],
        "nvmlDeviceGetCudaComputeCapability": lambda handle: [(9, 0), (8, 0)][handle],
        "nvmlDeviceGetNumGpuCores": [16896, 6912].__getitem__,
        "nvmlDeviceGetMemoryBusWidth": [6144, 5120].__getitem__,
        "nvmlDeviceGetMaxClockInfo": lambda _, kind: {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 6251}[kind],
        "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: state.reasons,
    }.items():
        monkeypatch.setattr(pynvml, name, stand_in)
    return state


@pytest.mark.usefixtures("two")
def test_all_gpus() -> None:
    infos = driver.visible_gpus()
    assert [(gpu.number, gpu.name) for gpu in infos] == list(enumerate(NAMES))
    assert [(gpu.arch, gpu.lanes, gpu.bus) for gpu in infos] == [("sm_90", 16896, 6144), ("sm_80", 6912, 5120)]
    assert str(infos[0]) == "1980 MHz, memory 6251 MHz, 700 W, driver 580.1"


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(("visible", "numbers"), [("1", [1]), ("1,0", [1, 0]), ("GPU-b", [1]), ("", []), ("-1", [])])
def test_those_that_the_user_allows(monkeypatch: pytest.MonkeyPatch, visible: str, numbers: list[int]) -> None:
    monkeypatch.setenv(driver.VISIBLE_DEVICES, visible)
    assert [gpu.number for gpu in driver.visible_gpus()] == numbers


def test_only_the_clock_of_the_moment_changes(two: SimpleNamespace) -> None:
    idle, slow = driver.visible_gpus(), driver.current_clock(0)
    two.clock = 1755
    assert driver.visible_gpus() == idle
    assert (slow, driver.current_clock(0)) == (210, 1755)


def test_heat_slows_and_the_limit_of_power_does_not(two: SimpleNamespace) -> None:
    assert not driver.is_slowed(0)
    two.reasons |= pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    assert driver.is_slowed(0)


@pytest.mark.usefixtures("two")
def test_the_memory_that_nobody_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda number: SimpleNamespace(free=[80, 40][number]))
    assert (driver.free_memory(0), driver.free_memory(1)) == (80, 40)


@pytest.mark.usefixtures("two")
def test_free_memory_that_the_driver_does_not_tell_is_not_none_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise pynvml.NVMLError_NotSupported()

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", refused)
    assert driver.free_memory(0) is None
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: SimpleNamespace(free=0))
    assert driver.free_memory(0) == 0


@pytest.mark.usefixtures("two")
def test_what_a_gpu_does_not_tell_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetEnforcedPowerLimit", refused)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", refused)
    assert driver.visible_gpus()[0].watts == 0
    assert not driver.is_slowed(0)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    driver._driver_loads.cache_clear()
    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    assert driver.visible_gpus() == ()
    assert not driver.is_slowed(0)
    assert driver.current_clock(0) == 0
    driver._driver_loads.cache_clear()
