"""The budget of a model's tuning shared out to its tasks: one after the other, those with most operations first.

First every task is looked up in the records, by the part of the budget that is surely its own. Those that are not
answered share what there is: whoever needs less leaves it to those that follow.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import MeasureError, UnsupportedFunction
from ..kernel.registry import sketches_for
from ..kernel.target import Target
from ..kernel.workload import Workload
from ..measure.pool import WorkerPool
from ..records import Store
from ..result import Progress, TuneResult
from ..tune import recall, tune
from .graph import Graph
from .tasks import Task

_RESERVE = 0.15  # of a time budget: compiling and verifying come after the tuning
_SURE = 0.7  # of a time budget, what tasks can count on: importing takes some, and tasks overrun theirs a little
_BYTE = 10  # operations that a byte weighs on today's machines


@dataclass(frozen=True)
class TunedTask:
    """A task and what its tuning brought.

    `workload` is None where no sketch takes its function, or where it cannot be measured: it gets a plain schedule.
    `result` is None there, and where nothing was left for it, or Ctrl-C came before its turn: it gets the default
    schedule. `reason` says which, in one line.
    """

    task: Task
    workload: Workload | None
    result: TuneResult | None
    reason: str | None = None

    @property
    def converged(self) -> bool:
        """Whether more time would not help."""
        return self.workload is None if self.result is None else self.result.converged

    def to_json(self) -> dict[str, Any]:
        """An entry of `tasks` in the document of `stormdrop tune --json`."""
        entry: dict[str, Any] = {"name": self.task.name, "weight": self.task.weight, "reason": self.reason}
        keys = ("sketch", "seconds", "gflops", "percent_of_peak", "gigabytes_per_second", "config")
        if self.result is None:
            counts = {"trials": 0, "failed": 0, "reused": 0, "converged": False, "baseline": None}
            return {**entry, **dict.fromkeys(keys), **counts, "tuning_seconds": 0.0}
        document = self.result.to_json()
        best = document["best"] or {}
        return {
            **entry,
            **{key: best.get(key) for key in keys},
            **{key: document[key] for key in ("trials", "failed", "reused", "converged", "baseline")},
            "tuning_seconds": self.result.seconds,
        }


@dataclass(frozen=True)
class Budget:
    """What a model's tuning may take: candidates to measure, wall seconds from `begin` on; None is no bound."""

    trials: int | None
    seconds: float | None
    begin: float

    def sure(self, position: int, shares: Sequence[float]) -> tuple[int | None, float | None]:
        """Trials and seconds that the task at this position has at least, whatever those before it do.

        The same in every run of the same model and budget: by this a record is judged.
        """
        trials = None if self.trials is None else self.trials // len(shares)
        if trials == 0:
            trials = int(position < (self.trials or 0))
        return trials, None if self.seconds is None else self.seconds * _SURE * shares[position]

    def left(self, spent: int, shares: Sequence[float]) -> tuple[int | None, float | None]:
        """Trials and seconds for the first of the tasks that are left, after so many trials were spent."""
        trials = None
        if self.trials is not None:
            rest = max(0, self.trials - spent)
            trials = max(rest // len(shares), min(rest, 1))
        if self.seconds is None:
            return trials, None
        rest_seconds = self.begin + self.seconds * (1 - _RESERVE) - clock.perf_counter()
        return trials, max(0.0, rest_seconds * shares[0] / sum(shares))


def tune_tasks(
    graph: Graph,
    budget: Budget,
    *,
    target: Target,
    search: str,
    options: Mapping[str, Any],
    seed: int,
    store: Store,
    resume: bool,
    fresh: bool,
    max_error: float | None,
    on_progress: Callable[[Progress], None] | None,
) -> tuple[list[TunedTask], bool]:
    """All tasks of a graph, in its order, and whether Ctrl-C came between. Raises `InputError` for a bad setting."""
    workloads, reasons = _workloads(graph, target)
    order = sorted(workloads, key=lambda index: -_effort(graph.tasks[index], workloads[index]))
    shares = _shares([_effort(graph.tasks[index], workloads[index]) for index in order])
    how: dict[str, Any] = {
        "target": target,
        "search": search,
        "options": options,
        "seed": seed,
        "store": store,
        "max_error": max_error,
    }
    results: dict[int, TuneResult] = {}
    for position, index in enumerate(order if not fresh else ()):
        trials, seconds = budget.sure(position, shares)
        known = recall(workloads[index], trials=trials, time=seconds, resume=resume, **how)
        if known is not None:
            results[index] = known
    pending = [(index, share) for index, share in zip(order, shares, strict=True) if index not in results]
    interrupted, spent = False, 0
    pool: WorkerPool | None = None
    try:
        for position, (index, _) in enumerate(pending):
            trials, seconds = budget.left(spent, [share for _, share in pending[position:]])
            if trials == 0 or seconds == 0:
                reasons[index] = f"no {'trials' if trials == 0 else 'time'} left: default schedule"
                continue
            pool = pool or WorkerPool(target.cores)
            before = sum(result.trials for result in results.values())
            name = f"{len(order) - len(pending) + position + 1}/{len(order)} {graph.tasks[index].name}"
            told = _forwarded(on_progress, budget, name, before)
            try:
                result = tune(
                    workloads[index],
                    trials=trials,
                    time=seconds,
                    resume=resume,
                    fresh=fresh,
                    on_progress=told,
                    pool=pool,
                    **how,
                )
            except MeasureError as error:
                reasons[index] = f"cannot be measured: {error}"
                del workloads[index]
                continue
            results[index] = result
            spent += result.trials - result.reused
            interrupted = result.interrupted
            if result.best is None:
                reasons[index] = "no candidate worked: default schedule" if result.trials else "no time left"
            if interrupted:
                reasons |= {
                    late: "interrupted before its turn: default schedule" for late, _ in pending[position + 1 :]
                }
                break
    finally:
        if pool is not None:
            pool.close()
    tuned = [
        TunedTask(task, workloads.get(task.index), results.get(task.index), reasons.get(task.index))
        for task in graph.tasks
    ]
    return tuned, interrupted


def _workloads(graph: Graph, target: Target) -> tuple[dict[int, Workload], dict[int, str]]:
    """The tasks that a sketch takes, by index; and why not, for the others."""
    workloads: dict[int, Workload] = {}
    reasons: dict[int, str] = {}
    for task in graph.tasks:
        try:
            workload = Workload.create(task.name, task.function, task.constants)
            if sketches_for(workload, target):
                workloads[task.index] = workload
            else:
                reasons[task.index] = "no sketch applies to this function"
        except UnsupportedFunction as error:
            reasons[task.index] = str(error)
    return workloads, reasons


def _effort(task: Task, workload: Workload) -> float:
    return task.weight * (workload.flops + _BYTE * workload.bytes)


def _shares(efforts: Sequence[float]) -> list[float]:
    """Half in equal parts, half by effort: a light kernel may still be badly scheduled."""
    total = max(sum(efforts), 1e-9)
    return [0.5 / len(efforts) + 0.5 * effort / total for effort in efforts]


def _forwarded(
    report: Callable[[Progress], None] | None, budget: Budget, message: str, before: int
) -> Callable[[Progress], None] | None:
    """Progress of a task told as progress of the model."""
    if report is None:
        return None

    def forward(progress: Progress) -> None:
        elapsed, trials = clock.perf_counter() - budget.begin, before + progress.trials
        report(replace(progress, trials=trials, elapsed=elapsed, budget_seconds=budget.seconds, message=message))

    return forward
