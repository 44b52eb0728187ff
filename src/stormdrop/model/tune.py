"""`tune_model`: import, tune, choose, verify, save.

model -> graph of tasks -> tuned tasks -> the fastest combination of schedules -> verified, saved, timed
"""

from __future__ import annotations

import logging
import math
import time as clock
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .. import events
from ..errors import InputError, LockTimeout
from ..machine.cpu import Target, keeping_denormals
from ..machine.fleet_identity import identify
from ..machine.foreign_load import LoadWatch, read_counters
from ..machine.lock import MachineLock
from ..machine.peak import peak_within
from ..measure.fleet import Fleet, fleet_for
from ..measure.timing import FEWEST_ROUNDS, rounds_within
from ..records import Store, buffered, open_store
from ..statistics import Interval, median_interval, ratio_interval
from ..tuning.options import DEFAULT_MODEL_SECONDS, DEFAULT_SEARCH, TuneOptions
from ..tuning.result import Progress
from .artifact import CompiledModel, needs_linker
from .artifact_files import beside_older, check_writable
from .budget import Budget
from .builder import ModelBuilder, provenance_of, source_of
from .importer.any_model import Model, import_model
from .importer.combinations import GivenShapes
from .phases import timed
from .profile import ForeignTime, Profile, foreign_times, profile
from .repair import verified_or_repaired
from .result import ModelResult
from .saving import Verifier
from .scheduler import tune_tasks
from .selection import MAX_COMBINATIONS, Choice, combinations_to_compare, fastest_combination
from .sized_result import size_results
from .tuned_task import TunedTasks
from .tuning_file import add_tuning, tuning_document
from .verification.references import with_references
from .verify import Feeds

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_CHECKS = 0.05  # of a time budget: verification and the last timing
_LOCK_SECONDS = 2.0  # that the machine is waited for before the last timing, even if no time is left
_LATENCY_SECONDS = 5.0  # of the last timing, at most, except for very slow models
_PROFILE_SECONDS = 0.5  # of the timing of the kernels inside the model, at most, except for slow models
_EXECUTIONS = 2 * (MAX_COMBINATIONS + 2)  # of models per round, to find out which combination is the fastest
_COMPARING = 0.3  # of the time that is left for the choice; the rest is for compiling


def tune_model(
    model: Model,
    *,
    example_inputs: Any = None,
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
    features: str = "knobs",
    shapes: GivenShapes | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    out: str | Path | None = None,
    native: bool = False,
    keep_denormals: bool = False,
    fleet: Fleet | str | None = None,
) -> ModelResult:
    """Tunes every kernel of a model, compiles the model and verifies it.

    The budget is shared out to the kernels as `scheduler` says. What the store knows is taken from there and costs
    nothing of the budget. A kernel for which nothing is left has its default schedule. In the end, finalists that are
    faster inside the model than the winner take its place, as far as the time allows. Ctrl-C ends the tuning; what was
    found so far is compiled. A schedule with which the model is wrong is replaced by one that only reorders.

    Args:
        model: an ONNX file or a loaded ONNX model; a `torch.nn.Module`, which is tuned for inference; a
            `torch.export.ExportedProgram`; or a Relax `tvm.IRModule`, whose function `main` is the model.
        example_inputs: the inputs of a torch module: a tuple of its positional arguments, or a mapping of those that it
            takes by name. Their values do not matter, their shapes and types do.
        target: the CPU to tune for; this machine by default.
        search: the name of the search.
        options: options of the search, by name.
        trials: the most distinct candidates to measure, over all kernels.
        time: the most wall time with import, compilation and verification in it, in seconds or as "3m". Without
            `trials` and `time` it is 10 minutes.
        seed: the seed of everything that is random.
        store: where records are kept; the user's own database by default.
        resume: continue the latest unfinished sessions of the same kernels and setting.
        fresh: ignore all records.
        max_error: as in `tune`, for every kernel.
        sketches: as in `tune`, for every kernel.
        features: as in `tune`, for every kernel. With "statements", the kernels share one cost model in
            `evolutionary` with `preset="paper"` and in what is built on it, as in Ansor.
        shapes: the sizes of inputs that the model leaves open, by the input's name. In the place of a size there may be
            several, as in `{"x": ((1, 4, 8), 3, 224, 224)}` or with `range(32, 385, 32)`: the model then runs at each.
        on_progress: is called with a `Progress` of the whole model.
        out: the folder to save the model to. If it holds an older model and Ctrl-C ends the tuning, the model is saved
            beside it; the result's `artifact` says where.
        native: save machine code in place of LLVM bitcode; see `CompiledModel.save`.
        keep_denormals: as in `tune`, for every kernel.
        fleet: machines to measure kernels on, as in `tune`. They have to be of this machine's kind, because the whole
            model is built and timed here.

    Raises:
        ModelError: the model cannot be imported or verified, or its compiled form is wrong with exact schedules, too;
            see `verify`.
        InputError: a setting is bad.
        ArtifactError: nothing can be saved at `out`. This is checked before the tuning, too.

    Example:
        ```python
        model = sd.tune_model("resnet50.onnx", time="3m", out="resnet50.sd").model
        outputs = model(images)
        ```
    """
    given = TuneOptions.of(
        search=search,
        options=options,
        trials=trials,
        time=time,
        seed=seed,
        resume=resume,
        fresh=fresh,
        max_error=max_error,
        sketches=sketches,
        features=features,
    )
    with fleet_for(fleet) as leased:
        return tune_model_with(
            model,
            keeping_denormals(target) if keep_denormals else target,
            given,
            example_inputs=example_inputs,
            store=store,
            shapes=shapes,
            on_progress=on_progress,
            out=out,
            native=native,
            fleet=leased,
        )


def tune_model_with(
    model: Model,
    target: Target | None,
    options: TuneOptions,
    *,
    example_inputs: Any = None,
    store: Store | None = None,
    shapes: GivenShapes | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    out: str | Path | None = None,
    native: bool = False,
    fleet: Fleet | None = None,
) -> ModelResult:
    """`tune_model` with its options as one value."""
    if fleet is not None and fleet.identity != (here := identify()):
        raise InputError(
            f"a model is built and timed on this machine, which is of another kind than its fleet: {here.kind} here, "
            f"{fleet.identity.kind} there"
        )
    run = _Run(clock.perf_counter(), options.budget(DEFAULT_MODEL_SECONDS), on_progress)
    machine = target or Target.detect()
    if out is not None:
        check_writable(Path(out))
    if native:
        needs_linker()
    with run.phase("import"):
        source = source_of(model)
        graph = import_model(model, shapes, example_inputs)
    with run.phase("verify"):
        # Before anything is tuned: a model that cannot be verified is not worth it.
        graph, references = with_references(graph, options.seed)
        feeds = [reference.feeds for reference in references]
    with run.phase("peak"):
        peak_within(machine, run.seconds)  # results are compared with it
    budget = Budget(options.trials, run.seconds, run.begin)
    with (
        open_store(None) if store is None else nullcontext(store) as opened,
        buffered(opened) as records,
        events.span("tune", "phases", model=graph.name, kernels=len(graph.tasks)),
    ):
        tuned = tune_tasks(graph, machine, options, budget, records, on_progress, fleet)
    run.add(tuned)
    for task in tuned.tasks:
        if task.reason is not None:
            _logger.info("%s: %s", task.task.name, task.reason)
    with run.phase("compile"):
        builder = ModelBuilder(graph, tuned.tasks, machine, options, provenance_of(source, shapes, options, tuned))
        chosen = _choose(builder, tuned, budget, feeds, run)
    # What an interrupted tuning found does not replace an older model, which may be better.
    keeps_older = beside_older(Path(out)) if out is not None and run.interrupted else nullcontext(out)
    with run.phase("verify"), keeps_older as place:
        run.say("verifying")
        right = Verifier(builder, references, place, native, options.seed)
        verified = run.despite_interruption(
            lambda: verified_or_repaired(graph, builder, chosen.model, chosen.combination, right, run.say)
        )
    with run.phase("latency"):
        models = [verified.model] if chosen.untuned is None else [verified.model, chosen.untuned]
        calls = [(model, of_size) for model in models for of_size in feeds]
        intervals, speedup, disturbed = _latencies(calls, machine.cores, run)
        latencies, untuned = intervals[: len(feeds)], intervals[len(feeds) :]
        foreign = run.despite_interruption(lambda: _foreign_times(verified.model, feeds))
        inside = run.despite_interruption(lambda: _profile(verified.model, feeds[0], run))
    for replacement in verified.replaced:
        _logger.info("replaced, because the model was wrong with it: %s", replacement)
    result = ModelResult(
        model=verified.model,
        name=graph.name,
        target=machine,
        search=options.search,
        seed=options.seed,
        seconds=clock.perf_counter() - run.begin,
        phases=run.phases,
        artifact=right.artifact,
        digest=None if right.artifact is None else verified.model.digest,
        latency=latencies[0],
        untuned=untuned[0] if untuned else None,
        verified=right.last,
        tasks=tuned.tasks,
        curve=tuned.curve,
        inside=chosen.replaced,
        interrupted=run.interrupted,
        replaced=verified.replaced,
        disturbed=disturbed,
        speedup=speedup if untuned else None,
        foreign=foreign,
        sizes=size_results(graph, tuned.tasks, [each.max_error for each in right.by_size], latencies, untuned),
        module=partial(builder.scheduled, verified.combination),
    )
    if right.artifact is None:
        return result
    add_tuning(
        verified.model,
        right.artifact,
        tuning_document(result, builder, verified.combination, options, shapes, inside),
    )
    return replace(result, digest=verified.model.digest)


# The parts of a run


class _Run:
    """The clock of a run: where its time goes, what its user is told, and whether Ctrl-C has ended it."""

    def __init__(self, begin: float, seconds: float | None, on_progress: Callable[[Progress], None] | None) -> None:
        self.begin, self.seconds = begin, seconds
        self.phases: dict[str, float] = {}
        self.interrupted = False
        self._on_progress = on_progress
        self._tuned: TunedTasks | None = None

    @property
    def end(self) -> float:
        """When it should end, a reading of `time.perf_counter`."""
        return math.inf if self.seconds is None else self.begin + self.seconds

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A context whose wall time is counted under this name."""
        return timed(self.phases, name)

    def add(self, tuned: TunedTasks) -> None:
        """Adds the phases of the tasks."""
        self._tuned, self.interrupted = tuned, tuned.interrupted
        for task in tuned.tasks:
            for phase, seconds in task.result.phases.items() if task.result is not None else ():
                self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    def despite_interruption(self, work: Callable[[], T]) -> T:
        """What `work` returns. The first Ctrl-C of the run only begins it anew, so that what was found is saved."""
        try:
            return work()
        except KeyboardInterrupt:
            if self.interrupted:
                raise
            self.interrupted = True
            return work()

    def say(self, message: str) -> None:
        """Tells the user what is done now."""
        _logger.info("%s", message)
        if self._on_progress is not None and self._tuned is not None:
            results = [task.result for task in self._tuned.tasks if task.result is not None]
            trials, failed = sum(result.trials for result in results), sum(result.failed for result in results)
            latency = self._tuned.curve[-1][1] if self._tuned.curve else None
            elapsed = clock.perf_counter() - self.begin
            self._on_progress(Progress(trials, failed, latency, elapsed, self.seconds, message))


# The choice


@dataclass(frozen=True)
class _Chosen:
    """The model with the fastest combination of schedules, and the one with all default schedules, if it was built."""

    model: CompiledModel
    combination: Mapping[int, Choice]
    untuned: CompiledModel | None
    replaced: Sequence[str]


def _choose(builder: ModelBuilder, tuned: TunedTasks, budget: Budget, feeds: Sequence[Feeds], run: _Run) -> _Chosen:
    """Builds the model of all winners and, as far as the time allows, finds out what is faster inside the model."""
    run.say("compiling")
    start = clock.perf_counter()
    winners = builder.winners
    first = run.despite_interruption(lambda: builder.build(winners))
    taken = clock.perf_counter() - start
    alone = _Chosen(first, winners, None, [])
    if run.interrupted:
        return alone
    try:
        combinations = combinations_to_compare(tuned.tasks, winners, builder.defaults)
        left = budget.left_before(_CHECKS)
        seconds = sum(_execution_seconds(first, of_size) for of_size in feeds)
        rounds = rounds_within([_EXECUTIONS * seconds], _COMPARING * left)
        # Each further model, and the final one, take about as long to compile as the first.
        affordable = (1 - _COMPARING) * left / taken - 1
        combinations = combinations[: 1 + max(0, math.floor(min(affordable, len(combinations))))]
        if len(combinations) == 1:
            return alone
        run.say("finalists inside the model")
        others = [builder.build(combination) for combination in combinations[1:]]
        final, model = fastest_combination(combinations, [first, *others], builder.build, feeds, rounds)
    except KeyboardInterrupt:
        run.interrupted = True
        return alone
    replaced = [task.task.name for task in tuned.tasks if final.get(task.task.index) != winners.get(task.task.index)]
    return _Chosen(model, final, others[0], replaced)


# The last timing


def _execution_seconds(model: CompiledModel, feeds: Feeds) -> float:
    model.run(feeds)  # loads code and memory
    start = clock.perf_counter()
    model.run(feeds)
    return clock.perf_counter() - start


def _foreign_times(model: CompiledModel, feeds: Sequence[Feeds]) -> list[ForeignTime]:
    """The times of the parts of all sizes; of a part that several sizes have, that of the first of them."""
    times = {each.part.file: each for of_size in reversed(feeds) for each in foreign_times(model, of_size)}
    return [times[part.file] for part in model.foreign.reports if part.file in times]


def _profile(model: CompiledModel, feeds: Feeds, run: _Run) -> Profile | None:
    """The times of the kernels inside the model; None after Ctrl-C, and if another process keeps the machine."""
    if run.interrupted:
        return None
    until = max(run.end, clock.perf_counter() + _LOCK_SECONDS)
    rounds = rounds_within([3 * _execution_seconds(model, feeds)], _PROFILE_SECONDS)
    with suppress(LockTimeout):
        return profile(model, feeds, rounds, until)
    return None


def _latencies(
    calls: Sequence[tuple[CompiledModel, Feeds]], cores: int, run: _Run
) -> tuple[list[Interval], Interval | None, bool]:
    """Seconds per call of models at their sizes, in turns, alone on the machine.

    Also the time of the first call of the second half over that of the first call, turn by turn (the model with default
    schedules over the tuned one, at the first size), and whether foreign load disturbed it.

    A round that was disturbed is taken again, as often as there are rounds. If another process keeps the machine until
    the run should end, the few rounds that are taken beside it count as disturbed. Ctrl-C ends the timing: what was
    timed by then is what is known, and NaN if it is too little.
    """
    wanted = FEWEST_ROUNDS
    every: list[list[float]] = []
    quiet: list[list[float]] = []
    try:
        watch = LoadWatch(cores)
        wanted = rounds_within([2 * _execution_seconds(model, feeds) for model, feeds in calls], _LATENCY_SECONDS)
        until = max(run.end, clock.perf_counter() + _LOCK_SECONDS)
        with suppress(LockTimeout), closing(MachineLock()) as lock, lock.exclusive(until):
            while len(quiet) < wanted and len(every) < 2 * wanted:
                before = read_counters()
                # The first execution brings back what the other model's weights have driven from the caches.
                every.append([_execution_seconds(model, feeds) for model, feeds in calls])
                if not watch.suspect(read_counters() - before):
                    quiet.append(every[-1])
        while len(every) < FEWEST_ROUNDS:  # another process keeps the machine
            every.append([_execution_seconds(model, feeds) for model, feeds in calls])
    except KeyboardInterrupt:
        run.interrupted = True
    if len(every) < FEWEST_ROUNDS:
        return [Interval(math.nan, math.nan, math.nan)] * len(calls), None, True
    rounds = quiet if len(quiet) >= FEWEST_ROUNDS else every
    times = list(zip(*rounds, strict=True))
    ratio = ratio_interval(times[len(times) // 2], times[0]) if len(times) > 1 else None
    return [median_interval(seconds) for seconds in times], ratio, len(quiet) < wanted
