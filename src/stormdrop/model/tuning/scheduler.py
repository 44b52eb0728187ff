"""The task scheduler: shares the budget of a model's tuning out to its tasks, slice by slice.

Each task has a guaranteed part of the budget. A record answers a task if its session had at least that part. The
tasks that are not answered use their part in a first round (at most 64 trials, as in Ansor). What is left goes, a
slice at a time, to the task where it is expected to shorten the model most (`gain`). A task ends when its search has
converged. The tuning ends when the budget is spent. If the budget is a time, it also ends when no task is expected to
gain more.

Some searches work in rounds of their own (`turn`): Ansor as printed, and AutoTVM with transfer. For them a round takes
the place of the part, and of the slice.

`dpansor` explores in this way, with N trials for all tasks together. Then it exploits each task until it converges
(DPAnsor paper, section 2.3). If there are fewer trials than tasks, each task has one, because a descent needs a point
to begin at.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time as clock
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, cast

import numpy as np
from typing_extensions import Self

from ... import events
from ...errors import LockTimeout, MeasureError, TargetError, UnsupportedFunction
from ...ir.workload import Workload
from ...machine.contract import CUDA, Machine
from ...machine.cpu import Cpu
from ...machine.gpu import Gpu
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
from ...tuning.result import Progress, TuneResult
from ...tuning.session import Session
from ..building.tuned_task import TunedTasks
from ..graph.graph import Graph
from .budget import Budget, shares
from .gain import TaskProgress, gains
from .other_gpus import borrowed_schedules
from .task_state import Answered, Plain, Running, ScheduledTask, Waiting, work_of
from .tuning_run import MODEL

_logger = logging.getLogger(__name__)

_FIRST_TRIALS = 64  # of a task in the first round, at most
_SLICE = 0.02  # of a time budget: what a task has at a time after the first round
_LEAST_SLICE = 1.0  # seconds
_SLICE_TRIALS = 16
_WORTH = 5e-4  # of the model's latency: the tuning ends if all the time that is left is expected to save less
_FASTER = 2.0  # the true bandwidth is at most this many times the measured one


def tune_tasks(
    graph: Graph,
    target: Machine,
    options: TuneOptions,
    budget: Budget,
    store: Store,
    on_progress: Callable[[Progress], None] | None = None,
    site: Site | None = None,
    tasks: Sequence[ScheduledTask] | None = None,
) -> TunedTasks:
    """Tunes all tasks of a graph as they will run: with weights from where the whole model leaves them.

    Args:
        graph: The model.
        target: The machine to tune for; if it has a runner, with the cores that are there.
        options: How the tasks are tuned. Their bounds are those of the whole model.
        budget: What the tuning may take.
        store: The records.
        on_progress: Is called with the progress of the whole model.
        site: Where kernels are measured; by default where the target says.
        tasks: The tasks, from `tasks_of`, perhaps with what their calls take untuned; by default they are made here.

    Raises:
        InputError: A setting is bad.
    """
    begin = clock.perf_counter()
    tasks = tasks_of(graph, target, options, runner_asked=True) if tasks is None else tasks
    ordered = sorted((task for task in tasks if task.kernel is not None), key=lambda task: -task.work)
    parts = shares([task.work for task in ordered])
    pending: list[tuple[ScheduledTask, KernelTask]] = []
    for position, task in enumerate(ordered):
        task.guaranteed = budget.guaranteed(position, parts)
        kernel = cast(KernelTask, task.kernel)
        task.recorded = [] if options.fresh else kernel.recorded(store)
        answer = kernel.answered(store, *task.guaranteed, recorded=task.recorded)
        if answer is None:
            pending.append((task, kernel))
        else:
            task.state = Answered(kernel, answer)
    seconds = clock.perf_counter() - begin
    for task, kernel in pending:
        part_of = PartOf(graph.name, task.task.weight, len(pending), task.task.layers)
        task.state = Waiting(dataclasses.replace(kernel, part_of=part_of))
    interrupted, curve = False, []
    if pending and budget.left > 0:
        with _Scheduler(graph, tasks, target, options, budget, store, on_progress, site) as scheduler:
            interrupted = scheduler.tune([task for task, _ in pending])
            curve = scheduler.curve
    for task, kernel in pending:
        if task.recorded and isinstance(task.state, Waiting):
            answer = kernel.answered(store, 0, None, disturbed=True, recorded=task.recorded)
            if answer is not None:
                run = "an earlier run, beside other load" if answer.disturbed else "an earlier, shorter run"
                task.state = Answered(kernel, answer, reason=f"not tuned any further: its schedule is that of {run}")
        task.conclude()
    return TunedTasks([task.tuned() for task in tasks], interrupted, curve, seconds)


def recorded_tasks(graph: Graph, target: Machine, options: TuneOptions, store: Store | None) -> TunedTasks:
    """The tasks of a graph with what the records say about them, without measuring anything.

    Args:
        graph: The model.
        target: The machine that the records are of.
        options: How the tasks would be tuned.
        store: The records. Any finished session answers, however short it was, and even if something else disturbed
            its last race; but not one without a race if something else used the machine. With None all tasks have their
            default schedules. On an NVIDIA GPU, those that no session answers have what other GPUs have found, as far
            as that fits.
    """
    tasks = tasks_of(graph, target, options)
    answers = store is not None and has_identity(target)
    for task in tasks:
        if task.kernel is not None:
            answer = task.kernel.answered(store, 0, None, disturbed=True) if store is not None and answers else None
            if answer is None:
                task.state = Waiting(task.kernel, "default schedule")
            elif answer.suspect and answer.baseline is None and not answer.default_failed:
                task.state = Waiting(task.kernel, "default schedule: what was measured beside other load did not race")
            else:
                task.state = Answered(task.kernel, answer)
    tuned = [task.tuned() for task in tasks]
    if store is not None and isinstance(target, Gpu) and target.device == CUDA:
        kernels = {at: each.kernel for at, each in enumerate(tuned) if each.kernel is not None and each.result is None}
        for at, borrowed in borrowed_schedules(kernels, target, store).items():
            reason = f"schedule of a tuning on {borrowed.machine}"
            tuned[at] = dataclasses.replace(tuned[at], borrowed=borrowed, reason=reason)
    return TunedTasks(tuned, False, [])


def has_identity(target: Machine) -> bool:
    """Whether the records can know a machine. A GPU that is not here, or that TVM cannot use, has no identity."""
    if not isinstance(target, Gpu):
        return True
    try:
        target.machine  # noqa: B018  raises
    except TargetError:
        return False
    return True


def tasks_of(graph: Graph, target: Machine, options: TuneOptions, runner_asked: bool = False) -> list[ScheduledTask]:
    """The tasks of a graph, each with its kernel, or with the reason why it has none.

    Args:
        graph: The model.
        target: The machine to tune for.
        options: How the tasks are tuned.
        runner_asked: The target is as its runner describes it.
    """
    passing = None
    if isinstance(target, Cpu) and not target.runner:
        passing = passing_between(target, graph.constant_bytes)
    own = dataclasses.replace(options, trials=None, seconds=None)
    tasks = []
    for task in graph.tasks:
        try:
            workload = Workload.create(task.name, task.function, task.constants)
            kernel = KernelTask.create(workload, target, own, passing=passing, runner_asked=runner_asked)
        except UnsupportedFunction as error:
            tasks.append(ScheduledTask(task, Plain(str(error).removeprefix(f"{task.name}: "))))
        else:
            tasks.append(ScheduledTask(task, Waiting(kernel)))
    return tasks


class _Scheduler:
    """Tunes the tasks that the records do not answer. Use it as a context."""

    def __init__(
        self,
        graph: Graph,
        tasks: Sequence[ScheduledTask],
        target: Machine,
        options: TuneOptions,
        budget: Budget,
        store: Store,
        on_progress: Callable[[Progress], None] | None,
        site: Site | None,
    ) -> None:
        self._graph, self._tasks, self._target = graph, tasks, target
        self._budget, self._store, self._on_progress = budget, store, on_progress
        self._slice = max(_LEAST_SLICE, _SLICE * (budget.seconds or 0.0))
        self._limits = _limits(target)
        self._open = ExitStack()
        self._site = self._open.enter_context(site_of_model(target)) if site is None else site
        # If an earlier run of this very tuning is resumed, what it has finished is part of the budget.
        setting = (options.search, options.seed)
        answers = [task.state.result for task in tasks if options.resume and isinstance(task.state, Answered)]
        self._other_trials = sum(result.trials for result in answers if (result.search, result.seed) == setting)
        self._kernels = sum(task.kernel is not None for task in tasks)
        common = (
            CommonCostModel(np.random.default_rng(options.seed)) if knowledge.comparable(options.features) else None
        )
        self._network = Network(self._kernels, budget.trials, common)
        self._exploration: int | None = None  # trials that a search explores with, of all tasks together
        self._exploiting = False
        self._begun: list[ScheduledTask] = []
        self._message = ""
        self._now: ScheduledTask | None = None  # the task that is searched
        self.curve: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        for _, running in self._running:
            running.session.close()
        self._open.close()

    @property
    def _running(self) -> list[tuple[ScheduledTask, Running]]:
        """The tasks whose sessions are open, in the order in which they were begun."""
        return [(task, task.state) for task in self._begun if isinstance(task.state, Running)]

    def tune(self, pending: Sequence[ScheduledTask]) -> bool:
        """Tunes these tasks. Returns whether Ctrl-C ended the tuning."""
        interrupted = False
        try:
            self._first_round(pending)
            self._by_gain()
            self._exploit()
            self._message = "finalists"
            for task, running in sorted(self._running, key=lambda each: -each[0].latency):
                interrupted |= self._finish(task, running, interrupted)
        except KeyboardInterrupt:
            interrupted = True
            for task in pending:
                task.wait("interrupted before its turn: default schedule")
        for task, running in self._running:
            self._finish(task, running, interrupted=True)
        return interrupted

    # The three parts of a tuning

    def _first_round(self, pending: Sequence[ScheduledTask]) -> None:
        """Begins each task, and gives it the part that it is guaranteed."""
        if self._budget.trials is None:
            # What costs most comes first; what an earlier run has measured has less to gain. Large tasks come last, and
            # the largest of all at the end: a batch of one may take most of the time, and leave nothing to the others.
            pending = sorted(pending, key=lambda task: -task.cost)
            pending = sorted(
                pending, key=lambda task: task.kernel.workload.bytes if task.kernel and task.is_large else 0
            )
        for count, task in enumerate(pending):
            if self._trials_left <= 0 or self._budget.left <= 0:
                task.wait(f"no {'trials' if self._trials_left <= 0 else 'time'} left: default schedule")
                continue
            self._message = f"{count + 1}/{len(pending)} {task.label}"
            running = self._begin(task)
            session = running.session
            trials, seconds = task.guaranteed
            if self._exploration is not None:
                trials = max(1, self._exploration // self._kernels)  # a descent needs a point to begin at
            most = math.inf if trials is None else _turn(session) or min(trials, _FIRST_TRIALS)
            left = math.inf if seconds is None else seconds - session.effort
            self._search(task, running, left, most - session.trials)
            if task.state is running and self._exploration is None and task.is_large:
                self._end(task, running)

    def _by_gain(self) -> None:
        """Gives slices to the tasks that are expected to gain most, until nothing is left or expected."""
        silent: set[Running] = set()  # tasks that have nothing to ask before they may exploit
        while (asking := [each for each in self._running if each[1] not in silent]) and self._exploring > 0:
            if self._budget.left <= 0:
                return
            ended = [progress for task in self._tasks if (progress := task.ended_progress) is not None]
            expected = gains([running.progress for _, running in asking], ended)
            best = max(range(len(asking)), key=expected.__getitem__)
            gain, (task, running) = expected[best], asking[best]
            if not self._counted and gain * self._budget.left / self._slice < _WORTH * (self._latency or 0.0):
                return
            if gain == 0.0:
                task, running = min(asking, key=lambda each: each[1].session.trials)
            self._message = task.label
            session = running.session
            trials = min(_turn(session) or _SLICE_TRIALS, self._exploring) if self._counted else math.inf
            before = session.trials
            # If trials are what is limited, a slice of time might be over before it has measured anything new.
            self._search(task, running, math.inf if self._counted else self._slice, trials)
            if self._counted and task.state is running and session.trials == before:
                silent.add(running)

    def _exploit(self) -> None:
        """Ends the exploration of searches that have two phases, and lets each task converge."""
        self._exploiting = True
        for task, running in self._running:
            searcher = running.session.searcher
            if isinstance(searcher, TwoPhase):
                searcher.exploit()
                self._message = f"exploiting {task.label}"
                self._search(task, running, math.inf, math.inf)

    # The steps of one task

    def _begin(self, task: ScheduledTask) -> Running:
        begun = [task for task, _ in self._running]
        others = [*begun, *(other for other in self._tasks if not isinstance(other.state, Running))]
        hints = [fastest for other in others if (fastest := other.fastest) is not None]
        kernel = cast(KernelTask, task.kernel)
        measured = dataclasses.replace(kernel, site=self._site, network=self._network)
        session = measured.session(self._store, hints, lambda _: self._report())
        if isinstance(session.searcher, TwoPhase):
            self._exploration = session.searcher.exploration
        kind = tuple(sketch.name for sketch, _ in kernel.sketches)
        sketches = [sketch for sketch, _ in kernel.sketches]
        least = _least_seconds(kernel.workload, self._target, self._limits, sketches)
        running = Running(kernel, session, TaskProgress(task.task.weight, work_of(kernel), kind, least))
        task.state = running
        self._begun.append(task)
        return running

    def _search(self, task: ScheduledTask, running: Running, seconds: float, trials: float) -> None:
        """A slice of one task, within what is left of the budget. A task that has ended is finished."""
        session, budget = running.session, self._budget
        self._now = task
        trials = max(0, min(trials, self._trials_left))
        if isinstance(session.searcher, TwoPhase) and not self._exploiting:
            session.searcher.allow(int(trials))
        self._report()
        _logger.info("%s", self._message)
        try:
            session.search(max(0.0, min(seconds, budget.left)), trials, budget.left_to_measure)
        except MeasureError as error:
            self._lose(task, running, error)
            return
        effort = session.trials / _SLICE_TRIALS if self._counted else session.effort / self._slice
        running.progress.add(effort, math.inf if session.seconds is None else session.seconds)
        self._report()
        if session.ended:
            self._end(task, running)

    def _end(self, task: ScheduledTask, running: Running) -> None:
        """Finishes a task in the course of the tuning."""
        if self._finish(task, running, interrupted=False):
            raise KeyboardInterrupt

    def _finish(self, task: ScheduledTask, running: Running, interrupted: bool) -> bool:
        """Ends a task with its race. Returns whether Ctrl-C came meanwhile."""
        granted = task.guaranteed[0] or 0 if self._budget.left > 0 else 0
        race_seconds = self._budget.race_seconds(len(self._running))
        try:
            result = running.session.finish(
                interrupted=interrupted,
                race_seconds=race_seconds,
                granted=granted,
                races=self._kernels,
                limit=self._budget.left_to_measure,
            )
        except MeasureError as error:
            self._lose(task, running, error)
            return False
        # First: Ctrl-C may come while the session is closed, and nothing can be added to it any more.
        task.state = Answered(running.kernel, running.kernel.result(result), running.progress)
        running.session.close()
        return result.interrupted

    def _lose(self, task: ScheduledTask, running: Running, error: MeasureError) -> None:
        """Keeps what is known of a task that cannot be measured any more."""
        result = running.session.abandon()
        if isinstance(error, LockTimeout):
            task.state = Waiting(running.kernel, f"{error}: default schedule", running.progress)
        elif result.best is None:
            self._other_trials += result.trials
            task.state = Plain(f"cannot be measured: {error}")
        else:
            found = running.kernel.result(result)
            task.state = Answered(running.kernel, found, running.progress, f"ended early: {error}")
        running.session.close()

    # Where the tuning stands

    @property
    def _spent(self) -> int:
        """Distinct candidates of the budget. Those of an earlier run that is resumed count, and those of lost tasks."""
        done = sum(result.trials for result in self._results)
        return self._other_trials + done + sum(running.session.trials for _, running in self._running)

    @property
    def _results(self) -> list[TuneResult]:
        """The results of the tasks whose tuning has ended."""
        states = [task.state for task in self._tasks]
        return [state.result for state in states if isinstance(state, Answered) and state.progress is not None]

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
        for task in self._tasks:
            if task.is_unknown:
                return None
            total += task.latency if task.latency < math.inf else 0.0
        return total

    def _report(self) -> None:
        """Reports the progress of the whole model."""
        elapsed, latency = self._budget.elapsed, self._latency
        if latency is not None and (not self.curve or self.curve[-1][1] != latency):
            self.curve.append((elapsed, latency))
            events.level("estimated seconds", "model", latency)
        if self._on_progress is not None:
            counted: list[TuneResult | Session] = [*self._results, *(running.session for _, running in self._running)]
            trials, failed = sum(item.trials for item in counted), sum(item.failed for item in counted)
            budget = self._budget.seconds
            kernels = [task.so_far(task is self._now) for task in self._tasks]
            self._on_progress(Progress(trials, failed, latency, elapsed, budget, self._message, MODEL, kernels))


def _turn(session: Session) -> int | None:
    """The trials of a turn, if the search has turns of its own."""
    searcher = session.searcher
    return searcher.turn if isinstance(searcher, GeneratorSearch) else None


def _limits(target: Machine) -> tuple[float, float]:
    """The most FLOP/s and bytes/s; infinite if they are not known."""
    limits = known_peak(target)
    return (math.inf, math.inf) if limits is None else (limits.flops, limits.bandwidth)


def _least_seconds(
    workload: Workload, target: Machine, limits: tuple[float, float], sketches: Sequence[AnySketch]
) -> float:
    """The least seconds of a call by any of these sketches at the machine's limits.

    What fits the caches needs no memory. How much a GPU's hold is not known here.
    """
    flops, bandwidth = limits
    # The bandwidth was measured by a copy, whose lines are read before they are written, and perhaps in a bad moment.
    beyond = isinstance(target, Cpu) and workload.bytes > cached_bytes(target)
    moved = workload.bytes / bandwidth / _FASTER if beyond else 0.0
    return max(workload.flops / flops / knowledge.speedup_bound(sketches, workload, target), moved)
