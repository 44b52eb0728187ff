"""The kernels of a model that are tuned now, a slice at a time, in the order in which that promises most.

See `sharing`. Nothing here compiles or measures: `KernelTuning` does.
"""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from typing_extensions import Self

from ..errors import MeasureError
from ..ir.workload import Workload
from ..machine.cpu import Target
from ..machine.peak import peak
from ..measure.pool import WorkerPool
from ..search import TwoPhase
from ..tuning import race as finals
from ..tuning.result import Progress, TuneResult
from ..tuning.tune import KernelTuning, begin
from .allocation import Kernel, gains
from .budget import Budget
from .importer.graph import Graph

_FIRST_TRIALS = 64  # of a task in the first round, at most
_SLICE = 0.02  # of a time budget, that a task has at a time after the first round
_LEAST_SLICE = 1.0  # seconds
_SLICE_TRIALS = 16
_LARGE = 64 << 20  # bytes: a task that moves more has all of its part at once, and lets its arrays go
_RACE_START = 0.7  # seconds, about, until a race begins: its kernels are built in one worker
_SHORTEST_RACE = 0.1
_FAIR_RACE = 0.3  # where there are many, the lightest go without so that the others have this much
_WORTH = 5e-4  # of the model's latency: a tuning that is expected to save less in all the time that is left ends
_FEWER = 4.0  # times fewer operations than the plain sum has, at most
_FASTER = 2.0  # times the measured bandwidth, at most
BYTE = 10
"""Operations that a byte weighs on today's machines."""


class Slices:
    """Tunes tasks: fills `results` and `reasons`, takes from `workloads` what cannot be measured. Use as a context."""

    def __init__(
        self,
        graph: Graph,
        workloads: dict[int, Workload],
        results: dict[int, TuneResult],
        reasons: dict[int, str],
        budget: Budget,
        how: Mapping[str, Any],
        report: Callable[[Progress], None] | None,
        before: int = 0,
    ) -> None:
        """`before` trials of the budget were spent by an earlier run that goes on."""
        self._graph, self._workloads, self._results, self._reasons = graph, workloads, results, reasons
        self._budget, self._how, self._report = budget, how, report
        self._slice = max(_LEAST_SLICE, _SLICE * (budget.seconds or 0.0))
        self._limits = _limits(how["target"])  # before the workers start: it may have to be measured
        self._open = ExitStack()
        self._pool = WorkerPool(how["target"].cores)
        self._open.callback(self._pool.close)
        self._begun: dict[int, KernelTuning] = {}
        self._contexts: dict[int, ExitStack] = {}
        self._kernels: dict[int, Kernel] = {}
        self._tuned: set[int] = set()  # those of the results that were tuned here
        self._lost = before  # trials that no result here has
        self._exploration: int | None = None  # trials that a search explores with, all kernels together
        self._exploiting = False
        self._granted: Mapping[int, int | None] = {}
        self._message = ""
        self.curve: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        for index in list(self._begun):
            self._close(index)
        self._open.close()

    def tune(self, pending: Sequence[int], sure: Mapping[int, tuple[int | None, float | None]]) -> bool:
        """Tunes them all; whether Ctrl-C came between."""
        self._granted = {index: trials for index, (trials, _) in sure.items()}
        interrupted = False
        try:
            self._first_round(pending, sure)
            self._by_gain()
            self._exploit()
            self._message = "finalists"
            for index in sorted(self._begun, key=lambda each: -self._kernels[each].calls * self._kernels[each].best):
                interrupted |= self._finish(index, interrupted)
        except KeyboardInterrupt:
            interrupted = True
            late = [index for index in pending if index not in self._begun and index not in self._results]
            for index in late:
                self._reasons.setdefault(index, "interrupted before its turn: default schedule")
        for index in list(self._begun):
            self._finish(index, interrupted=True)
        return interrupted

    def _first_round(self, pending: Sequence[int], sure: Mapping[int, tuple[int | None, float | None]]) -> None:
        if self._budget.trials is None:
            # The large ones last, the largest of all: a batch may take most of the time, and leave the others without.
            pending = sorted(pending, key=lambda index: self._is_large(index) * self._workloads[index].bytes)
        for count, index in enumerate(pending):
            if self._trials_left <= 0 or self._budget.left <= 0:
                what = "trials" if self._trials_left <= 0 else "time"
                self._reasons[index] = f"no {what} left: default schedule"
                continue
            self._message = f"{count + 1}/{len(pending)} {self._graph.tasks[index].name}"
            task = self._begin(index)
            trials, seconds = sure[index]
            if self._exploration is not None:
                trials = max(1, self._exploration // len(sure))  # a descent needs a beginning
            most = math.inf if trials is None else min(trials, _FIRST_TRIALS)
            self._search(index, math.inf if seconds is None else seconds - task.effort, most - task.trials)
            if index in self._begun and self._exploration is None and self._is_large(index):
                self._end(index)

    def _is_large(self, index: int) -> bool:
        return self._workloads[index].bytes > _LARGE

    def _by_gain(self) -> None:
        silent: set[int] = set()  # what has nothing to ask before it may exploit
        while (open_ := [index for index in self._begun if index not in silent]) and self._exploring > 0:
            if self._budget.left <= 0:
                return
            ended = [kernel for index, kernel in self._kernels.items() if index not in self._begun]
            expected = gains([self._kernels[index] for index in open_], ended)
            gain, index = max(zip(expected, open_, strict=True))
            if not self._counted and gain * self._budget.left / self._slice < _WORTH * (self._latency or 0.0):
                return
            if gain == 0.0:
                index = min(open_, key=lambda each: self._begun[each].trials)
            self._message = self._graph.tasks[index].name
            trials = min(_SLICE_TRIALS, self._exploring) if self._counted else math.inf
            before = self._begun[index].trials
            # Trials are what is limited: a slice of time might be over before it has measured anything new.
            self._search(index, math.inf if self._counted else self._slice, trials)
            if self._counted and index in self._begun and self._begun[index].trials == before:
                silent.add(index)

    def _exploit(self) -> None:
        self._exploiting = True
        for index in list(self._begun):
            searcher = self._begun[index].searcher
            if isinstance(searcher, TwoPhase):
                searcher.exploit()
                self._message = f"exploiting {self._graph.tasks[index].name}"
                self._search(index, math.inf, math.inf)

    def _search(self, index: int, seconds: float, trials: float) -> None:
        """A slice of one task, within what is left of the budget; a task that has ended is finished."""
        task, kernel, budget = self._begun[index], self._kernels[index], self._budget
        trials = max(0, min(trials, self._trials_left))
        if isinstance(task.searcher, TwoPhase) and not self._exploiting:
            task.searcher.allow(int(trials))
        self._tell()
        try:
            task.search(max(0.0, min(seconds, budget.left)), trials, budget.left_to_measure)
        except MeasureError as error:
            self._lose(index, error)
            return
        effort = task.trials / _SLICE_TRIALS if self._counted else task.effort / self._slice
        kernel.told(effort, math.inf if task.seconds is None else task.seconds)
        self._tell()
        if task.ended:
            self._end(index)

    def _begin(self, index: int) -> KernelTuning:
        ends = [each.fastest for each in self._begun.values()]
        ends += [(each.best.sketch, each.best.config) for each in self._results.values() if each.best is not None]
        workload, given = self._workloads[index], [end for end in ends if end is not None]
        task = begin(workload, pool=self._pool, ends=given, on_progress=lambda _: self._tell(), **self._how)
        self._begun[index], self._contexts[index] = task, ExitStack()
        self._contexts[index].enter_context(task)
        if isinstance(task.searcher, TwoPhase):
            self._exploration = task.searcher.exploration
        kind = tuple(sketch.name for sketch, _ in task.sketches)
        work = workload.flops + BYTE * workload.bytes
        least = _least(
            workload, self._how["target"], self._limits, any(sketch.max_error for sketch, _ in task.sketches)
        )
        self._kernels[index] = Kernel(self._graph.tasks[index].weight, work, kind, least)
        return task

    def _end(self, index: int) -> None:
        """Finishes a task in the course of the tuning."""
        if self._finish(index, interrupted=False):
            raise KeyboardInterrupt

    def _finish(self, index: int, interrupted: bool) -> bool:
        """Ends a task; whether Ctrl-C came between."""
        task = self._begun[index]
        granted = self._granted.get(index) or 0 if self._budget.left > 0 else 0
        try:
            result = task.finish(interrupted=interrupted, race_seconds=self._race_seconds, granted=granted)
        except MeasureError as error:
            self._lose(index, error)
            return False
        self._close(index)
        self._results[index] = result
        self._tuned.add(index)
        return result.interrupted

    def _lose(self, index: int, error: MeasureError) -> None:
        """Keeps what is known of a task that cannot be measured any more."""
        result = self._begun[index].abandon()
        self._close(index)
        if result.best is None:
            self._lost += result.trials
            self._reasons[index] = f"cannot be measured: {error}"
            del self._workloads[index]
        else:
            self._results[index] = result
            self._tuned.add(index)
            self._reasons[index] = f"ended early: {error}"

    def _close(self, index: int) -> None:
        del self._begun[index]
        self._contexts.pop(index).close()

    @property
    def _race_seconds(self) -> float:
        """For the last race of a task; 0 where no time is left for one. Those that finish first come first."""
        if self._budget.seconds is None:
            return finals.RACE_SECONDS
        return race_seconds(self._budget.left_to_measure, len(self._begun))

    @property
    def _spent(self) -> int:
        """Distinct candidates of the budget, those of an earlier run that goes on included."""
        done = sum(self._results[index].trials for index in self._tuned)
        return self._lost + done + sum(task.trials for task in self._begun.values())

    @property
    def _counted(self) -> bool:
        """Whether effort is trials: where these are what is limited."""
        return self._budget.trials is not None or self._exploration is not None

    @property
    def _trials_left(self) -> float:
        return math.inf if self._budget.trials is None else self._budget.trials - self._spent

    @property
    def _exploring(self) -> float:
        """Trials left before the exploitation."""
        explored = math.inf if self._exploration is None else self._exploration - self._spent
        return min(self._trials_left, explored)

    @property
    def _latency(self) -> float | None:
        """Seconds that the measured kernels take in an execution of the model; None in the first round."""
        total = 0.0
        for index in self._workloads:
            result, kernel = self._results.get(index), self._kernels.get(index)
            if result is not None and result.best is not None:
                total += self._graph.tasks[index].weight * result.best.seconds
            elif kernel is not None and kernel.seconds:
                total += kernel.calls * kernel.best if kernel.best < math.inf else 0.0
            elif index not in self._reasons:
                return None
        return total

    def _tell(self) -> None:
        """Progress of a slice told as progress of the model."""
        elapsed, latency = clock.perf_counter() - self._budget.begin, self._latency
        if latency is not None and (not self.curve or self.curve[-1][1] != latency):
            self.curve.append((elapsed, latency))
        if self._report is not None:
            ended = [self._results[index] for index in self._tuned]
            of: list[TuneResult | KernelTuning] = [*ended, *self._begun.values()]
            trials, failed = sum(each.trials for each in of), sum(each.failed for each in of)
            self._report(Progress(trials, failed, latency, elapsed, self._budget.seconds, self._message, "model about"))


def race_seconds(left: float, tasks: int) -> float:
    """What a task may race for, where so many share the seconds that are left: as many of them as that is enough for.

    0 where it is too short.
    """
    racing = max(1, min(tasks, int(left / (_RACE_START + _FAIR_RACE))))
    own = left / racing - _RACE_START
    return 0.0 if own < _SHORTEST_RACE else min(own, finals.RACE_SECONDS)


def _limits(target: Target) -> tuple[float, float]:
    """FLOP/s and bytes/s at most; infinite where they cannot be measured."""
    try:
        limits = peak(target)
    except MeasureError:
        return math.inf, math.inf
    return limits.flops, limits.bandwidth


def _least(workload: Workload, target: Target, limits: tuple[float, float], transformed: bool) -> float:
    """Seconds that an execution takes at least, at the machine's limits; what fits the caches needs no memory."""
    flops, bandwidth = limits
    # Memory was measured by a copy, whose lines are read before they are written, and in a bad moment perhaps.
    moved = workload.bytes / bandwidth / _FASTER if workload.bytes > target.caches else 0.0
    return max(workload.flops / flops / (_FEWER if transformed else 1.0), moved)
