"""What makes two machines of a fleet equal: their CPU, and the time that a calibration kernel takes on them.

Times of two machines are compared only if the machines are of one kind and calibrate alike. The calibration kernel is
the multiply-add loop by which the peak is measured (`peak.py`), on all cores. Its time follows the clock that the cores
really have. So it tells a machine that is throttled, or whose hypervisor grants it less, from one that is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ...machine.cpu import Cpu
from ...machine.detect import llvm_host
from ...machine.limits.measuring import measured_in_child, shape_of
from ...machine.limits.peak_loops import measure_flops
from ...machine.sharing.lock import MachineLock

TOLERANCE = 0.1
"""Machines are equal if their calibration kernels take times that differ by less than this share."""

_GFLOP = 1e9  # operations of which a calibration states the seconds

T = TypeVar("T")


@dataclass(frozen=True)
class MachineIdentity:
    """What a machine is, as it describes itself.

    Args:
        target: The machine as kernels are made for it: its CPU, cores, vector unit and caches.
        features: A digest of LLVM's names of its instruction set extensions; equal sets have equal digests.

    Example:
        >>> from stormdrop import parse_machine
        >>> MachineIdentity(parse_machine("cpu/neoverse-n1"), "0a1b2c3d").kind
        'Arm Neoverse N1, 64 cores'
    """

    target: Cpu
    features: str

    @property
    def kind(self) -> str:
        """What people call machines of this kind: the CPU's model and the number of cores."""
        return f"{self.target.cpu}, {self.target.cores} core{'s' if self.target.cores > 1 else ''}"


@dataclass(frozen=True)
class Calibration:
    """The time of the calibration kernel on a machine.

    Args:
        seconds: The least wall seconds of 10⁹ operations on all cores.
        undisturbed: Whether the kernel had all cores for itself.
    """

    seconds: float
    undisturbed: bool = True


def identify() -> MachineIdentity:
    """This machine.

    Example:
        >>> identify() == identify()
        True
    """
    _, features = llvm_host()
    return MachineIdentity(Cpu.detect(), hashlib.sha256(" ".join(sorted(features)).encode()).hexdigest()[:8])


def calibrate(target: Cpu, deadline: float = math.inf) -> Calibration:
    """Runs the calibration kernel on this machine, while nobody else measures.

    Args:
        target: This machine, with the number of cores to use.
        deadline: A reading of `time.perf_counter` after which the machine-wide lock is not waited for any more.

    Raises:
        LockTimeout: The machine was not free before the deadline.
        MeasureError: The process that runs the kernel fails.
    """
    with contextlib.closing(MachineLock()) as lock, lock.exclusive(deadline):
        serve = f"{__name__}:serve_calibration"
        return measured_in_child(serve, shape_of(target), Calibration, "calibrating this machine")


def serve_calibration(connection: Connection, shape: Mapping[str, Any]) -> None:
    """Calibrates in a child process, whose parent holds the machine-wide lock."""
    flops, undisturbed = measure_flops(shape)
    connection.send(Calibration(_GFLOP / flops, undisturbed))


def has_drifted(before: Calibration, now: Calibration) -> bool:
    """Whether a machine is not what it was.

    A calibration that something else disturbed tells nothing: the watch for foreign load judges such times.

    Args:
        before: The calibration at the beginning of the lease.
        now: A later one.

    Example:
        >>> has_drifted(Calibration(1.0), Calibration(1.3)), has_drifted(Calibration(1.0), Calibration(1.3, False))
        (True, False)
    """
    return now.undisturbed and not _alike(before.seconds, now.seconds)


def calibrated_alike(calibrations: Mapping[T, Calibration]) -> list[T]:
    """The largest group of machines whose calibration kernels take the same time; of equally large ones the fastest.

    Args:
        calibrations: The calibrations by machine.

    Returns:
        The machines of the group, the fastest first; none if there are none.

    Example:
        >>> calibrated_alike({"a": Calibration(1.02), "b": Calibration(1.5), "c": Calibration(1.0)})
        ['c', 'a']
    """
    ordered = sorted(calibrations, key=lambda machine: calibrations[machine].seconds)
    groups = [
        [other for other in ordered[first:] if _alike(calibrations[machine].seconds, calibrations[other].seconds)]
        for first, machine in enumerate(ordered)
    ]
    return max(groups, key=len, default=[])


def _alike(first: float, second: float) -> bool:
    return max(first, second) < (1 + TOLERANCE) * min(first, second)
