"""Foreign load: did something else use the machine while a kernel ran?

The worker reads counters before and after a run. The parent process judges their differences with a `LoadWatch`. There
are three signs, each of which is used if the platform has it:

    run delay          seconds that our threads were ready but waited for a core (Linux schedstat)
    involuntary        context switches that we did not ask for; used if there is no schedstat
    foreign, stolen    CPU seconds that other processes, or the hypervisor, took from the cores that we may use

The first two show a competitor within a few milliseconds if a kernel keeps all cores busy. The last two are counted in
ticks of 10 ms, so they are summed over the latest runs. They show a competitor beside a kernel of one thread.

Linux's pressure figures are of no use here. TVM's threads yield while they spin, and Linux counts that as waiting: 50%
of the time on an idle machine. The run delay tells the two apart. It is 0.2% of a run on an idle machine of two cores
(1% in one run of ten, while the other workers are paused, whose spinning made it 2 to 13%). Beside one busy loop it is
90% and more.
"""

from __future__ import annotations

import os
import resource
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from .. import nvml
from ..contract import CUDA


@dataclass(frozen=True)
class LoadThresholds:
    """When a run counts as disturbed.

    Attributes:
        delay_fraction: The run delay that is tolerated, as a fraction of the run's wall time.
        delay_floor: Seconds of run delay that are tolerated in any run. Kernel threads cause some 0.1 ms on an idle
            machine.
        switches: Involuntary context switches that are tolerated in any run.
        switches_per_second: Further switches that are tolerated per second. A competitor causes some 250 per second
            and core.
        window: Seconds of runs over which ticks are summed. Over 0.2 s they are wrong by 0.17 cores.
        foreign_cores: Cores' worth of foreign work that is tolerated over the window.
        stolen_fraction: The share of all cores' time that the hypervisor may take over the window.
    """

    delay_fraction: float = 0.1
    delay_floor: float = 0.5e-3
    switches: int = 2
    switches_per_second: float = 50.0
    window: float = 1.0
    foreign_cores: float = 0.25
    stolen_fraction: float = 0.02


@dataclass(frozen=True)
class Counters:
    """Readings at one moment, or the differences of two readings. None stands for what this platform does not report.

    Attributes:
        wall: Seconds of wall time.
        own_cpu: CPU seconds of this process.
        run_delay: Seconds that the threads of this process waited for a core, summed.
        involuntary: Involuntary context switches of this process.
        busy: CPU seconds that anything used on the cores that this process may use.
        stolen: CPU seconds that the hypervisor took from these cores.
        slowed: Whether a GPU's clocks were held back at the end of the run.
        clock: The GPU's clock at the end of the run in MHz; 0 if it is not known.
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
            _difference(self.own_cpu, earlier.own_cpu),
            _difference(self.run_delay, earlier.run_delay),
            None if self.involuntary is None or earlier.involuntary is None else self.involuntary - earlier.involuntary,
            _difference(self.busy, earlier.busy),
            _difference(self.stolen, earlier.stolen),
        )


def read_counters() -> Counters:
    """The counters of this process and of the cores that it may use. Reading takes some 0.2 ms."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    allowed = _allowed_cores()
    times = [core_times for core, core_times in enumerate(psutil.cpu_times(percpu=True)) if core in allowed]
    stolen = sum(getattr(core_times, "steal", 0.0) for core_times in times)
    # Guest time is left out, because Linux counts it as user time, too.
    kinds = ("user", "system", "nice", "irq", "softirq")
    busy = sum(getattr(core_times, kind, 0.0) for core_times in times for kind in kinds)
    return Counters(
        wall=time.perf_counter(),
        own_cpu=usage.ru_utime + usage.ru_stime,
        run_delay=_run_delay(),
        involuntary=usage.ru_nivcsw,
        busy=busy,
        stolen=stolen if times and hasattr(times[0], "steal") else None,
    )


def spent_since(before: Counters, device: str = "", gpu: int | None = None) -> Counters:
    """What has happened since the counters were read, for `LoadWatch.suspect`.

    Args:
        before: The readings of `read_counters` before a run.
        device: What has executed the run, as `Machine.device` and `CompiledModel.device` name it. Of an NVIDIA GPU it
            is also read whether heat or a fault holds the clocks back.
        gpu: The number of that GPU in this process, as `CompiledModel.gpu` says it; None for the first one.
    """
    spent = read_counters() - before
    gpus = nvml.visible_gpus()[gpu or 0 :] if device == CUDA else ()  # NVML may see fewer than CUDA does
    return replace(spent, slowed=nvml.is_slowed(gpus[0].number)) if gpus else spent


def disturbed(run: Counters, limits: LoadThresholds) -> bool:
    """Whether one run alone shows a competitor, or a GPU whose clocks were held back.

    Args:
        run: The differences of the readings after and before the run.
        limits: What is tolerated.
    """
    if run.slowed:
        return True
    if run.run_delay is not None:
        return run.run_delay > max(limits.delay_floor, limits.delay_fraction * run.wall)
    return run.involuntary is not None and run.involuntary > limits.switches + limits.switches_per_second * run.wall


def is_quiet(seconds: float = 0.1) -> bool:
    """Whether nothing uses the cores now, while this process waits for some moments.

    Args:
        seconds: How long to watch. The ticks that are counted have 10 ms.
    """
    before = read_counters()
    time.sleep(seconds)
    run = read_counters() - before
    taken = (run.busy or 0.0) - (run.own_cpu or 0.0) + (run.stolen or 0.0)
    return taken <= LoadThresholds().foreign_cores * run.wall


class LoadWatch:
    """Judges runs one after the other: each run by itself, and the ticks of the latest runs together."""

    def __init__(self, cores: int, limits: LoadThresholds | None = None) -> None:
        """Begins without any runs.

        Args:
            cores: The number of cores that the kernels use.
            limits: What is tolerated; by default the values of `LoadThresholds`.
        """
        self.cores = cores
        self.limits = LoadThresholds() if limits is None else limits
        self._allowed = len(_allowed_cores())
        self._recent: deque[Counters] = deque()

    def suspect(self, run: Counters) -> bool:
        """Whether something else used the machine during a run.

        Args:
            run: The differences of the readings after and before the run. Runs are given in their order.
        """
        self._recent.append(run)
        while sum(recent.wall for recent in self._recent) - self._recent[0].wall >= self.limits.window:
            self._recent.popleft()
        return disturbed(run, self.limits) or self._window_disturbed()

    def _window_disturbed(self) -> bool:
        """Whether the ticks of the latest runs show a competitor."""
        wall = sum(run.wall for run in self._recent)
        if wall < self.limits.window:
            return False
        stolen = sum(run.stolen or 0.0 for run in self._recent)
        if stolen > self.limits.stolen_fraction * wall * self._allowed:
            return True
        foreign = 0.0
        for run in self._recent:
            if run.busy is None or run.own_cpu is None:
                return False
            foreign += run.busy - run.own_cpu
        # Foreign work competes with a kernel only if it exceeds the cores that the kernel leaves idle.
        spare = self._allowed - self.cores
        return foreign > (spare + self.limits.foreign_cores) * wall


def _difference(later: float | None, earlier: float | None) -> float | None:
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
        return None  # another platform, or a Linux kernel that was built without schedstat
    return total / 1e9
