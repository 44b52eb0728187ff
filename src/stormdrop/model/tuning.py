"""Tuning a model: each distinct kernel one after the other, then the whole, compiled, timed and verified."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..duration import seconds_of
from ..errors import ModelError
from ..kernel.registry import sketches_for
from ..kernel.sketch import Variant
from ..kernel.target import Target
from ..kernel.workload import Workload
from ..measure.lock import MachineLock
from ..plan import DEFAULT_SEARCH
from ..records import Store, open_store
from ..result import Progress
from ..statistics import Interval, median_interval
from . import DEFAULT_SECONDS
from .artifact import CompiledModel
from .compile import build
from .concatenation import Place
from .graph import load_graph
from .sharing import Budget, TunedTask, tune_tasks
from .verify import Verification, random_feeds, verify

_ROUNDS = 15

WRONG_FROM = 1e-3
"""A model whose error (max|difference| / max|reference|) is not below this is wrong, and neither saved nor returned.

Reordered sums in float32 stay below 1e-4 in deep networks; a misplaced weight makes an error of 0.1 and more.
"""


@dataclass(frozen=True, eq=False)
class ModelResult:
    """A tuned model: `latency` beside `untuned` (every kernel by its default schedule), interleaved, in seconds.

    `untuned` is None after Ctrl-C: what was found is compiled, and nothing more.
    """

    model: CompiledModel
    name: str
    target: Target
    search: str
    seed: int
    seconds: float
    phases: Mapping[str, float]
    artifact: Path | None
    latency: Interval
    untuned: Interval | None
    verified: Verification
    tasks: Sequence[TunedTask]
    curve: Sequence[tuple[float, float]]
    interrupted: bool = False

    @property
    def trials(self) -> int:
        """Distinct candidates measured, over all tasks; those that came from the store are among them."""
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
            "untuned": None if self.untuned is None else _timing(self.untuned),
            "verified": {"max_error": self.verified.max_error, "against": self.verified.against},
            "tasks": [each.to_json() for each in self.tasks],
            "fallbacks": [report.task for report in self.model.metadata.fallbacks],
            "interrupted": self.interrupted,
            "converged": all(each.converged for each in self.tasks),
            "curve": [list(entry) for entry in self.curve],
        }


def tune_model(
    model: str | Path | onnx.ModelProto,
    *,
    target: Target | None = None,
    search: str = DEFAULT_SEARCH,
    options: Mapping[str, Any] | None = None,
    trials: int | None = None,
    time: float | str | None = None,
    seed: int = 0,
    store: Store | None = None,
    resume: bool = False,
    fresh: bool = False,
    max_error: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    out: str | Path | None = None,
) -> ModelResult:
    """Tunes every kernel of an ONNX model and compiles it; saved to `out` where that is given.

    `trials` bounds the distinct candidates that are measured over all kernels, `time` the wall seconds with import,
    compilation and verification in them; without either, `DEFAULT_SECONDS` at most. What the store knows already is
    taken from there and costs nothing of either. Kernels with most operations come first; each may take its share of
    what is left, and where nothing is left, it has its default schedule. `max_error` is that of `tune`, per kernel.
    Ctrl-C ends the tuning: what was found so far is compiled. Raises `ModelError` for a model that cannot be imported,
    or whose compiled form is wrong (its error is not below `WRONG_FROM`), `InputError` for a bad setting.
    """
    begin = clock.perf_counter()
    machine = target or Target.detect()
    given = seconds_of(time)
    budget = given if given is not None or trials is not None else DEFAULT_SECONDS
    graph = load_graph(model)
    phases = {"import": clock.perf_counter() - begin}
    opened = store if store is not None else open_store(None)
    granted = Budget(trials, budget, begin)
    try:
        tuned, interrupted = tune_tasks(
            graph,
            granted,
            target=machine,
            search=search,
            options=dict(options or {}),
            seed=seed,
            store=opened,
            resume=resume,
            fresh=fresh,
            max_error=max_error,
            on_progress=on_progress,
        )
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
    compiled = build(graph, variants, machine, place=_placing(tuned, machine, found=True), provenance=provenance)
    untuned = None if interrupted else build(graph, defaults, machine, place=_placing(tuned, machine, found=False))
    phases["compile"] = clock.perf_counter() - start
    start = clock.perf_counter()
    checked = verify(compiled, graph.source, seed)
    if not checked.max_error < WRONG_FROM:
        raise ModelError(
            f"{graph.name}: the compiled model is wrong and was not saved: its error against {checked.against} is "
            f"{checked.max_error:.1e}, and must be below {WRONG_FROM:.0e}"
        )
    phases["verify"] = clock.perf_counter() - start
    start = clock.perf_counter()
    latency, *default = _latencies([compiled] if untuned is None else [compiled, untuned], seed)
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
        untuned=default[0] if default else None,
        verified=checked,
        tasks=tuned,
        curve=_curve(tuned),
        interrupted=interrupted,
    )


def _default(workload: Workload, target: Target) -> Variant:
    sketch, space = sketches_for(workload, target)[0]
    return sketch.apply(workload, target, space.config(space.origin))


def _placing(tuned: Sequence[TunedTask], target: Target, found: bool) -> Callable[[int, Place], Variant]:
    """How a task writes into a slice of a wider output: by the schedule found for it alone, or by its default."""
    by_index = {each.task.index: each for each in tuned}

    def place(index: int, where: Place) -> Variant:
        each = by_index[index]
        assert each.workload is not None
        workload = each.workload.placed(where.offset, where.total)
        if found and each.result is not None and each.result.best is not None:
            best = each.result.best
            return best.apply(workload, target, best.config)
        sketch, space = sketches_for(each.workload, target)[0]
        return sketch.apply(workload, target, space.config(space.origin))

    return place


def _latencies(models: Sequence[CompiledModel], seed: int) -> list[Interval]:
    """Seconds per call of a few models, in turns, alone on the machine."""
    feeds = random_feeds(models[0].inputs, seed)
    for model in models:
        model.run(feeds)
    rounds: list[list[float]] = [[] for _ in models]
    with closing(MachineLock()) as lock, lock.exclusive():
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
