"""`tune_model`: import, tune, choose, verify, save.

model -> graph of tasks -> tuned tasks -> the fastest combination of schedules -> verified, saved, timed
"""

from __future__ import annotations

import logging
import time as clock
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ... import events
from ...codegen.cuda import check_nvcc
from ...errors import InputError, TargetError
from ...machine.contract import Machine
from ...machine.cpu import Cpu, keeping_denormals
from ...machine.gpu import Gpu, for_architectures
from ...machine.limits.kept_measurements import granted
from ...machine.limits.memory_rates import measure_caches_within
from ...machine.limits.peak import peak_within
from ...machine.remote import rpc
from ...measure.fleet.fleet import Fleet, fleet_for
from ...measure.fleet.identity import identify
from ...records import Store, buffered, open_store
from ...report.traces.announcement import announced
from ...sketches.registry import BUILTIN
from ...statistics import Interval
from ...tuning.options import DEFAULT_MODEL_SECONDS, DEFAULT_SEARCH, FLOAT32, TuneOptions
from ...tuning.result import Progress
from ..artifact.artifact import CompiledModel
from ..artifact.artifact_files import beside_older, check_writable
from ..building.board import LEFT_OUT, Board
from ..building.builder import ModelBuilder, provenance_of
from ..building.repair import Verified, verified_or_repaired
from ..building.saving import Verifier, check_native
from ..building.tuned_task import TunedTasks
from ..graph.graph import Graph
from ..importer.any_model import Model
from ..inputs.combinations import GivenShapes
from ..inputs.given import Data
from ..inputs.inputs import Values
from ..inputs.open_range import check_range, has_range
from ..precision.choice import PrecisionReport
from ..profile import PartTime, Profile
from ..states.declared import Declared
from .baseline import Baseline, measure_baseline
from .budget import Budget
from .choice import Chosen, choose
from .imported import Imported, imported
from .latency import inside_profile, latencies, times_of_parts
from .result import ModelResult
from .scheduler import tasks_of, tune_tasks
from .sized_result import size_results
from .task_state import ScheduledTask
from .tuning_file import add_tuning, tuning_document
from .tuning_run import TuningRun

_logger = logging.getLogger(__name__)


def tune_model(
    model: Model,
    *,
    example_inputs: Any = None,
    target: Machine | None = None,
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
    transfer: bool = True,
    features: str = "knobs",
    shapes: GivenShapes | None = None,
    values: Values | None = None,
    state: Declared | None = None,
    samples: Data | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    out: str | Path | None = None,
    native: bool = False,
    precision: str = FLOAT32,
    keep_denormals: bool = False,
    architectures: str | Sequence[str] = (),
    fleet: Fleet | str | None = None,
) -> ModelResult:
    """Tunes every kernel of a model, compiles the model and verifies it.

    The budget is shared out to the kernels as `scheduler` says. What the store knows is taken from there and costs
    nothing of the budget. A kernel for which nothing is left has its default schedule. In the end, finalists that are
    faster inside the model than the winner take its place, as far as the time allows. Ctrl-C ends the tuning; what was
    found so far is compiled. A schedule with which the model is wrong is replaced by one that only reorders.

    Args:
        model: An ONNX file or a loaded ONNX model; a `torch.nn.Module`, which is tuned for inference; a
            `torch.export.ExportedProgram`; or a Relax `tvm.IRModule`, whose function `main` is the model.
        example_inputs: The inputs of a torch module: a tuple of its positional arguments, or a mapping of those that it
            takes by name. Their values do not matter, their shapes and types do.
        target: The machine to tune for: this machine's CPU by default, or a GPU (`stormdrop.parse_machine`). If a CPU
            has a runner (`Cpu.with_runner`), the model is tuned, verified and timed there, and saved for it; the
            result's model cannot be run here.
        search: The name of the search.
        options: Options of the search, by name.
        trials: The most distinct candidates to measure, over all kernels.
        time: The most wall time with import, compilation and verification in it, in seconds or as "3m". Without
            `trials` and `time` it is 10 minutes.
        seed: The seed of everything that is random.
        store: Where records are kept; the user's own database by default.
        resume: Continue the latest unfinished sessions of the same kernels and setting.
        fresh: Ignore all records.
        max_error: As in `tune`, for every kernel; with `precision="auto"` the error of the model's outputs.
        sketches: As in `tune`, for every kernel.
        transfer: As in `tune`, for every kernel.
        features: As in `tune`, for every kernel. With "statements", the kernels share one cost model in
            `evolutionary` with `preset="paper"` and in what is built on it, as in Ansor.
        shapes: The sizes of inputs that the model leaves open, by the input's name. In the place of a size there may be
            several, as in `{"x": ((1, 4, 8), 3, 224, 224)}` or with `range(32, 385, 32)`: the model then runs at each.
        values: The values of inputs that are fixed, by the input's name, as in `{"axes": [1]}`: the compiled model no
            longer takes these inputs. An input of an ONNX model whose value decides a shape has to be fixed.
        state: Which outputs of a decoder are inputs of its next step, as in `{"present.*": "past_key_values.*"}`; by
            default their names say it. Such a cache is written in place; see `Decoder`.
        samples: Inputs that have a meaning for the model, by name, several of one input one after the other on its
            first axis. The model is verified and timed on them; all inputs that are not given are drawn.
        on_progress: Is called with a `Progress` of the whole model.
        out: The folder to save the model to. If it holds an older model and Ctrl-C ends the tuning, the model is saved
            beside it; the result's `artifact` says where.
        native: Save machine code in place of LLVM bitcode; see `CompiledModel.save`.
        precision: What the model computes in: "float32"; "bf16", with the factors of all contractions but the last in
            bfloat16 and their sums in float32; "fp16", with them in float16 (NVIDIA's GPUs only); "tf32", with those
            of products and convolutions that tensor cores take rounded to TF32 (NVIDIA's GPUs since sm_80); or "auto",
            in bfloat16 with those of the most expensive layers, as many as `max_error` allows (1e-2 by default). Inputs
            and outputs stay in float32.
        keep_denormals: As in `tune`, for every kernel.
        architectures: Other architectures of NVIDIA's GPUs that the kernels are compiled for, too, as in
            `"sm_86,sm_90+ptx"` or `("sm_86", "sm_90+ptx")`: with "+ptx" also as PTX, which the driver of that and of
            every newer GPU compiles when the model is loaded. The schedules are those for the target.
        fleet: Machines to measure kernels on, as in `tune`. They have to be of this machine's kind, because the whole
            model is built and timed here.

    Raises:
        ModelError: The model cannot be imported or verified, or its compiled form is wrong with exact schedules, too;
            see `verify`.
        InputError: A setting is bad, or the samples are none of the model's inputs.
        ArtifactError: Nothing can be saved at `out`. This is checked before the tuning, too.
        TargetError: The runner does not answer; or the target is a GPU that is not here, or that no `nvcc` here
            compiles for, or it has no such architectures.
        MeasureError: The runner is lost before the model is verified there.

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
        transfer=transfer,
        features=features,
        precision=precision,
    )
    machine = keeping_denormals(target) if keep_denormals else target
    machine = for_architectures(machine, architectures) if architectures else machine
    name = Path(model).name if isinstance(model, str | Path) else type(model).__name__
    with announced(name, given.budget(DEFAULT_MODEL_SECONDS), trials), fleet_for(fleet) as leased:
        return tune_model_with(
            model,
            machine,
            given,
            example_inputs=example_inputs,
            store=store,
            shapes=shapes,
            values=values,
            state=state,
            samples=samples,
            on_progress=on_progress,
            out=out,
            native=native,
            fleet=leased,
        )


def tune_model_with(
    model: Model,
    target: Machine | None,
    options: TuneOptions,
    *,
    example_inputs: Any = None,
    store: Store | None = None,
    shapes: GivenShapes | None = None,
    values: Values | None = None,
    state: Declared | None = None,
    samples: Data | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    out: str | Path | None = None,
    native: bool = False,
    started: float | None = None,
    fleet: Fleet | None = None,
) -> ModelResult:
    """`tune_model` with its options as one value.

    `started` says when its time began, a reading of `time.perf_counter`; now by default.
    """
    _check_fleet(fleet)
    run = TuningRun(
        clock.perf_counter() if started is None else started, options.budget(DEFAULT_MODEL_SECONDS), on_progress
    )
    machine = _ready(target, out, native)
    check_range(shapes, machine, native)
    given = imported(
        model,
        machine,
        options,
        run,
        example_inputs=example_inputs,
        shapes=shapes,
        values=values,
        state=state,
        samples=samples,
    )
    job = _Job(given, machine, options, run, shapes, values, state, out, native)
    _measure(machine, run)
    tasks = _tasks(job)
    baseline = _baseline(job, tasks)
    build_seconds = None if baseline.model is None else baseline.build_seconds
    # The references are there when it is verified again, so that it takes half as long.
    budget = Budget(options.trials, run.seconds, run.begin, build_seconds, run.phases["verify"] / 2)
    tuned = _tuned(job, tasks, budget, store, fleet)
    final = _final(job, tuned, budget, baseline)
    run.say_if_late(given.graph.name)
    return _documented(_result(job, tuned, baseline, final), job, final)


# The steps, in their order


@dataclass(frozen=True, eq=False)
class _Job:
    """What the steps of a tuning share.

    Attributes:
        imported: The model.
        machine: The machine that it is tuned for.
        options: How it is tuned.
        run: Its clock.
        shapes: The sizes that were given for inputs that the model leaves open.
        values: The values that were given for inputs that are fixed.
        state: The states that were declared.
        out: The folder to save it to; None if it is not to be saved.
        native: Whether machine code is saved.
    """

    imported: Imported
    machine: Machine
    options: TuneOptions
    run: TuningRun
    shapes: GivenShapes | None
    values: Values | None
    state: Declared | None
    out: str | Path | None
    native: bool

    @property
    def graph(self) -> Graph:
        """The model."""
        return self.imported.graph

    @property
    def of_kernels(self) -> TuneOptions:
        """How its kernels are tuned."""
        return self.imported.precision.of_kernels()


@dataclass(frozen=True, eq=False)
class _Timing:
    """What the model takes in the end, at each of its sizes.

    Attributes:
        tuned: Seconds of an execution.
        untuned: The same with default schedules; empty if that model was not built.
        speedup: The second over the first, at the first size; None if they were not compared.
        disturbed: Whether other load disturbed the timing.
        parts: The parts that onnxruntime runs.
        inside: The kernels inside the model; None if they were not timed.
    """

    tuned: Sequence[Interval]
    untuned: Sequence[Interval]
    speedup: Interval | None
    disturbed: bool
    parts: Sequence[PartTime]
    inside: Profile | None


@dataclass(frozen=True, eq=False)
class _Final:
    """The model that a tuning has led to.

    Attributes:
        builder: Has built it.
        chosen: The fastest combination of schedules.
        verified: The model with its combination, which differs from that if the model was wrong with it.
        verifier: How exact it is, and where it was saved.
        precision: What its precision costs; None if it is in float32.
        timing: What it takes.
    """

    builder: ModelBuilder
    chosen: Chosen
    verified: Verified
    verifier: Verifier
    precision: PrecisionReport | None
    timing: _Timing


def _check_fleet(fleet: Fleet | None) -> None:
    """Raises `InputError` if the machines of a fleet are of another kind than this one."""
    if fleet is not None and fleet.identity != (here := identify()):
        raise InputError(
            f"a model is built and timed on this machine, which is of another kind than its fleet: {here.kind} here, "
            f"{fleet.identity.kind} there"
        )


def _ready(target: Machine | None, out: str | Path | None, native: bool) -> Machine:
    """The machine as it is there. Raises what would prevent that the model is saved or measured, before the work."""
    machine = target or Cpu.detect()
    if out is not None:
        check_writable(Path(out))
    if native:
        _check_native(machine)
    if isinstance(machine, Gpu):
        _check_gpu(machine)
    elif isinstance(machine, Cpu) and machine.runner:
        rpc.check(machine.runner)
        machine = machine.of_runner()
    return machine


def _check_gpu(machine: Gpu) -> None:
    """Raises `TargetError` if models cannot be tuned for a GPU from here."""
    if machine.runner:
        raise TargetError(
            f"target {machine.name}: a model is built and timed where its GPU is, not through the runner at"
            f" {machine.runner}: tune it on that machine, or tune its operators with tune-op"
        )
    try:
        machine.machine  # noqa: B018  raises
    except TargetError as error:
        raise TargetError(f"{error}; stormdrop compile makes a model for it without measuring") from None
    check_nvcc(machine)


def _check_native(machine: Machine) -> None:
    """Raises `InputError` or `ArtifactError` if no native model can be saved for a machine."""
    check_native(machine)
    if machine.runner:
        raise InputError(
            f"a native model is linked on the machine that it is for, not here for {machine.name}: leave native out, "
            f"load the model there and save it with native=True"
        )


def _measure(machine: Machine, run: TuningRun) -> None:
    """Measures what is not known of the machine, as far as that is a small part of the run's time."""
    with run.phase("peak"):
        run.say("measuring this machine")
        end = clock.perf_counter() + granted(run.seconds)
        peak_within(machine, granted(run.seconds))  # results are compared with it
        if isinstance(machine, Cpu):
            measure_caches_within(machine, end - clock.perf_counter())  # kernels are timed with weights in them, or not


def _tasks(job: _Job) -> list[ScheduledTask]:
    """The kernels of the model, each with its spaces."""
    job.run.say("making the spaces of schedules")
    with job.run.phase("records"):
        return tasks_of(job.graph, job.machine, job.of_kernels, runner_asked=True)


def _baseline(job: _Job, tasks: Sequence[ScheduledTask]) -> Baseline:
    """The model with default schedules, timed. Each task is told what its calls take there."""
    run, machine = job.run, job.machine
    with run.phase("baseline"):
        if machine.runner:
            baseline = Baseline(missing="it runs elsewhere")
        elif job.options.sketches in (None, BUILTIN):
            before = ModelBuilder(job.graph, [task.untuned_task() for task in tasks], machine, job.of_kernels, {})
            baseline = measure_baseline(job.graph, before, machine, job.imported.feeds, run)
        else:
            baseline = Baseline(missing="only the built-in sketches are sure to run")
        run.untuned, run.peer = baseline.seconds, baseline.peer
        for task in tasks:
            task.untuned = baseline.by_task.get(task.task.index)
    return baseline


def _tuned(
    job: _Job, tasks: Sequence[ScheduledTask], budget: Budget, store: Store | None, fleet: Fleet | None
) -> TunedTasks:
    """The kernels with what their tuning has found."""
    graph, run = job.graph, job.run
    with (
        open_store(None) if store is None else nullcontext(store) as opened,
        buffered(opened) as records,
        events.span("tune", "phases", model=graph.name, kernels=len(graph.tasks)),
    ):
        tuned = tune_tasks(graph, job.machine, job.of_kernels, budget, records, run.report, fleet, tasks)
    run.add(tuned)
    for task in tuned.tasks:
        if task.reason is not None:
            _logger.info("%s: %s", task.task.described, task.reason)
    return tuned


def _final(job: _Job, tuned: TunedTasks, budget: Budget, baseline: Baseline) -> _Final:
    """Builds the model with the fastest schedules, verifies and saves it, and times it."""
    run, options, precision = job.run, job.options, job.imported.precision
    with Board(job.machine.runner) if job.machine.runner else nullcontext() as board:
        with run.phase("compile"):
            provenance = provenance_of(job.imported.source, job.shapes, options, tuned, job.values, job.state)
            provenance |= precision.provenance
            ranges = job.shapes if has_range(job.shapes) else None
            builder = ModelBuilder(
                job.graph, tuned.tasks, job.machine, job.of_kernels, provenance, board, ranges=ranges
            )
            chosen = choose(builder, tuned, budget, job.imported.feeds, run, baseline)
        # What an interrupted tuning found does not replace an older model, which may be better.
        keeps_older = beside_older(Path(job.out)) if job.out is not None and run.interrupted else nullcontext(job.out)
        with run.phase("verify"), keeps_older as place:
            run.say("verifying")
            right = Verifier(builder, job.imported.references, place, job.native, options.seed, ranges is not None)
            verified = run.despite_interruption(
                lambda: verified_or_repaired(job.graph, builder, chosen.model, chosen.combination, right, run.say)
            )
            report = run.despite_interruption(lambda: precision.report(verified.model))
        with run.phase("latency"):
            timing = _timing(job, verified.model, chosen.untuned)
    for replacement in verified.replaced:
        _logger.info("replaced, because the model was wrong with it: %s", replacement)
    return _Final(builder, chosen, verified, right, report, timing)


def _timing(job: _Job, model: CompiledModel, plain: CompiledModel | None) -> _Timing:
    """Times the tuned model beside the one with default schedules, if that was built."""
    run, feeds = job.run, job.imported.feeds
    run.say("timing the tuned model beside the untuned one")
    models = [model] if plain is None else [model, plain]
    calls = [(each, of_size) for each in models for of_size in feeds]
    intervals, speedup, disturbed = latencies(calls, job.machine.cores, run)
    tuned, untuned = intervals[: len(feeds)], intervals[len(feeds) :]
    parts = run.despite_interruption(lambda: times_of_parts(model, feeds))
    inside = run.despite_interruption(lambda: inside_profile(model, feeds[0], run))
    return _Timing(tuned, untuned, speedup if untuned else None, disturbed, parts, inside)


def _result(job: _Job, tuned: TunedTasks, baseline: Baseline, final: _Final) -> ModelResult:
    """What the tuning returns."""
    run, options, timing, verified, right = job.run, job.options, final.timing, final.verified, final.verifier
    errors = [each.max_error for each in right.by_size]
    return ModelResult(
        model=verified.model,
        name=job.graph.name,
        target=job.machine,
        search=options.search,
        seed=options.seed,
        seconds=clock.perf_counter() - run.begin,
        phases=run.phases,
        artifact=right.artifact,
        digest=None if right.artifact is None else verified.model.digest,
        latency=timing.tuned[0],
        untuned=timing.untuned[0] if timing.untuned else None,
        verified=right.last,
        tasks=[
            replace(task, default_inside=final.builder.default_inside(task.task.index, verified.combination))
            for task in tuned.tasks
        ],
        curve=tuned.curve,
        inside=final.chosen.replaced,
        interrupted=run.interrupted,
        replaced=verified.replaced,
        disturbed=timing.disturbed,
        speedup=timing.speedup,
        foreign=timing.parts,
        peer=baseline.peer,
        not_compared="" if timing.untuned else baseline.missing,
        sizes=size_results(job.graph, tuned.tasks, errors, timing.tuned, timing.untuned),
        module=partial(final.builder.scheduled, verified.combination),
        left_out=LEFT_OUT if job.machine.runner else (),
        precision=final.precision,
    )


def _documented(result: ModelResult, job: _Job, final: _Final) -> ModelResult:
    """The result, after its document was added to the folder of the model, if there is one: its digest covers it."""
    if result.artifact is None:
        return result
    model, combination = final.verified.model, final.verified.combination
    document = tuning_document(
        result, final.builder, combination, job.options, job.shapes, final.timing.inside, job.values
    )
    add_tuning(model, result.artifact, document)
    return replace(result, digest=model.digest)
