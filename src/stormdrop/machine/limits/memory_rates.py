"""How fast this machine reads and copies arrays, by their size, and how many bytes its last cache really holds.

A virtual machine reports the last cache of its host, of which it has a share that nobody states. So a loop reads arrays
of growing size again and again, on all cores. As long as they stay in a cache it is faster than memory is. The size at
which its rate falls to the geometric mean of the last cache's and the memory's is what the caches hold
(`MemoryRates.cached`). What decides whether a model's weights stay in the caches uses that (`cached_bytes`). The
sketches make their spaces for what is reported, so that a space and its records do not depend on a measurement.

The arrays have pages as the system gives them. The largest is read from huge pages, too. A chain of loads, each of
which needs the one before, gives the latency of the memory.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ...errors import MeasureError
from .kept_measurements import KeptMeasurement, kept_file
from .measuring import measured_in_child, shape_of

if TYPE_CHECKING:
    from ..contract import Machine
    from ..cpu import Cpu

_METHOD = 2  # part of the key of what is kept: raise it when what is measured changes
_DISTINCT = 1.25  # times as fast as memory: what is slower than that is no cache worth the name
_SURELY = 1.5  # times what all caches hold: such an array does not lie in them
_FARTHEST = 3  # sizes whose median rate is that of memory
_COST = 2.5  # seconds, about, to find out what the caches hold


@dataclass(frozen=True)
class MemoryRates:
    """How fast the memory and the caches of a machine are.

    Attributes:
        sizes: Bytes of the arrays that are read, those of all cores together.
        read: Bytes/s of reading an array of each size again and again, on all cores.
        copy: Bytes/s of copying one array to another, read plus written, where both together have each size.
        huge_pages: Bytes/s of reading the largest size from huge pages; 0 if the system has none.
        latency: Seconds of a load from the largest array that waits for the load before it, on one core.
        cached: Bytes that the caches of all cores hold.
        undisturbed: False if something else used the cores in all windows of a size. The true rates are then higher.
    """

    sizes: tuple[int, ...]
    read: tuple[float, ...]
    copy: tuple[float, ...]
    huge_pages: float
    latency: float
    cached: int
    undisturbed: bool = True


@dataclass(frozen=True)
class Caches:
    """What the caches of a machine hold, which takes a third of the time of all its `MemoryRates`.

    Attributes:
        cached: Bytes that the caches of all cores hold.
        undisturbed: False if something else used the cores in all windows of a size.
    """

    cached: int
    undisturbed: bool = True


def memory_rates(target: Cpu, refresh: bool = False) -> MemoryRates:
    """The rates of this machine's memory and caches.

    The measurement takes some three seconds and waits for the machine-wide lock. It is kept per machine, as the peak
    is. One that was disturbed takes the place of no other than such a one.

    Args:
        target: This machine, with the number of cores to use.
        refresh: Measure even if the rates are known.

    Raises:
        MeasureError: The target is another machine, or the measuring process fails.
    """
    if target.runner or target.triple:
        raise MeasureError(f"the memory of {target.name} cannot be measured here: it is another machine")
    return _kept(target).get(lambda: _measure_in_child(target), refresh)


def measure_caches_within(target: Machine, seconds: float) -> None:
    """Measures what this machine's caches hold, unless it is known, if that can be done within some seconds.

    Args:
        target: The machine, with the number of cores to use. Another machine than this one is not measured.
        seconds: The most wall seconds that it may take; infinity is no bound.
    """
    from ..cpu import Cpu

    if not isinstance(target, Cpu) or target.runner or target.triple or not target.l3:
        return
    if known_cached(target) is None:
        with contextlib.suppress(MeasureError):  # a tuning does with what is reported
            _kept_caches(target).within(lambda _: _measure_caches_in_child(target), _COST, seconds)


def cached_bytes(target: Cpu) -> int:
    """The bytes that the caches of a machine hold: as measured, if it is this one and was measured, or as reported.

    What a tuning records does not depend on it: spaces are made for what is reported.

    Args:
        target: The machine, with the number of cores to use.
    """
    known = None if target.runner or target.triple else known_cached(target)
    return target.caches if known is None else min(known, target.caches)


def known_cached(target: Cpu) -> int | None:
    """The bytes that this machine's caches hold, if they were measured undisturbed; it measures nothing.

    Args:
        target: This machine, with the number of cores to use.
    """
    for known in (_kept(target).known(), _kept_caches(target).known()):
        if known is not None and known.undisturbed:
            return known.cached
    return None


def last_cache(sizes: Sequence[int], read: Sequence[float], second: int, third: int) -> int:
    """The bytes that the caches hold, by the rates at which arrays are read.

    Args:
        sizes: Bytes of the arrays, from small to large. The largest lie in memory.
        read: Bytes/s for each of them.
        second: Bytes of all second-level caches, which are those of the cores.
        third: Bytes of all third-level caches as they are reported; 0 if there are none.

    Returns:
        At least `second`, and at most what both levels are reported to hold. That is also the answer if the rates do
        not tell: if the largest array may lie in the caches, or the third level is smaller than the second.

    Example:
        >>> last_cache([1, 2, 4, 8, 16, 32], [9.0, 9.0, 8.0, 8.0, 2.0, 2.0], second=2, third=14)
        11
    """
    whole = second + third
    if third < second or sizes[-1] < _SURELY * whole:
        return whole
    inside_third = min(2 * second, math.sqrt(second * whole))  # bytes of an array that lies in the third level
    near = next(rate for size, rate in zip(sizes, read, strict=True) if size >= inside_third)
    far = statistics.median(read[-_FARTHEST:])
    if near < _DISTINCT * far:
        return second
    middle = math.sqrt(near * far)
    end = max(index for index, rate in enumerate(read) if rate >= middle)
    if end == len(read) - 1:  # one fast window in memory
        return whole
    steps = math.log(read[end] / middle) / math.log(read[end] / read[end + 1])
    inside: float = sizes[end] * (sizes[end + 1] / sizes[end]) ** steps
    return max(second, min(round(inside), whole))


def _identity(target: Cpu) -> list[Any]:
    return [_METHOD, target.cpu, target.cores, target.l1, target.l2, target.l3, target.l3s]


def _kept(target: Cpu) -> KeptMeasurement[MemoryRates]:
    path = kept_file("memory", _identity(target))
    return KeptMeasurement(path, asdict, _read, lambda known: known.undisturbed)


def _kept_caches(target: Cpu) -> KeptMeasurement[Caches]:
    path = kept_file("caches", _identity(target))
    return KeptMeasurement(path, asdict, _read_caches, lambda known: known.undisturbed)


def _read(document: Any) -> MemoryRates:
    lists = {name: tuple(document[name]) for name in ("sizes", "read", "copy")}
    rates = MemoryRates(**{**document, **lists})
    if rates.cached < 0 or not len(rates.sizes) == len(rates.read) == len(rates.copy):
        raise ValueError("no rates of a memory")
    return rates


def _read_caches(document: Any) -> Caches:
    caches = Caches(int(document["cached"]), document["undisturbed"] is True)
    if caches.cached < 0:
        raise ValueError("no size of caches")
    return caches


def _measure_in_child(target: Cpu) -> MemoryRates:
    serve = "stormdrop.machine.limits.memory_loops:serve_memory_rates"
    return measured_in_child(serve, _shape(target), MemoryRates, "measuring this machine's memory")


def _measure_caches_in_child(target: Cpu) -> Caches:
    serve = "stormdrop.machine.limits.memory_loops:serve_caches"
    return measured_in_child(serve, _shape(target), Caches, "measuring this machine's caches")


def _shape(target: Cpu) -> dict[str, Any]:
    return {**shape_of(target), "l2s": target.cores * target.l2, "l3s": target.l3s * target.l3}
