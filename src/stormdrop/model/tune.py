"""Tuning a model: its distinct kernels share a budget, then the whole is compiled, timed and verified."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import onnx

from ..errors import ModelError, SpaceError
from ..machine.cpu import Target
from ..machine.lock import MachineLock
from ..records import Store, open_store
from ..sketches.contract import Variant
from ..sketches.registry import MAX_ERROR, sketches_for
from ..statistics import Interval, median_interval
from ..tuning import race as finals
from ..tuning.request import DEFAULT_SEARCH, check_request
from ..tuning.result import Progress
from . import DEFAULT_SECONDS
from .artifact import CompiledModel, checksum, needs_linker
from .budget import Budget
from .compile import build
from .importer.graph import load_graph
from .metadata import Work
from .passes.concatenation import Place
from .selection import LINEUPS, Choice, fastest_inside, lineups
from .sharing import TunedTask, tune_tasks
from .verify import Feeds, Reference, Verification

_CHECKS = 0.05  # of a time budget, for verification and the last timing
_LATENCY_SECONDS = 5.0  # of the last timing, at most, but for very slow models
_INSIDE = 2 * (LINEUPS + 2)  # executions per round, to find out what is faster inside
_INSIDE_SHARE = 0.3  # of the time that is left then; the rest is to compile

WRONG_FROM = 1e-3
"""A model whose error (max|difference| / max|reference|) is not below this is wrong, and neither saved nor returned.

Reordered sums in float32 stay below 1e-4 in deep networks; a misplaced weight makes an error of 0.1 and more.
"""


@dataclass(frozen=True, eq=False)
class ModelResult:
    """A tuned model: `latency` beside `untuned` (every kernel by its default schedule), interleaved, in seconds.

    `untuned` is None after Ctrl-C (what was found is compiled, and nothing more), and where no time was left for it.
    `inside` are the tasks for which another finalist than the winner was faster in the whole model, and stands there.
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
    inside: Sequence[str] = ()
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
            "inside": list(self.inside),
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
    sketches: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    out: str | Path | None = None,
    native: bool = False,
) -> ModelResult:
    """Tunes every kernel of an ONNX model and compiles it; saved to `out` where that is given (`native`: see `save`).

    `trials` bounds the distinct candidates that are measured over all kernels, `time` the wall seconds with import,
    compilation and verification in them; without either, `DEFAULT_SECONDS` at most. What the store knows already is
    taken from there and costs nothing of either. How kernels share the rest is in `sharing`; one for which nothing is
    left has its default schedule. What is faster inside the model than alone is found out in the end (`context`), as
    far as the time allows. `max_error` and `sketches` are those of `tune`, for every kernel; `shapes` gives the sizes
    of inputs that the model leaves open, by name. Ctrl-C ends the tuning: what was found so far is compiled. Raises
    `ModelError` for a model that cannot be imported, or whose compiled form is wrong (its error is not below
    `WRONG_FROM`), `InputError` for a bad setting.
    """
    begin = clock.perf_counter()
    machine = target or Target.detect()
    given = check_request(trials, time, resume, fresh)
    if native:
        needs_linker()
    budget = given if given is not None or trials is not None else DEFAULT_SECONDS
    graph = load_graph(model, shapes)
    phases = {"import": clock.perf_counter() - begin}
    # Before anything is tuned: what cannot be verified is not worth it.
    reference = Reference.of(graph.source, graph.inputs, graph.outputs, seed)
    phases["verify"] = clock.perf_counter() - begin - phases["import"]
    opened = store if store is not None else open_store(None)
    granted = Budget(trials, budget, begin)
    try:
        shared = tune_tasks(
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
            sketches=sketches,
            on_progress=on_progress,
        )
    finally:
        if store is None:
            opened.close()
    tuned, interrupted = shared.tasks, shared.interrupted
    for each in tuned:
        for phase, seconds in each.result.phases.items() if each.result is not None else ():
            phases[phase] = phases.get(phase, 0.0) + seconds

    def doing(what: str) -> None:
        if on_progress is not None:
            counts = [(each.result.trials, each.result.failed) for each in tuned if each.result is not None]
            count, failed = (sum(each) for each in zip(*counts, strict=True)) if counts else (0, 0)
            latency = shared.curve[-1][1] if shared.curve else None
            on_progress(Progress(count, failed, latency, clock.perf_counter() - begin, budget, what))

    doing("compiling")
    start = clock.perf_counter()
    makers = _makers(tuned, machine, sketches, max_error)
    chosen: dict[int, Choice] = {index: maker.chosen for index, maker in makers.items()}
    provenance = {
        "search": search,
        "seed": seed,
        "trials": sum(each.result.trials for each in tuned if each.result),
        "versions": {name: packages.version(name) for name in ("apache-tvm", "apache-tvm-ffi", "numpy", "onnx")},
    }
    work = {each.task.index: Work(each.workload.flops, each.workload.bytes) for each in tuned if each.workload}
    if shapes:
        provenance["shapes"] = {name: list(shape) for name, shape in shapes.items()}
    if isinstance(model, str | Path):
        provenance |= {"source": str(Path(model).resolve()), "sha256": checksum(Path(model))}

    def made(choices: Mapping[int, Choice]) -> CompiledModel:
        variants = {index: makers[index].variant(choice) for index, choice in choices.items()}

        def place(index: int, where: Place) -> Variant:
            return makers[index].variant(choices[index], where)

        # Only our own sketches promise the same configurations for a slice of a wider output.
        own = sketches in (None, "builtin")
        return build(graph, variants, machine, place=place if own else None, provenance=provenance, work=work)

    first = compiled = made(chosen)
    untuned: CompiledModel | None = None
    final = chosen
    taken = clock.perf_counter() - start
    try:
        if not interrupted:
            forms = lineups(tuned, chosen, {index: maker.default for index, maker in makers.items()})
            left = granted.after(_CHECKS)
            rounds = finals.rounds([_INSIDE * _once(first, reference.feeds)], _INSIDE_SHARE * left)
            # Each further form, and the final one, take about as long to compile as the first.
            fitting = (1 - _INSIDE_SHARE) * left / taken - 1
            forms = forms[: 1 + max(0, math.floor(min(fitting, len(forms))))]
            if len(forms) > 1:
                doing("finalists inside the model")
                others = [made(form) for form in forms[1:]]
                untuned = others[0]
                final, compiled = fastest_inside(forms, [first, *others], made, reference.feeds, rounds)
    except KeyboardInterrupt:
        interrupted, final, compiled, untuned = True, chosen, first, None
    inside = [each.task.name for each in tuned if final.get(each.task.index) != chosen.get(each.task.index)]
    phases["compile"] = clock.perf_counter() - start
    doing("verifying")
    start = clock.perf_counter()
    checked = reference.check(compiled)
    if not checked.max_error < WRONG_FROM:
        raise ModelError(
            f"{graph.name}: the compiled model is wrong and was not saved: its error against {checked.against} is "
            f"{checked.max_error:.1e}, and must be below {WRONG_FROM:.0e}"
        )
    phases["verify"] += clock.perf_counter() - start
    compiled.metadata = replace(
        compiled.metadata,
        provenance={
            **provenance,
            "verified": {"max_error": checked.max_error, "against": checked.against},
            "schedules": [
                {"task": each.task.name, "workload": each.workload.key, "sketch": sketch, "config": dict(config)}
                for each in tuned
                if each.workload is not None and each.task.index in final
                for sketch, config in [final[each.task.index]]
            ],
        },
    )
    artifact = None if out is None else compiled.save(out, native)
    start = clock.perf_counter()
    latency, *default = _latencies([compiled] if untuned is None else [compiled, untuned], reference.feeds)
    phases["latency"] = clock.perf_counter() - start
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
        curve=shared.curve,
        inside=inside,
        interrupted=interrupted,
    )


class _Maker:
    """Makes the schedules of a task, alone or writing into a slice of a wider output.

    `chosen` is what its tuning found, else the default; `default` the latter, or what was found where it was tried and
    does not work.
    """

    def __init__(self, tuned: TunedTask, target: Target, sketches: str | None, max_error: float | None) -> None:
        assert tuned.workload is not None
        self._workload, self._target = tuned.workload, target
        found = sketches_for(tuned.workload, target, sketches, MAX_ERROR if max_error is None else max_error)
        self._sketches = {sketch.name: sketch for sketch, _ in found}
        space = found[0][1]
        self.default: Choice = (space.name, space.config(space.origin))
        self.chosen: Choice = self.default
        if tuned.result is not None and tuned.result.best is not None:
            self.chosen = (tuned.result.best.sketch, tuned.result.best.config)
            if tuned.result.default_failed:
                self.default = self.chosen

    def variant(self, choice: Choice, where: Place | None = None) -> Variant:
        """The schedule of a choice."""
        workload = self._workload if where is None else self._workload.placed(where.offset, where.total)
        sketch, config = choice
        return self._sketches[sketch].apply(workload, self._target, config)


def _makers(
    tuned: Sequence[TunedTask], target: Target, sketches: str | None, max_error: float | None
) -> dict[int, _Maker]:
    """By task. One for which nothing was found, and whose default schedule is none, gets a plain schedule."""
    makers = {each.task.index: _Maker(each, target, sketches, max_error) for each in tuned if each.workload is not None}
    for each in tuned:
        if each.workload is not None:
            try:
                makers[each.task.index].variant(makers[each.task.index].default)
            except SpaceError:  # of MetaSchedule's, which promises nothing
                maker = makers[each.task.index]
                if maker.chosen == maker.default:
                    del makers[each.task.index]
                maker.default = maker.chosen
    return makers


def _once(model: CompiledModel, feeds: Feeds) -> float:
    """Seconds of an execution."""
    model.run(feeds)  # loads code and memory
    start = clock.perf_counter()
    model.run(feeds)
    return clock.perf_counter() - start


def _latencies(models: Sequence[CompiledModel], feeds: Feeds) -> list[Interval]:
    """Seconds per call of a few models, in turns, alone on the machine."""
    turns = [2 * _once(model, feeds) for model in models]
    found: list[list[float]] = [[] for _ in models]
    with closing(MachineLock()) as lock, lock.exclusive():
        for _ in range(finals.rounds(turns, _LATENCY_SECONDS)):
            for model, times in zip(models, found, strict=True):
                # The first one brings back what the other model's weights have driven from the caches.
                times.append(_once(model, feeds))
    return [median_interval(times) for times in found]


def _timing(interval: Interval) -> dict[str, Any]:
    return {"seconds": interval.estimate, "interval": [interval.low, interval.high]}
