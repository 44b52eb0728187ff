"""Tuning a model: each distinct kernel one after the other, then the whole, compiled, timed and verified."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..errors import UnsupportedFunction
from ..kernel.registry import sketches_for
from ..kernel.sketch import Variant
from ..kernel.target import Target
from ..kernel.workload import Workload
from ..measure.lock import MachineLock
from ..measure.pool import WorkerPool
from ..records import Store, open_store
from ..statistics import Interval, median_interval
from ..tune import Progress, TuneResult, tune
from . import DEFAULT_SECONDS
from .artifact import CompiledModel
from .compile import build
from .concatenation import Place
from .graph import Graph, load_graph
from .tasks import Task
from .verify import Verification, random_feeds, verify

_ROUNDS = 15
_RESERVE = 0.15  # of a time budget: importing is spent already, compiling and verifying come after the tuning


@dataclass(frozen=True)
class TunedTask:
    """A task and what its tuning brought.

    `workload` is None where no sketch takes its function, `result` also where Ctrl-C came before its turn.
    """

    task: Task
    workload: Workload | None
    result: TuneResult | None

    def to_json(self) -> dict[str, Any]:
        """An entry of `tasks` in the document of `stormdrop tune --json`."""
        entry: dict[str, Any] = {"name": self.task.name, "weight": self.task.weight}
        if self.result is None:
            return {**entry, "sketch": None, "seconds": None, "gflops": None, "percent_of_peak": None, "trials": 0}
        document = self.result.to_json()
        best = document["best"] or {}
        keys = ("sketch", "seconds", "gflops", "percent_of_peak", "gigabytes_per_second", "config")
        return {
            **entry,
            **{key: best.get(key) for key in keys},
            **{key: document[key] for key in ("trials", "failed", "reused", "converged", "baseline")},
            "tuning_seconds": self.result.seconds,
        }


@dataclass(frozen=True, eq=False)
class ModelResult:
    """A tuned model: `latency` beside `untuned` (every kernel by its default schedule), interleaved, in seconds."""

    model: CompiledModel
    name: str
    target: Target
    search: str
    seed: int
    seconds: float
    phases: Mapping[str, float]
    artifact: Path | None
    latency: Interval
    untuned: Interval
    verified: Verification
    tasks: Sequence[TunedTask]
    curve: Sequence[tuple[float, float]]
    interrupted: bool = False

    @property
    def trials(self) -> int:
        """Distinct candidates measured, over all tasks."""
        return sum(each.result.trials for each in self.tasks if each.result is not None)

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop tune --json`."""
        results = [each.result for each in self.tasks if each.result is not None]
        return {
            "model": self.name,
            "target": self.target.machine,
            "search": self.search,
            "seed": self.seed,
            "trials": self.trials,
            "failed": sum(result.failed for result in results),
            "reused": sum(result.reused for result in results),
            "suspect": sum(result.suspect for result in results),
            "seconds": self.seconds,
            "phases": dict(self.phases),
            "artifact": None if self.artifact is None else str(self.artifact),
            "latency": _timing(self.latency),
            "untuned": _timing(self.untuned),
            "verified": {"max_error": self.verified.max_error, "against": self.verified.against},
            "tasks": [each.to_json() for each in self.tasks],
            "fallbacks": [report.task for report in self.model.metadata.fallbacks],
            "interrupted": self.interrupted,
            "converged": all(result.converged for result in results),
            "curve": [list(entry) for entry in self.curve],
        }


def tune_model(
    model: str | Path | onnx.ModelProto,
    *,
    target: Target | None = None,
    search: str = "droplet",
    options: Mapping[str, Any] | None = None,
    trials: int | None = None,
    time: float | None = None,
    seed: int = 0,
    store: Store | None = None,
    resume: bool = False,
    fresh: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    out: str | Path | None = None,
) -> ModelResult:
    """Tunes every kernel of an ONNX model and compiles it; saved to `out` where that is given.

    `trials` bounds the distinct candidates over all kernels, `time` the wall seconds with import, compilation and
    verification in them; without either, `DEFAULT_SECONDS` at most. Kernels with most operations come first; each
    may take its share of what is left. Ctrl-C ends the tuning: what was found so far is compiled. Raises
    `ModelError` for a model that cannot be imported, `InputError` for a bad setting.
    """
    begin = clock.perf_counter()
    machine = target or Target.detect()
    budget = time if time is not None or trials is not None else DEFAULT_SECONDS
    graph = load_graph(model)
    phases = {"import": clock.perf_counter() - begin}
    opened = store if store is not None else open_store(None)
    plan = _Plan(machine, search, dict(options or {}), seed, opened, resume, fresh, on_progress, begin, budget, trials)
    try:
        with WorkerPool(machine.cores) as pool:
            tuned, interrupted = _tune_tasks(graph, plan, pool)
    finally:
        if store is None:
            opened.close()
    for each in tuned:
        for phase, seconds in each.result.phases.items() if each.result is not None else ():
            phases[phase] = phases.get(phase, 0.0) + seconds
    start = clock.perf_counter()
    defaults = {each.task.index: _default(each.workload, machine) for each in tuned if each.workload is not None}
    found = {each.task.index: each.result.variant for each in tuned if each.result is not None and each.result.best}
    variants = {**defaults, **found}
    provenance = {"search": search, "seed": seed, "trials": sum(each.result.trials for each in tuned if each.result)}
    if isinstance(model, str | Path):
        provenance["source"] = str(Path(model).resolve())
    compiled = build(graph, variants, machine, place=_placing(tuned, machine), provenance=provenance)
    untuned = build(graph, defaults, machine)
    phases["compile"] = clock.perf_counter() - start
    start = clock.perf_counter()
    checked = verify(compiled, graph.source, seed)
    phases["verify"] = clock.perf_counter() - start
    start = clock.perf_counter()
    latency, default = _latencies([compiled, untuned], seed)
    phases["latency"] = clock.perf_counter() - start
    artifact = None if out is None else compiled.save(out)
    seconds = clock.perf_counter() - begin
    return ModelResult(
        model=compiled,
        name=graph.name,
        target=machine,
        search=search,
        seed=seed,
        seconds=seconds,
        phases=phases,
        artifact=artifact,
        latency=latency,
        untuned=default,
        verified=checked,
        tasks=tuned,
        curve=_curve(tuned),
        interrupted=interrupted,
    )


@dataclass(frozen=True)
class _Plan:
    target: Target
    search: str
    options: Mapping[str, Any]
    seed: int
    store: Store
    resume: bool
    fresh: bool
    on_progress: Callable[[Progress], None] | None
    begin: float
    seconds: float | None
    trials: int | None


def _tune_tasks(graph: Graph, plan: _Plan, pool: WorkerPool) -> tuple[list[TunedTask], bool]:
    """Every task in the order of its weight in operations; and whether Ctrl-C came between."""
    workloads: dict[int, Workload] = {}
    for task in graph.tasks:
        try:
            workload = Workload.create(task.name, task.function, task.constants)
        except UnsupportedFunction:
            continue  # the task gets a fallback schedule, and the report lists it
        if sketches_for(workload, plan.target):
            workloads[task.index] = workload
    order = sorted(graph.tasks, key=lambda task: -_effort(task, workloads))
    results: dict[int, TuneResult] = {}
    interrupted = False
    trials = 0
    pending = [task for task in order if task.index in workloads]
    for position, task in enumerate(pending):
        remaining = pending[position:]
        share = _effort(task, workloads) / max(sum(_effort(each, workloads) for each in remaining), 1e-9)
        started = clock.perf_counter()
        seconds = None
        if plan.seconds is not None:
            left = plan.begin + plan.seconds * (1 - _RESERVE) - started
            # At least an equal part: a light kernel may still be badly scheduled.
            seconds = max(left * max(share, 1 / len(remaining)), 0.001)
        allowed = None if plan.trials is None else max(1, (plan.trials - trials) // len(remaining))
        result = tune(
            workloads[task.index],
            target=plan.target,
            search=plan.search,
            options=plan.options,
            trials=allowed,
            time=seconds,
            seed=plan.seed,
            store=plan.store,
            resume=plan.resume,
            fresh=plan.fresh,
            on_progress=_forwarded(plan, task.name, f"{position + 1}/{len(pending)}", trials),
            pool=pool,
        )
        results[task.index] = result
        trials += result.trials
        interrupted = result.interrupted
        if interrupted:
            break
    return [TunedTask(task, workloads.get(task.index), results.get(task.index)) for task in graph.tasks], interrupted


def _effort(task: Task, workloads: Mapping[int, Workload]) -> float:
    workload = workloads.get(task.index)
    # A byte weighs as much as some ten operations on today's machines.
    return 0.0 if workload is None else task.weight * (workload.flops + 10 * workload.bytes)


def _forwarded(plan: _Plan, name: str, position: str, before: int) -> Callable[[Progress], None] | None:
    if plan.on_progress is None:
        return None
    report = plan.on_progress

    def forward(progress: Progress) -> None:
        elapsed = clock.perf_counter() - plan.begin
        report(
            replace(
                progress,
                trials=before + progress.trials,
                elapsed=elapsed,
                budget_seconds=plan.seconds,
                message=f"{position} {name}",
            )
        )

    return forward


def _default(workload: Workload, target: Target) -> Variant:
    sketch, space = sketches_for(workload, target)[0]
    return sketch.apply(workload, target, space.config(space.origin))


def _placing(tuned: Sequence[TunedTask], target: Target) -> Callable[[int, Place], Variant]:
    """How a task writes into a slice of a wider output: by the schedule that was found for it alone."""
    by_index = {each.task.index: each for each in tuned}

    def place(index: int, where: Place) -> Variant:
        each = by_index[index]
        assert each.workload is not None
        workload = each.workload.placed(where.offset, where.total)
        if each.result is not None and each.result.best is not None:
            best = each.result.best
            return each.result.sketches[best.sketch].apply(workload, target, best.config)
        sketch, space = sketches_for(each.workload, target)[0]
        return sketch.apply(workload, target, space.config(space.origin))

    return place


def _latencies(models: Sequence[CompiledModel], seed: int) -> list[Interval]:
    """Seconds per call of a few models, in turns, alone on the machine."""
    feeds = random_feeds(models[0].inputs, seed)
    for model in models:
        model.run(feeds)
    rounds: list[list[float]] = [[] for _ in models]
    with MachineLock().exclusive():
        for _ in range(_ROUNDS):
            for model, times in zip(models, rounds, strict=True):
                model.run(feeds)  # the other model's weights are in the caches
                start = clock.perf_counter()
                model.run(feeds)
                times.append(clock.perf_counter() - start)
    return [median_interval(times) for times in rounds]


def _timing(interval: Interval) -> dict[str, Any]:
    return {"seconds": interval.estimate, "interval": [interval.low, interval.high]}


def _curve(tuned: Sequence[TunedTask]) -> list[tuple[float, float]]:
    """(seconds of tuning, summed seconds of all kernels): one entry per tuned task, in the order of tuning."""
    results = [(each.task.weight, each.result) for each in tuned if each.result is not None and each.result.best]
    total = sum(weight * (result.baseline or 0.0) for weight, result in results)
    order = sorted(results, key=lambda entry: -entry[0] * entry[1].workload.flops)
    elapsed, curve = 0.0, [(0.0, total)]
    for weight, result in order:
        assert result.best is not None
        elapsed += result.seconds
        total += weight * (result.best.seconds - (result.baseline or result.best.seconds))
        curve.append((elapsed, float(np.round(total, 9))))
    return curve
