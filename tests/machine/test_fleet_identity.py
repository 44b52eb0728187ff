"""Which machines are equal, and when one has drifted."""

from __future__ import annotations

import dataclasses
import pickle
import time
from contextlib import closing
from typing import Any

import pytest

from stormdrop.errors import LockTimeout
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.sharing.lock import MachineLock
from stormdrop.measure.fleet import identity
from stormdrop.measure.fleet.identity import Calibration, MachineIdentity, calibrated_alike, has_drifted, identify

TARGET = Cpu("cpu", "A CPU", "generic", 2, 8, 16, 1 << 15, 1 << 20, 1 << 25)


def test_machines_are_equal_if_everything_is() -> None:
    here = MachineIdentity(TARGET, "0a1b")
    assert here == pickle.loads(pickle.dumps(here))
    assert here.kind == "A CPU, 2 cores"
    changes: tuple[dict[str, Any], ...] = ({"cores": 4}, {"l2": 1})
    for other in (
        MachineIdentity(TARGET, "ffff"),
        *(MachineIdentity(dataclasses.replace(TARGET, **change), "0a1b") for change in changes),
    ):
        assert other != here


def test_this_machine_is_equal_to_itself() -> None:
    here = identify()
    assert here == identify() and here.target == Cpu.detect()
    assert len(here.features) == 8 and int(here.features, 16) >= 0


def test_the_largest_group_is_taken_and_of_equal_ones_the_fastest() -> None:
    times = {"a": 1.0, "b": 1.05, "c": 1.5, "d": 1.55, "e": 1.6, "f": 3.0}
    calibrations = {name: Calibration(seconds) for name, seconds in times.items()}
    assert calibrated_alike(calibrations) == ["c", "d", "e"]
    assert calibrated_alike({name: calibrations[name] for name in "abcd"}) == ["a", "b"]
    assert calibrated_alike({}) == []


@pytest.mark.parametrize(
    ("seconds", "undisturbed", "drifted"),
    [(1.09, True, False), (1.11, True, True), (0.9, True, True), (2.0, False, False)],
)
def test_a_disturbed_calibration_is_no_evidence(seconds: float, undisturbed: bool, drifted: bool) -> None:
    assert has_drifted(Calibration(1.0), Calibration(seconds, undisturbed)) is drifted


@pytest.mark.compiles
def test_the_kernel_runs_while_nobody_else_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.machine.limits.measuring._TIMEOUT", 250.0)  # however busy the machine is
    calibration = identity.calibrate(Cpu.detect())
    assert 0 < calibration.seconds < 10
    with closing(MachineLock()) as lock, lock.exclusive(), pytest.raises(LockTimeout):
        identity.calibrate(Cpu.detect(), time.perf_counter() + 0.05)
