"""Foreign load: did something else use the machine while a kernel ran?

Counters are read before and after a run (in the worker); `LoadWatch` judges the differences (in the parent). Three
signs, each where the platform has it:

    run delay          nanoseconds that our threads were ready but waited for a core (Linux schedstat)
    involuntary        context switches that we did not ask for, where there is no schedstat
    foreign, stolen    CPU seconds that other processes, or the hypervisor, took from the cores we may use

The first two see a competitor within a few milliseconds when a kernel keeps all cores busy. The last two come in
ticks of 10 ms: they are summed over the latest runs, and see a competitor that runs beside a kernel of one thread.

Linux's pressure figures are of no use here: TVM's threads yield while they spin, which counts as waiting (50% of the
time on an idle machine). Run delay tells: 0.2% of a run on an idle machine of two cores (1% in one run of ten, while
other workers are paused: their spinning made it 2 to 13%), 90% and more beside one busy loop.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import psutil

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]


@dataclass(frozen=True)
class LoadThresholds:
    """When a run counts as disturbed. Fractions are of the run's wall time."""

    delay_fraction: float = 0.1
    delay_floor: float = 0.5e-3  # seconds: kernel threads take up to some 0.1 ms on an idle machine
    switches: int = 2  # involuntary ones that are forgiven in any run
    switches_per_second: float = 50.0  # a competitor causes some 250 per second and core
    window: float = 1.0  # seconds of runs over which ticks are summed: over 0.2 s they are off by 0.17 cores
    foreign_cores: float = 0.25  # cores' worth of foreign work over the window
    stolen_fraction: float = 0.02  # of all cores, over the window


@dataclass(frozen=True)
class Counters:
    """Readings at one moment, or differences of two. Seconds, except `involuntary`; None: not known here.

    `slowed`: a GPU's clocks were held back at the end; `clock`: what they were then, in MHz, 0 where none is known.
    """

    wall: float
    own_cpu: float | None = None
    run_delay: float | None = None
    involuntary: int | None = None
    busy: float | None = None
    stolen: float | None = None
    slowed: bool = False
    clock: int = 0

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(
            self.wall - earlier.wall,
            _minus(self.own_cpu, earlier.own_cpu),
            _minus(self.run_delay, earlier.run_delay),
            None if self.involuntary is None or earlier.involuntary is None else self.involuntary - earlier.involuntary,
            _minus(self.busy, earlier.busy),
            _minus(self.stolen, earlier.stolen),
        )


def read_counters() -> Counters:
    """The counters of this process and of the cores that it may use. Takes some 0.2 ms."""
    usage = None if resource is None else resource.getrusage(resource.RUSAGE_SELF)
    allowed = _allowed_cores()
    times = [each for core, each in enumerate(psutil.cpu_times(percpu=True)) if core in allowed]
    stolen = sum(getattr(each, "steal", 0.0) for each in times)
    # Guest time is contained in user time on Linux, so it is not added.
    kinds = ("user", "system", "nice", "irq", "softirq")
    busy = sum(getattr(each, kind, 0.0) for each in times for kind in kinds)
    return Counters(
        wall=time.perf_counter(),
        own_cpu=None if usage is None else usage.ru_utime + usage.ru_stime,
        run_delay=_run_delay(),
        involuntary=None if usage is None else usage.ru_nivcsw,
        busy=busy,
        stolen=stolen if times and hasattr(times[0], "steal") else None,
    )


def disturbed(run: Counters, limits: LoadThresholds) -> bool:
    """Whether one run alone shows a competitor, or a GPU that was too hot."""
    if run.slowed:
        return True
    if run.run_delay is not None:
        return run.run_delay > max(limits.delay_floor, limits.delay_fraction * run.wall)
    return run.involuntary is not None and run.involuntary > limits.switches + limits.switches_per_second * run.wall


class LoadWatch:
    """Judges runs one after the other: each by itself, and the tick counters over the latest `window` seconds."""

    def __init__(self, cores: int, limits: LoadThresholds | None = None) -> None:
        self.cores = cores
        self.limits = LoadThresholds() if limits is None else limits
        self._allowed = len(_allowed_cores())
        self._recent: deque[Counters] = deque()

    def suspect(self, run: Counters) -> bool:
        """Whether something else used the machine during this run (differences of two readings)."""
        self._recent.append(run)
        while sum(each.wall for each in self._recent) - self._recent[0].wall >= self.limits.window:
            self._recent.popleft()
        return disturbed(run, self.limits) or self._crowded()

    def _crowded(self) -> bool:
        wall = sum(each.wall for each in self._recent)
        if wall < self.limits.window:
            return False
        stolen = sum(each.stolen or 0.0 for each in self._recent)
        if stolen > self.limits.stolen_fraction * wall * self._allowed:
            return True
        foreign = 0.0
        for each in self._recent:
            if each.busy is None or each.own_cpu is None:
                return False
            foreign += each.busy - each.own_cpu
        # Cores that we leave alone may be busy: only what exceeds them competes with us.
        spare = self._allowed - self.cores
        return foreign > (spare + self.limits.foreign_cores) * wall


def _minus(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else later - earlier


def _allowed_cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _run_delay() -> float | None:
    """Seconds that the threads of this process waited for a core, summed; None without schedstat."""
    total = 0
    try:
        for task in Path("/proc/self/task").iterdir():
            total += int((task / "schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None  # another platform, or a kernel built without it
    return total / 1e9
