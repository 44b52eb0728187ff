"""The task scheduler: shares the budget of a model's tuning out to its tasks, slice by slice.

Each task has a guaranteed part of the budget. A record answers a task if its session had at least that part. The
tasks that are not answered use their part in a first round (at most 64 trials, as in Ansor). What is left goes, a
slice at a time, to the task where it is expected to shorten the model most (`gain`). A search that works in rounds of
its own (`turn`), as Ansor as printed does, and AutoTVM with transfer, has such a round in place of the part and of
the slice. A task ends when its search has converged. The tuning ends when the budget is spent. If the budget is a
time, it also ends when no task is expected to gain more.

`dpansor` explores in this way with its N trials, those of all tasks together, and then exploits each task until it
converges (DPAnsor paper, section 2.3). If there are fewer trials than tasks, each task has one, because a descent
needs a point to begin at.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time as clock
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import Self

from ... import events
from ...errors import LockTimeout, MeasureError, UnsupportedFunction
from ...ir.workload import Workload
from ...machine.cpu import Target
from ...machine.limits.memory_rates import cached_bytes
from ...machine.limits.passing import passing_between
from ...machine.limits.peak import known_peak
from ...measure.contract import Site
from ...measure.sites import site_of_model
from ...records import Store
from ...search import GeneratorSearch, Network, TwoPhase
from ...search.common_model import CommonCostModel
from ...sketches import knowledge
from ...sketches.contract import AnySketch
from ...tuning.kernel import KernelTask, PartOf
from ...tuning.options import TuneOptions
from ...tuning.result import KernelProgress, Progress, TuneResult
from ...tuning.session import Session
from ..building.tuned_task import TunedTask, TunedTasks
from ..graph.graph import Graph
from ..graph.tasks import Task
from .budget import Budget, shares
from .gain import TaskProgress, gains

_logger = logging.getLogger(__name__)

_FIRST_TRIALS = 64  # of a task in the first round, at most
_SLICE = 0.02  # of a time budget: what a task has at a time after the first round
_LEAST_SLICE = 1.0  # seconds
_SLICE_TRIALS = 16
_LARGE = 64 << 20  # bytes: a task that moves more has all of its part at once, and releases its arrays
_WORTH = 5e-4  # of the model's latency: the tuning ends if all the time that is left is expected to save less
_FASTER = 2.0  # the true bandwidth is at most this many times the measured one
_BYTE = 10  # one byte that is moved counts as this many operations


def tune_tasks(
    graph: Graph,
    target: Target,
    options: TuneOptions,
    budget: Budget,
    store: Store,
    on_progress: Callable[[Progress], None] | None = None,
    site: Site | None = None,
) -> TunedTasks:
    """Tunes all tasks of a graph as they will run: with weights from where the whole model leaves them.

    Args:
        graph: the model.
        target: the machine to tune for; if it has a runner, with the cores that are there.
        options: how the tasks are tuned. Their bounds are those of the whole model.
        budget: what the tuning may take.
        store: the records.
        on_progress: is called with the progress of the whole model.
        site: where kernels are measured; by default where the target says.

    Raises:
        InputError: a setting is bad.
    """
    begin = clock.perf_counter()
    states = _states(graph, target, options, runner_asked=True)
    ordered = sorted((state for state in states if state.kernel is not None), key=lambda state: -state.work)
    parts = shares([state.work for state in ordered])
    for position, state in enumerate(ordered):
        state.guaranteed = budget.guaranteed(position, parts)
        if not options.fresh:
            state.result = state.require_kernel.answered(store, *state.guaranteed)
    seconds = clock.perf_counter() - begin
    pending = [state for state in ordered if state.result is None]
    for state in pending:
        part_of = PartOf(graph.name, state.task.weight, len(pending))
        state.kernel = dataclasses.replace(state.require_kernel, part_of=part_of)
    interrupted, curve = False, []
    if pending and budget.left > 0:
        with _Scheduler(graph, states, target, options, budget, store, on_progress, site) as scheduler:
            interrupted = scheduler.tune(pending)
            curve = scheduler.curve
    for state in pending:
        state.conclude()
    return TunedTasks([state.tuned() for state in states], interrupted, curve, seconds)


def recorded_tasks(graph: Graph, target: Target, options: TuneOptions, store: Store | None) -> TunedTasks:
    """The tasks of a graph with what the records say about them, without measuring anything.

    Args:
        graph: the model.
        target: the machine that the records are of.
        options: how the tasks would be tuned.
        store: the records. Any finished session answers, however short it was. With None all tasks have their default
            schedules.
    """
    states = _states(graph, target, options)
    for state in states:
        if state.kernel is not None:
            state.result = None if store is None else state.kernel.answered(store, 0, None)
            state.reason = "default schedule" if state.result is None else None
    return TunedTasks([state.tuned() for state in states], False, [])


@dataclass(eq=False)
class _State:
    """A task while the scheduler is at work."""

    task: Task
    kernel: KernelTask | None = None
    result: TuneResult | None = None
    reason: str | None = None
    guaranteed: tuple[int | None, float | None] = (None, None)
    session: Session | None = None
    progress: TaskProgress | None = None
    tuned_here: bool = False

    @property
    def require_kernel(self) -> KernelTask:
        assert self.kernel is not None
        return self.kernel

    @property
    def require_session(self) -> Session:
        assert self.session is not None
        return self.session

    @property
    def require_progress(self) -> TaskProgress:
        assert self.progress is not None
        return self.progress

    @property
    def work(self) -> float:
        """Operations and bytes of all its calls."""
        workload = self.require_kernel.workload
        return self.task.weight * (workload.flops + _BYTE * workload.bytes)

    @property
    def is_large(self) -> bool:
        return self.require_kernel.workload.bytes > _LARGE

    @property
    def latency(self) -> float:
        """Seconds that its calls take now; infinite as long as none of its schedules works."""
        if self.result is not None and self.result.best is not None:
            return self.task.weight * self.result.best.seconds
        return math.inf if self.progress is None else self.progress.calls * self.progress.best

    @property
    def fastest(self) -> tuple[str, Any] | None:
        """The sketch and the configuration of its fastest schedule so far."""
        if self.session is not None:
            return self.session.fastest
        best = None if self.result is None else self.result.best
        return None if best is None else (best.sketch, best.config)

    def so_far(self, now: bool) -> KernelProgress:
        """How far it is, for people; `now` says whether it is searched at this moment."""
        best = self.latency / self.task.weight if self.latency < math.inf else None
        counted = self.result if self.result is not None else self.session
        trials = 0 if counted is None else counted.trials
        return KernelProgress(self.task.name, self.task.weight, self._standing(now), trials, best)

    def _standing(self, now: bool) -> str:
        if self.kernel is None or (self.reason is not None and self.result is None):
            return "plain"
        if self.result is not None:
            return "done" if self.tuned_here else "recorded"
        if self.session is None:
            return "waiting"
        return "tuning" if now else "paused"

    def conclude(self) -> None:
        """Says why it has no tuned schedule, if it has none."""
        if self.result is None and self.kernel is not None:
            self.reason = self.reason or "no time left: default schedule"
        elif self.result is not None and self.result.best is None and self.result.trials:
            self.reason, self.kernel = "no candidate worked: plain schedule", None

    def tuned(self) -> TunedTask:
        return TunedTask(self.task, self.kernel, self.result, self.reason)


def _states(graph: Graph, target: Target, options: TuneOptions, runner_asked: bool = False) -> list[_State]:
    """The tasks of a graph, each with its kernel, or with the reason why it has none."""
    passing = None if target.runner else passing_between(target, graph.constant_bytes)
    own = dataclasses.replace(options, trials=None, seconds=None)
    states = []
    for task in graph.tasks:
        try:
            workload = Workload.create(task.name, task.function, task.constants)
            kernel = KernelTask.create(workload, target, own, passing=passing, runner_asked=runner_asked)
        except UnsupportedFunction as error:
            states.append(_State(task, reason=str(error).removeprefix(f"{task.name}: ")))
        else:
            states.append(_State(task, kernel))
    return states


class _Scheduler:
    """Tunes the tasks that the records do not answer. Use it as a context."""

    def __init__(
        self,
        graph: Graph,
        states: Sequence[_State],
        target: Target,
        options: TuneOptions,
        budget: Budget,
        store: Store,
        on_progress: Callable[[Progress], None] | None,
        site: Site | None,
    ) -> None:
        self._graph, self._states, self._target = graph, states, target
        self._budget, self._store, self._on_progress = budget, store, on_progress
        self._slice = max(_LEAST_SLICE, _SLICE * (budget.seconds or 0.0))
        self._limits = _limits(target)
        self._open = ExitStack()
        self._site = self._open.enter_context(site_of_model(target)) if site is None else site
        # If an earlier run of this very tuning is resumed, what it has finished is part of the budget.
        setting = (options.search, options.seed)
        resumed = [state.result for state in states if options.resume and state.result is not None]
        self._lost = sum(result.trials for result in resumed if (result.search, result.seed) == setting)
        self._kernels = sum(state.kernel is not None for state in states)
        common = (
            CommonCostModel(np.random.default_rng(options.seed)) if knowledge.comparable(options.features) else None
        )
        self._network = Network(self._kernels, budget.trials, common)
        self._exploration: int | None = None  # trials that a search explores with, of all tasks together
        self._exploiting = False
        self._begun: list[_State] = []
        self._message = ""
        self._now: _State | None = None  # the task that is searched
        self.curve: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        for state in self._running:
            self._close(state)
        self._open.close()

    @property
    def _running(self) -> list[_State]:
        """The tasks whose sessions are open, in the order in which they were begun."""
        return [state for state in self._begun if state.session is not None]

    def tune(self, pending: Sequence[_State]) -> bool:
        """Tunes these tasks; whether Ctrl-C ended it."""
        interrupted = False
        try:
            self._first_round(pending)
            self._by_gain()
            self._exploit()
            self._message = "finalists"
            for state in sorted(self._running, key=lambda state: -state.latency):
                interrupted |= self._finish(state, interrupted)
        except KeyboardInterrupt:
            interrupted = True
            for state in pending:
                if state.session is None and state.result is None:
                    state.reason = state.reason or "interrupted before its turn: default schedule"
        for state in self._running:
            self._finish(state, interrupted=True)
        return interrupted

    # The three parts of a tuning

    def _first_round(self, pending: Sequence[_State]) -> None:
        if self._budget.trials is None:
            # Large tasks come last, and the largest of all at the end: a batch of one may take most of the time, and
            # leave nothing to the others.
            pending = sorted(pending, key=lambda state: state.is_large * state.require_kernel.workload.bytes)
        for count, state in enumerate(pending):
            if self._trials_left <= 0 or self._budget.left <= 0:
                what = "trials" if self._trials_left <= 0 else "time"
                state.reason = f"no {what} left: default schedule"
                continue
            self._message = f"{count + 1}/{len(pending)} {state.task.name}"
            session = self._begin(state)
            trials, seconds = state.guaranteed
            if self._exploration is not None:
                trials = max(1, self._exploration // self._kernels)  # a descent needs a point to begin at
            most = math.inf if trials is None else _turn(session) or min(trials, _FIRST_TRIALS)
            self._search(state, math.inf if seconds is None else seconds - session.effort, most - session.trials)
            if state.session is not None and self._exploration is None and state.is_large:
                self._end(state)

    def _by_gain(self) -> None:
        silent: set[_State] = set()  # tasks that have nothing to ask before they may exploit
        while (running := [state for state in self._running if state not in silent]) and self._exploring > 0:
            if self._budget.left <= 0:
                return
            ended = [state.progress for state in self._states if state.progress and state.session is None]
            expected = gains([state.require_progress for state in running], ended)
            best = max(range(len(running)), key=expected.__getitem__)
            gain, state = expected[best], running[best]
            if not self._counted and gain * self._budget.left / self._slice < _WORTH * (self._latency or 0.0):
                return
            if gain == 0.0:
                state = min(running, key=lambda state: state.require_session.trials)
            self._message = state.task.name
            session = state.require_session
            trials = min(_turn(session) or _SLICE_TRIALS, self._exploring) if self._counted else math.inf
            before = session.trials
            # If trials are what is limited, a slice of time might be over before it has measured anything new.
            self._search(state, math.inf if self._counted else self._slice, trials)
            if self._counted and state.session is not None and state.session.trials == before:
                silent.add(state)

    def _exploit(self) -> None:
        self._exploiting = True
        for state in self._running:
            searcher = state.require_session.searcher
            if isinstance(searcher, TwoPhase):
                searcher.exploit()
                self._message = f"exploiting {state.task.name}"
                self._search(state, math.inf, math.inf)

    # The steps of one task

    def _begin(self, state: _State) -> Session:
        others = [*self._running, *(other for other in self._states if other.session is None)]
        hints = [fastest for other in others if (fastest := other.fastest) is not None]
        kernel = state.require_kernel
        measured = dataclasses.replace(kernel, site=self._site, network=self._network)
        session = state.session = measured.session(self._store, hints, lambda _: self._report())
        self._begun.append(state)
        if isinstance(session.searcher, TwoPhase):
            self._exploration = session.searcher.exploration
        workload = kernel.workload
        kind = tuple(sketch.name for sketch, _ in kernel.sketches)
        sketches = [sketch for sketch, _ in kernel.sketches]
        least = _least_seconds(workload, self._target, self._limits, sketches)
        state.progress = TaskProgress(state.task.weight, workload.flops + _BYTE * workload.bytes, kind, least)
        return session

    def _search(self, state: _State, seconds: float, trials: float) -> None:
        """A slice of one task, within what is left of the budget. A task that has ended is finished."""
        session, budget = state.require_session, self._budget
        self._now = state
        trials = max(0, min(trials, self._trials_left))
        if isinstance(session.searcher, TwoPhase) and not self._exploiting:
            session.searcher.allow(int(trials))
        self._report()
        _logger.info("%s", self._message)
        try:
            session.search(max(0.0, min(seconds, budget.left)), trials, budget.left_to_measure)
        except MeasureError as error:
            self._lose(state, error)
            return
        effort = session.trials / _SLICE_TRIALS if self._counted else session.effort / self._slice
        state.require_progress.add(effort, math.inf if session.seconds is None else session.seconds)
        self._report()
        if session.ended:
            self._end(state)

    def _end(self, state: _State) -> None:
        """Finishes a task in the course of the tuning."""
        if self._finish(state, interrupted=False):
            raise KeyboardInterrupt

    def _finish(self, state: _State, interrupted: bool) -> bool:
        """Ends a task; whether Ctrl-C came during its race."""
        granted = state.guaranteed[0] or 0 if self._budget.left > 0 else 0
        race_seconds = self._budget.race_seconds(len(self._running))
        try:
            result = state.require_session.finish(
                interrupted=interrupted,
                race_seconds=race_seconds,
                granted=granted,
                races=self._kernels,
                limit=self._budget.left_to_measure,
            )
        except MeasureError as error:
            self._lose(state, error)
            return False
        self._close(state)
        state.result, state.tuned_here = state.require_kernel.result(result), True
        return result.interrupted

    def _lose(self, state: _State, error: MeasureError) -> None:
        """Keeps what is known of a task that cannot be measured any more."""
        result = state.require_session.abandon()
        self._close(state)
        if isinstance(error, LockTimeout):
            state.reason = f"{error}: default schedule"
        elif result.best is None:
            self._lost += result.trials
            state.reason, state.kernel = f"cannot be measured: {error}", None
        else:
            state.result, state.tuned_here = state.require_kernel.result(result), True
            state.reason = f"ended early: {error}"

    def _close(self, state: _State) -> None:
        session, state.session = state.require_session, None
        session.close()

    # Where the tuning stands

    @property
    def _spent(self) -> int:
        """Distinct candidates of the budget, those of an earlier run that is resumed included."""
        done = sum(state.result.trials for state in self._states if state.tuned_here and state.result is not None)
        return self._lost + done + sum(state.require_session.trials for state in self._running)

    @property
    def _counted(self) -> bool:
        """Whether effort is counted in trials, because these are what is limited."""
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
        """Seconds that the measured kernels take in an execution of the model; None during the first round."""
        total = 0.0
        for state in self._states:
            if state.kernel is None:
                continue
            waiting = state.result is None and (state.progress is None or not state.progress.seconds)
            if waiting and state.reason is None:
                return None
            total += state.latency if state.latency < math.inf else 0.0
        return total

    def _report(self) -> None:
        """Reports the progress of the whole model."""
        elapsed, latency = self._budget.elapsed, self._latency
        if latency is not None and (not self.curve or self.curve[-1][1] != latency):
            self.curve.append((elapsed, latency))
            events.level("estimated seconds", "model", latency)
        if self._on_progress is not None:
            results = [state.result for state in self._states if state.tuned_here and state.result is not None]
            counted: list[TuneResult | Session] = [*results, *(state.require_session for state in self._running)]
            trials, failed = sum(item.trials for item in counted), sum(item.failed for item in counted)
            budget = self._budget.seconds
            kernels = [state.so_far(state is self._now) for state in self._states]
            self._on_progress(Progress(trials, failed, latency, elapsed, budget, self._message, "model about", kernels))


def _turn(session: Session) -> int | None:
    """The trials of a turn, if the search has turns of its own."""
    searcher = session.searcher
    return searcher.turn if isinstance(searcher, GeneratorSearch) else None


def _limits(target: Target) -> tuple[float, float]:
    """The most FLOP/s and bytes/s; infinite if they are not known."""
    limits = known_peak(target)
    return (math.inf, math.inf) if limits is None else (limits.flops, limits.bandwidth)


def _least_seconds(
    workload: Workload, target: Target, limits: tuple[float, float], sketches: Sequence[AnySketch]
) -> float:
    """The least seconds of a call by any of these sketches at the machine's limits.

    What fits the caches needs no memory.
    """
    flops, bandwidth = limits
    # The bandwidth was measured by a copy, whose lines are read before they are written, and perhaps in a bad moment.
    moved = workload.bytes / bandwidth / _FASTER if workload.bytes > cached_bytes(target) else 0.0
    return max(workload.flops / flops / knowledge.speedup_bound(sketches, workload, target), moved)
