"""The budget of a model's tuning shared out to its kernels, slice by slice.

First every task is looked up in the records, by the part of the budget that is surely its own. Those that are not
answered have this part in a first round (at most 64 trials, as in Ansor); what is left goes, a slice at a time, where
it is expected to shorten the model most (`allocation`). A task ends when its search has converged; the tuning ends with
the budget, or, where time is what is limited, when nothing is expected of it any more.

`dpansor` explores so with its N trials, those of all kernels together, and then exploits each until it converges
(DPAnsor paper, section 2.3). Where there are fewer trials than kernels, each has one: a descent begins somewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedFunction
from ..ir.workload import Workload
from ..machine.cpu import Target
from ..records import Store
from ..sketches.registry import sketches_for
from ..tuning.result import Progress, TuneResult
from ..tuning.tune import recall
from .budget import Budget, shares
from .importer.graph import Graph
from .importer.tasks import Task
from .slices import BYTE, Slices

_CACHED = 0.5
"""Of all caches: weights that are more than this come from memory in every execution of the model.

Activations pass through the caches, too, and transformed weights are larger.
"""


@dataclass(frozen=True)
class TunedTask:
    """A task and what its tuning brought.

    `workload` is None where no sketch takes its function, it cannot be measured, or none of its candidates worked: it
    gets a plain schedule. `result` is None where nothing was left for it, or Ctrl-C came before its turn: it gets the
    default schedule. `reason` says which, in one line.
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
class TunedTasks:
    """All tasks of a graph in its order, whether Ctrl-C came between, and how the model became faster.

    `curve` holds (seconds of tuning, summed seconds of the kernels that were measured) from the end of the first round
    on.
    """

    tasks: Sequence[TunedTask]
    interrupted: bool
    curve: Sequence[tuple[float, float]]


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
    sketches: str | None,
    on_progress: Callable[[Progress], None] | None,
) -> TunedTasks:
    """Tunes all tasks of a graph, as they will be: with weights from memory where the caches do not hold them all.

    Raises `InputError` for a bad setting.
    """
    workloads, reasons = _workloads(graph, target, sketches)
    order = sorted(workloads, key=lambda index: -_effort(graph.tasks[index], workloads[index]))
    parts = shares([_effort(graph.tasks[index], workloads[index]) for index in order])
    how: dict[str, Any] = {
        "target": target,
        "search": search,
        "options": options,
        "seed": seed,
        "store": store,
        "max_error": max_error,
        "sketches": sketches,
        "resume": resume,
        "cold": 0 < _CACHED * target.caches < graph.constant_bytes,
    }
    results: dict[int, TuneResult] = {}
    sure = {index: budget.sure(position, parts) for position, index in enumerate(order)}
    for index in order if not fresh else ():
        trials, seconds = sure[index]
        known = recall(workloads[index], trials=trials, time=seconds, **how)
        if known is not None:
            results[index] = known
    # What an earlier run of this very tuning has finished is part of its budget.
    mine = [each for each in results.values() if resume and (each.search, each.seed) == (search, seed)]
    before = sum(each.trials for each in mine)
    pending = [index for index in order if index not in results]
    interrupted, curve = False, []
    if pending and budget.left > 0:
        how["fresh"] = fresh
        with Slices(graph, workloads, results, reasons, budget, how, on_progress, before) as going:
            interrupted = going.tune(pending, sure)
            curve = going.curve
    for index in pending:
        if index not in results and index in workloads:
            reasons.setdefault(index, "no time left: default schedule")
        elif index in results and results[index].best is None and results[index].trials:
            reasons[index] = "no candidate worked: plain schedule"
            del workloads[index]
    tuned = [
        TunedTask(task, workloads.get(task.index), results.get(task.index), reasons.get(task.index))
        for task in graph.tasks
    ]
    return TunedTasks(tuned, interrupted, curve)


def _workloads(graph: Graph, target: Target, sketches: str | None) -> tuple[dict[int, Workload], dict[int, str]]:
    """The tasks that a sketch takes, by index; and why not, for the others."""
    workloads: dict[int, Workload] = {}
    reasons: dict[int, str] = {}
    for task in graph.tasks:
        try:
            workload = Workload.create(task.name, task.function, task.constants)
            if sketches_for(workload, target, sketches):
                workloads[task.index] = workload
            else:
                reasons[task.index] = "no sketch applies to this function"
        except UnsupportedFunction as error:
            reasons[task.index] = str(error)
    return workloads, reasons


def _effort(task: Task, workload: Workload) -> float:
    return task.weight * (workload.flops + BYTE * workload.bytes)
