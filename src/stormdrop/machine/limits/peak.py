"""The measured limits of this machine: FLOP/s from registers, and bytes/s of a copy in memory.

`flops` is what fused multiply-adds on registers reach on all cores. The loop holds as many vector accumulators as fill
the pipelines, and neither loads nor stores. `bandwidth` is what a copy of arrays much larger than the last cache
reaches on all cores. It counts the bytes read plus the bytes written, but not the lines that a cache fetches before it
writes them. Both are the best of several windows, measured while nobody else measures.

The loops are in `peak_loops`. The result is kept per machine. If it was disturbed, the best of all that were measured
stands, and a tuning with enough time tries to better it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import MeasureError, TargetError
from .kept_measurements import KeptMeasurement, kept_file
from .measuring import measured_in_child, shape_of

if TYPE_CHECKING:
    from ..contract import Machine
    from ..cpu import Cpu

_COST = 1.4  # seconds, about, of a measurement that nothing disturbs
_PATIENCE = 4.0  # seconds to wait for undisturbed windows, at most
_PATIENCE_OF_TUNING = 1.0  # the same at the beginning of a tuning, which measures the caches, too
_METHOD = 2  # part of the cache's key: raise it when what is measured changes


@dataclass(frozen=True)
class Peak:
    """The limits of a machine.

    Attributes:
        flops: FLOP/s in float32.
        bandwidth: Bytes/s, read plus written.
        undisturbed: False if something else used the cores in all windows. The true limits are then higher.
    """

    flops: float
    bandwidth: float
    undisturbed: bool = True


def peak(target: Machine, refresh: bool = False, deadline: float = math.inf) -> Peak:
    """The limits of a machine: those that its maker states for a GPU, measured ones for the CPU of this machine.

    The measurement takes some 2 s and waits for the machine-wide lock. The result is cached in the user's cache folder.
    What other work has disturbed is too low: the best of such figures stands until one is undisturbed.

    Args:
        target: The machine, with the number of cores to use.
        refresh: Measure even if the limits are known.
        deadline: A reading of `time.perf_counter` after which the lock is not waited for any more.

    Raises:
        LockTimeout: The machine was not free before the deadline.
        MeasureError: The measuring process fails, or a runner measures, whose limits are not known here.

    Example:
        >>> import stormdrop as sd
        >>> sd.peak(sd.parse_machine("cuda/a100")).flops
        19500000000000.0
    """
    if target.stated_limits is not None:
        return Peak(*target.stated_limits)
    from ..cpu import require_cpu

    cpu = require_cpu(target, f"the limits of {target.name} are not known")
    if target.runner:
        raise MeasureError(f"the limits of the machine at {target.runner} are not known")
    return _kept(cpu).get(lambda: _measure_in_child(_shape(cpu, _PATIENCE)), refresh, deadline)


def known_peak(target: Machine) -> Peak | None:
    """The limits of a machine if they are stated, cached, or measured by this process before; it measures nothing.

    Args:
        target: The machine, with the number of cores to use.

    Example:
        >>> import stormdrop as sd
        >>> known_peak(sd.parse_machine("cuda/a100")).flops
        19500000000000.0
    """
    if target.stated_limits is not None:
        return Peak(*target.stated_limits)
    from ..cpu import Cpu

    if not isinstance(target, Cpu) or target.runner:
        return None
    return _kept(target).known()


def peak_within(target: Machine, seconds: float) -> Peak | None:
    """The limits of a machine if they are known, or if they can be measured within some seconds.

    Args:
        target: The machine, with the number of cores to use.
        seconds: The most wall seconds that the measurement may take; infinity is no bound.
    """
    from ..cpu import Cpu

    if target.stated_limits is not None or not isinstance(target, Cpu) or target.runner:
        return known_peak(target)

    def measure(patience: float) -> Peak:
        return _measure_in_child(_shape(target, min(patience, _PATIENCE_OF_TUNING)))

    try:
        return _kept(target).within(measure, _COST, seconds)
    except (MeasureError, TargetError):  # a tuning does without them
        return known_peak(target)


def cache_path(target: Cpu) -> Path:
    """The file that keeps the limits of this machine, one per CPU model, core count and vector unit."""
    return kept_file("peak", [_METHOD, target.cpu, target.mcpu, target.cores, target.lanes, target.registers])


def _kept(target: Cpu) -> KeptMeasurement[Peak]:
    def write(measured: Peak) -> dict[str, Any]:
        return {"cpu": target.cpu, "cores": target.cores, **asdict(measured)}

    return KeptMeasurement(cache_path(target), write, _read, lambda known: known.undisturbed, _higher)


def _read(document: Any) -> Peak:
    known = Peak(float(document["flops"]), float(document["bandwidth"]), document.get("undisturbed", True) is True)
    if not (0 < known.flops < math.inf and 0 < known.bandwidth < math.inf):
        raise ValueError("no limits of a machine")
    return known


def _higher(known: Peak, measured: Peak) -> Peak:
    """Of two that were disturbed, which are both too low."""
    return Peak(max(known.flops, measured.flops), max(known.bandwidth, measured.bandwidth), undisturbed=False)


def _shape(target: Cpu, patience: float) -> dict[str, Any]:
    return {**shape_of(target), "patience": patience}


def _measure_in_child(shape: Mapping[str, Any]) -> Peak:
    return measured_in_child(
        "stormdrop.machine.limits.peak_loops:serve_peak", shape, Peak, "measuring this machine's peak"
    )
