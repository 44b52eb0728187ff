"""`tune_model`: import, tune, choose, verify, save.

model -> graph of tasks -> tuned tasks -> the fastest combination of schedules -> verified, saved, timed
"""

from __future__ import annotations

import logging
import time as clock
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ... import events
from ...errors import InputError, ModelError
from ...machine.cpu import Cpu, keeping_denormals
from ...machine.limits.kept_measurements import granted
from ...machine.limits.memory_rates import measure_caches_within
from ...machine.limits.peak import peak_within
from ...machine.remote import rpc
from ...measure.fleet.fleet import Fleet, fleet_for
from ...measure.fleet.identity import identify
from ...records import Store, buffered, open_store
from ...report.traces.announcement import announced
from ...sketches.registry import BUILTIN
from ...tuning.options import DEFAULT_MODEL_SECONDS, DEFAULT_SEARCH, FLOAT32, TuneOptions
from ...tuning.result import Progress
from ..artifact.artifact import needs_linker
from ..artifact.artifact_files import beside_older, check_writable
from ..building.board import LEFT_OUT, Board
from ..building.builder import ModelBuilder, provenance_of, source_of
from ..building.repair import verified_or_repaired
from ..building.saving import Verifier
from ..graph.graph import Graph
from ..importer.any_model import Model, import_model
from ..inputs.combinations import GivenShapes
from ..inputs.given import Data
from ..inputs.inputs import Values
from ..passes.attention import with_attention
from ..precision.choice import in_precision
from ..verification.references import with_references
from ..verification.verify import Reference
from .baseline import Baseline, measure_baseline
from .budget import Budget
from .choice import choose
from .latency import choose_parts, inside_profile, latencies, times_of_parts
from .result import ModelResult
from .scheduler import tasks_of, tune_tasks
from .sized_result import size_results
from .tuning_file import add_tuning, tuning_document
from .tuning_run import TuningRun

_logger = logging.getLogger(__name__)


def tune_model(
    model: Model,
    *,
    example_inputs: Any = None,
    target: Cpu | None = None,
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
    samples: Data | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    out: str | Path | None = None,
    native: bool = False,
    precision: str = FLOAT32,
    keep_denormals: bool = False,
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
        target: The CPU to tune for; this machine by default. If it has a runner (`Cpu.with_runner`), the model is
            tuned, verified and timed there, and saved for it; the result's model cannot be run here.
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
        samples: Inputs that have a meaning for the model, by name, several of one input one after the other on its
            first axis. The model is verified and timed on them; all inputs that are not given are drawn.
        on_progress: Is called with a `Progress` of the whole model.
        out: The folder to save the model to. If it holds an older model and Ctrl-C ends the tuning, the model is saved
            beside it; the result's `artifact` says where.
        native: Save machine code in place of LLVM bitcode; see `CompiledModel.save`.
        precision: What the model computes in: "float32"; "bf16", with the factors of all contractions but the last in
            bfloat16 and their sums in float32; or "auto", with those of the most expensive layers, as many as
            `max_error` allows (1e-2 by default). Inputs and outputs stay in float32.
        keep_denormals: As in `tune`, for every kernel.
        fleet: Machines to measure kernels on, as in `tune`. They have to be of this machine's kind, because the whole
            model is built and timed here.

    Raises:
        ModelError: The model cannot be imported or verified, or its compiled form is wrong with exact schedules, too;
            see `verify`.
        InputError: A setting is bad, or the samples are none of the model's inputs.
        ArtifactError: Nothing can be saved at `out`. This is checked before the tuning, too.
        TargetError: The runner does not answer.
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
    name = Path(model).name if isinstance(model, str | Path) else type(model).__name__
    with announced(name, given.budget(DEFAULT_MODEL_SECONDS), trials), fleet_for(fleet) as leased:
        return tune_model_with(
            model,
            keeping_denormals(target) if keep_denormals else target,
            given,
            example_inputs=example_inputs,
            store=store,
            shapes=shapes,
            values=values,
            samples=samples,
            on_progress=on_progress,
            out=out,
            native=native,
            fleet=leased,
        )


def tune_model_with(
    model: Model,
    target: Cpu | None,
    options: TuneOptions,
    *,
    example_inputs: Any = None,
    store: Store | None = None,
    shapes: GivenShapes | None = None,
    values: Values | None = None,
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
    if fleet is not None and fleet.identity != (here := identify()):
        raise InputError(
            f"a model is built and timed on this machine, which is of another kind than its fleet: {here.kind} here, "
            f"{fleet.identity.kind} there"
        )
    run = TuningRun(
        clock.perf_counter() if started is None else started, options.budget(DEFAULT_MODEL_SECONDS), on_progress
    )
    machine = target or Cpu.detect()
    if out is not None:
        check_writable(Path(out))
    if native:
        _check_native(machine)
    if machine.runner:
        rpc.check(machine.runner)
        machine = machine.of_runner()
    with run.phase("import"):
        run.say(f"importing {_title(model)}", checking=True)
        source = source_of(model)
        graph = import_model(model, shapes, example_inputs, values)
        _check_runs(graph, machine)
        graph = with_attention(graph, machine, options)
        graph.foreign.examples = {}
    with run.phase("verify"):
        # Before anything is tuned: a model that cannot be verified is not worth it.
        run.say(f"verifying the import of {len(graph.tasks)} kernels", checking=True)
        graph, references = with_references(graph, options.seed, samples, run.left)
    if graph.foreign.reports:
        with run.phase("race"):
            run.say("timing the parts that onnxruntime runs")
            whole = choose_parts(graph, machine, [reference.feeds for reference in references], run)
        if whole is not graph:
            with run.phase("verify"):
                graph, references = _verified(whole, options.seed, samples, run.left) or (graph, references)
    with run.phase("verify"):
        chosen_precision = in_precision(graph, references, options, machine)
        graph, references = chosen_precision.graph, chosen_precision.references
        feeds = [reference.feeds for reference in references]
        of_kernels = chosen_precision.of_kernels()
    with run.phase("peak"):
        run.say("measuring this machine")
        end = clock.perf_counter() + granted(run.seconds)
        peak_within(machine, granted(run.seconds))  # results are compared with it
        measure_caches_within(machine, end - clock.perf_counter())  # kernels are timed with weights in them, or not
    run.say("making the spaces of schedules")
    with run.phase("records"):
        scheduled = tasks_of(graph, machine, of_kernels, runner_asked=True)
    with run.phase("baseline"):
        before = ModelBuilder(graph, [task.untuned_task() for task in scheduled], machine, of_kernels, {})
        if machine.runner:
            baseline = Baseline(missing="it runs elsewhere")
        elif options.sketches in (None, BUILTIN):
            baseline = measure_baseline(graph, before, machine, feeds, run)
        else:
            baseline = Baseline(missing="only the built-in sketches are sure to run")
        run.untuned, run.peer = baseline.seconds, baseline.peer
        for each in scheduled:
            each.untuned = baseline.by_task.get(each.task.index)
    budget = Budget(options.trials, run.seconds, run.begin, _reserve(baseline, run))
    with (
        open_store(None) if store is None else nullcontext(store) as opened,
        buffered(opened) as records,
        events.span("tune", "phases", model=graph.name, kernels=len(graph.tasks)),
    ):
        tuned = tune_tasks(graph, machine, of_kernels, budget, records, run.report, fleet, scheduled)
    run.add(tuned)
    for task in tuned.tasks:
        if task.reason is not None:
            _logger.info("%s: %s", task.task.name, task.reason)
    with ExitStack() as held:
        board = held.enter_context(Board(machine.runner)) if machine.runner else None
        with run.phase("compile"):
            provenance = {**provenance_of(source, shapes, options, tuned, values), **chosen_precision.provenance}
            builder = ModelBuilder(graph, tuned.tasks, machine, of_kernels, provenance, board)
            chosen = choose(builder, tuned, budget, feeds, run, baseline)
        # What an interrupted tuning found does not replace an older model, which may be better.
        keeps_older = beside_older(Path(out)) if out is not None and run.interrupted else nullcontext(out)
        with run.phase("verify"), keeps_older as place:
            run.say("verifying")
            right = Verifier(builder, references, place, native, options.seed)
            verified = run.despite_interruption(
                lambda: verified_or_repaired(graph, builder, chosen.model, chosen.combination, right, run.say)
            )
            precision = run.despite_interruption(lambda: chosen_precision.report(verified.model))
        with run.phase("latency"):
            run.say("timing the tuned model beside the untuned one")
            models = [verified.model] if chosen.untuned is None else [verified.model, chosen.untuned]
            calls = [(model, of_size) for model in models for of_size in feeds]
            intervals, speedup, disturbed = latencies(calls, machine.cores, run)
            tuned_seconds, untuned = intervals[: len(feeds)], intervals[len(feeds) :]
            foreign = run.despite_interruption(lambda: times_of_parts(verified.model, feeds))
            inside = run.despite_interruption(lambda: inside_profile(verified.model, feeds[0], run))
    run.say_if_late(graph.name)
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
        latency=tuned_seconds[0],
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
        peer=baseline.peer,
        not_compared="" if untuned else baseline.missing,
        sizes=size_results(graph, tuned.tasks, [each.max_error for each in right.by_size], tuned_seconds, untuned),
        module=partial(builder.scheduled, verified.combination),
        left_out=LEFT_OUT if machine.runner else (),
        precision=precision,
    )
    if right.artifact is None:
        return result
    add_tuning(
        verified.model,
        right.artifact,
        tuning_document(result, builder, verified.combination, options, shapes, inside, values),
    )
    return replace(result, digest=verified.model.digest)


def _title(model: Model) -> str:
    """What is imported, in a word."""
    return Path(model).name if isinstance(model, str | Path) else "the model"


def _reserve(baseline: Baseline, run: TuningRun) -> float:
    """Seconds that what comes after the tuning is expected to take: another build, and the shorter verification."""
    return 0.0 if baseline.model is None else baseline.build_seconds + run.phases["verify"] / 2


def _verified(
    whole: Graph, seed: int, samples: Data | None, seconds: float | None = None
) -> tuple[Graph, list[Reference]] | None:
    """A model of which onnxruntime runs everything, and its references; None if it cannot be verified."""
    try:
        return with_references(whole, seed, samples, seconds)
    except ModelError as error:
        _logger.warning("%s; onnxruntime runs the parts of the model that it has to run", error)
        return None


def _check_native(machine: Cpu) -> None:
    """Raises `InputError` or `ArtifactError` if no native model can be saved for a machine."""
    if machine.runner:
        raise InputError(
            f"a native model is linked on the machine that it is for, not here for {machine.name}: leave native out, "
            f"load the model there and save it with native=True"
        )
    needs_linker()


def _check_runs(graph: Graph, machine: Cpu) -> None:
    """Raises `ModelError` if a model cannot be verified and timed on the machine that it is for."""
    if machine.runner and graph.foreign.reports:
        operators = sorted({name for part in graph.foreign.reports for name in part.operators})
        raise ModelError(
            f"{graph.name}: onnxruntime runs {', '.join(operators)}, and TVM's server at {machine.runner} has none: "
            f"tune the model on that machine itself"
        )
