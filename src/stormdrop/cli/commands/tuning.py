"""`stormdrop tune-op` and `stormdrop tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import OperatorError, StormdropError, TargetError
from ...machine.process.child_process import prepare
from ...report.headline import headline, kernel_headline, never_tuned
from ...report.layer_label import label_of
from ...report.search_end import IN_WORDS, end_of
from ...tuning.options import DEFAULT_MODEL_SECONDS, DEFAULT_SECONDS, TuneOptions
from .. import completion, options, output
from ..flags import ModelFlags, TuningFlags, spread
from ..options import JsonOption
from ..progress import Reporter
from ..signals import INTERRUPTED
from ..status_line import loading
from ..watching import watched
from .fleet import leased_fleet

if TYPE_CHECKING:
    from ...ir.workload import Workload
    from ...machine.contract import Machine
    from ...records import Store


_COSTLIEST = 15  # kernels that a terminal shows
_LATE = 1.1
"""From this many times its time on, a tuning says that it took longer."""


@spread
def tune_op(
    context: typer.Context,
    operator: Annotated[
        str,
        typer.Argument(
            metavar="OPERATOR", help="For example matmul, conv2d, softmax.", autocompletion=completion.operators
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE...", help="Its arguments: m=512 n=512 k=512.")
    ] = None,
    *,
    flags: TuningFlags,
    show: Annotated[
        list[str] | None,
        typer.Option(
            "--show",
            metavar="schedule|tir",
            help="Also print the schedule of the best kernel with its steps, or its TensorIR; repeatable.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Tune one operator on this machine."""
    tune_options = flags.tune_options()
    shown = options.check_show(show)
    place = flags.place()
    if Path(operator).suffix == ".onnx" or (Path(operator).exists() and not arguments):
        raise OperatorError(f"{operator}: is no operator; `stormdrop tune {operator}` tunes a model")
    values = options.arguments(arguments or ())
    what = " ".join((operator, *(arguments or ())))
    opening = f"tuning {what} {_limit(tune_options, DEFAULT_SECONDS)}"
    with output.stdout_for_json(as_json), _announced(what, context, flags, tune_options.budget(DEFAULT_SECONDS)):
        with loading(opening):
            prepare("stormdrop.measure.worker.worker", here=True)
            from ... import operators
            from ...machine.cpu import keeping_denormals, parse_machine
            from ...tuning.tune import tune_with

            workload = operators.create(operator, values)
            machine = parse_machine(flags.target).with_runner(place)
        with (
            Reporter(flags.trials, opening, context.obj) as report,
            leased_fleet(flags.fleet, flags.device, flags.target) as machines,
            watched(opening, flags.log, flags.trace),
            options.tuning_records(flags.db) as store,
        ):
            machine = machine if machines is None else machines.target
            machine = keeping_denormals(machine) if flags.keep_denormals else machine
            _measurable(workload, machine)
            _say_which_gpus(machine)
            _say_if_nothing_to_resume(store, tune_options, workload.name)
            result = tune_with(
                workload,
                machine,
                tune_options,
                store=store,
                on_progress=report,
                started=context.obj,
                site=machines,
            )
        document = result.to_json()
        texts = {"schedule": result.schedule, "steps": result.steps, "tir": result.tir}
        wanted = [text for word in shown for text in (("schedule", "steps") if word == "schedule" else (word,))]
        extra = {text: texts[text]() for text in wanted} if document.get("best") else {}
    if as_json:
        output.emit({**document, **extra})
    else:
        _print_operator(document, machine, tune_options.seconds)
        for word, text in extra.items():
            print(f"\n# {word}\n{text}")
        if document["best"]:
            output.line(f"\n{document['op']}: {kernel_headline(document)}")
    if result.interrupted:
        return INTERRUPTED
    if result.ended_by:
        raise StormdropError(f"{workload.name}: its search was ended by an error: {result.ended_by}")
    if result.best is None:
        more = "" if result.trials else f": it took {result.seconds:.1f} s to begin; give it more --time"
        raise StormdropError(f"{workload.name}: {result.why_no_best}{more}")
    return 0


@spread
def tune(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The model to tune.")],
    flags: TuningFlags,
    model_flags: ModelFlags,
    as_json: JsonOption = False,
) -> int:
    """Tune every kernel of an ONNX model and save the compiled model."""
    tune_options = flags.tune_options(model_flags.precision)
    given, place = model_flags.of_model(model), flags.place()
    options.check_target(flags.target, model_flags.arch)
    opening = f"tuning {model} {_limit(tune_options, DEFAULT_MODEL_SECONDS)}"
    with (
        output.stdout_for_json(as_json),
        _announced(model.name, context, flags, tune_options.budget(DEFAULT_MODEL_SECONDS)),
        leased_fleet(flags.fleet, flags.device, flags.target) as machines,
    ):
        with loading(opening):
            prepare("stormdrop.model.importer.isolated", "stormdrop.measure.worker.worker", here=True)
            from ...model.tuning.tune import tune_model_with

            machine = options.model_machine(flags.target, flags.keep_denormals, model_flags.arch)
            machine = machine.with_runner(place)
        with (
            Reporter(flags.trials, opening, context.obj) as report,
            watched(opening, flags.log, flags.trace),
            options.tuning_records(flags.db) as store,
        ):
            _say_which_gpus(machine)
            _say_if_nothing_to_resume(store, tune_options)
            result = tune_model_with(
                model,
                machine,
                tune_options,
                store=store,
                on_progress=report,
                started=context.obj,
                fleet=machines,
                **given,
            )
        document = result.to_json()
    if as_json:
        output.emit(document)
    else:
        _print_model(document, given["out"], machine, tune_options.fresh)
    return INTERRUPTED if result.interrupted else 0


def _announced(
    what: str, context: typer.Context, flags: TuningFlags, seconds: float | None
) -> AbstractContextManager[None]:
    """The context of a run that the dashboard shows from now on, before TVM is loaded.

    Args:
        what: What is tuned.
        context: The command's context, which knows when it was given.
        flags: Its options.
        seconds: The wall seconds that it may take.
    """
    from ...records.place import name_of
    from ...report.traces.announcement import announced

    return announced(what, seconds, flags.trials, name_of(flags.db), context.obj)


def _measurable(workload: Workload, machine: Machine) -> None:
    """Raises `TargetError` if the runner does not answer, or if the GPU is not here.

    For a missing GPU the message also says whether kernels for it can be built and compute the right results.
    """
    from ...codegen.gpu_check import cross_check
    from ...machine.contract import CUDA
    from ...machine.remote import rpc

    if machine.runner:
        rpc.check(machine.runner)
    if machine.device == CUDA:
        try:
            machine.machine  # noqa: B018  raises
        except TargetError as error:
            raise TargetError(f"{error}: {cross_check(workload, machine)}") from None


def _say_which_gpus(machine: Machine) -> None:
    """Says on which GPUs is measured, if there are several of the kind."""
    if len(machine.gpus) > 1:
        numbers = ", ".join(map(str, machine.gpus))
        output.say(f"measuring on GPUs {numbers} at the same time; races and last timings are on GPU {machine.gpus[0]}")


def _say_if_nothing_to_resume(store: Store, tune_options: TuneOptions, workload: str | None = None) -> None:
    """Says at the beginning if --resume begins anew: nobody should learn that after ten minutes.

    Args:
        store: The records.
        tune_options: The options of the tuning.
        workload: The name of the function that is tuned; None for a model, whose functions are not known yet.
    """
    from ...records import Filter, State

    if not tune_options.resume:
        return
    begun = store.sessions(Filter(workload_name=workload, search=tune_options.search))
    if not any(session.state is not State.FINISHED and session.seed == tune_options.seed for session in begun):
        what = f"search {tune_options.search} and seed {tune_options.seed}"
        output.say(f"--resume: there is no interrupted run with {what} in this database; this one begins anew")


def _limit(tune_options: TuneOptions, default: float) -> str:
    """A description of when a tuning ends."""
    if tune_options.trials is None and tune_options.seconds is None:
        return f"until {tune_options.search} converges, {default:.0f} s at most"
    parts = [f"{tune_options.trials} trials"] if tune_options.trials is not None else []
    parts += [f"{tune_options.seconds:g} s"] if tune_options.seconds is not None else []
    return f"until {tune_options.search} converges, {' or '.join(parts)} at most"


def _print_operator(document: Mapping[str, Any], machine: Machine, given: float | None) -> None:
    best, baseline = document.get("best"), document.get("baseline") or {}
    if not best:
        found = "no candidate worked" if document["trials"] else "nothing was measured"
        print(f"{document['op']}: {found} ({document['trials']} trials, {document['failed']} failed)")
        return
    rows = [
        ["best", output.seconds(best["seconds"]), output.interval(best["interval"]), *_rate(best)],
        ["default schedule", output.seconds(baseline.get("seconds")), "-", "-", "-"],
    ]
    title = f"{document['op']} on {document['target']}"
    output.table(["", "time", "95% interval", "GFLOP/s", "of peak"], rows, title)
    _say_what_peak_is_worth(machine)
    settings = ", ".join(f"{name}={value}" for name, value in best["config"].items())
    output.line(f"\n{best['sketch']}: {settings}")
    _print_effort(document)
    if given is not None and document["seconds"] > max(_LATE * given, given + 1.0):
        longest = output.phases(document["phases"])
        output.line(
            f"it took {document['seconds'] - given:.1f} s longer than the {given:g} s that it was given: {longest}"
        )


def _print_model(document: Mapping[str, Any], out: Path, machine: Machine, fresh: bool) -> None:
    _print_kernels(document["tasks"])
    _say_what_peak_is_worth(machine)
    latency, untuned = document.get("latency") or {}, document.get("untuned") or {}
    latencies = [
        ["tuned", output.seconds(latency.get("seconds")), output.interval(latency.get("interval"))],
        ["untuned", output.seconds(untuned.get("seconds")), output.interval(untuned.get("interval"))],
    ]
    print()
    output.table(["model", "latency", "95% interval"], latencies)
    _print_sizes(document)
    verified = document.get("verified")
    if verified:
        print()
        output.line(f"verified: error {verified['max_error']:.1e} against {verified['against']}")
    output.precision(document.get("precision"))
    for entry in document.get("replaced") or ():
        error = "" if entry["error"] is None else f" (error {entry['error']:.1e})"
        kernel = label_of(entry, output.LABEL)
        output.line(f"replaced, because the model was wrong with it: {entry['before']}{error} of {kernel}")
        output.line(f"  by {entry['after']}")
    output.foreign_parts(document.get("foreign") or ())
    for sentence in document.get("left_out") or ():
        output.line(f"at {machine.runner}: {sentence}")
    output.fallbacks(document)
    _print_effort(document)
    _say_what_is_left(document, fresh)
    print(f"saved: {document['artifact']}\ndigest: {document['digest']}")
    if document["artifact"] != str(out):
        print(f"the older model is kept: {out}")
    print()
    output.line(f"{document['model']}: {headline(document)}")


def _say_what_is_left(document: Mapping[str, Any], fresh: bool) -> None:
    """Says which kernels were never tuned, and what tunes them."""
    left = never_tuned(document)
    if left and document["trials"] > document["reused"]:
        again = "without --fresh the same command" if fresh else "the same command"
        output.line(f"{left}; {again} goes on with them, because what was measured is kept")
    elif left:
        output.line(left if document["interrupted"] else f"{left}; a larger budget (--time, --trials) tunes them")


def _print_kernels(tasks: Sequence[Mapping[str, Any]]) -> None:
    """A table of the kernels, those that cost most first; on a terminal only of these."""

    def each(task: Mapping[str, Any]) -> float | None:
        untuned = task["untuned"] / task["weight"] if task.get("untuned") else None
        return untuned if task.get("default_inside") else task["seconds"] or untuned

    ordered = sorted(tasks, key=lambda task: -(each(task) or 0.0) * task["weight"])
    shown = ordered[:_COSTLIEST] if output.on_terminal() else ordered
    rows = [
        [
            label_of(task, output.LABEL),
            task["name"],
            str(task["weight"]),
            output.seconds(each(task)),
            *(["-", "-"] if task.get("default_inside") else _rate(task)),
            "default" if task.get("default_inside") else task.get("sketch") or "-",
            str(task["trials"]),
        ]
        for task in shown
    ]
    headings = ["kernel", "task", "times", "each", "GFLOP/s", "of peak", "sketch", "trials"]
    output.table(headings, rows, spare=("task", "GFLOP/s", "sketch"))
    if len(shown) < len(ordered):
        print(f"and {len(ordered) - len(shown)} more that cost less; --json has them all")


def _print_sizes(document: Mapping[str, Any]) -> None:
    """A table of the sizes, if there are several."""
    sizes = document.get("sizes") or ()
    if len(sizes) < 2:
        return
    rows = [
        [
            output.shapes(size["shapes"]),
            output.seconds(size["latency"]["seconds"]),
            output.interval(size["latency"]["interval"]),
            output.seconds((size["untuned"] or {}).get("seconds")),
            str(size["kernels"]["own"]),
            str(size["kernels"]["shared"]),
            "-" if size["tuning_share"] is None else f"{size['tuning_share']:.0%}",
        ]
        for size in sizes
    ]
    print()
    headings = ["size", "latency", "95% interval", "untuned", "own kernels", "shared kernels", "of the tuning"]
    output.table(headings, rows, spare=("shared kernels", "own kernels", "of the tuning"))


def _say_what_peak_is_worth(machine: Machine) -> None:
    """Says why there are no shares of the peak, or why they are too high.

    A tuning measures the peak only if that takes a small part of its time.
    """
    from ...machine.contract import OPENCL
    from ...machine.limits.peak import known_peak

    limits = known_peak(machine)
    if limits is None and machine.device == OPENCL:
        print('"of peak" is unknown, because OpenCL does not tell the limits of its devices')
    elif limits is None and not machine.runner:
        output.line(
            '"of peak" is unknown, because this machine\'s peak was not measured yet; `stormdrop doctor` measures it'
        )
    if limits is not None and not limits.undisturbed:
        output.line(
            'the true shares "of peak" are lower: something else used the machine while its peak was measured '
            "(stormdrop doctor --refresh measures it again, on a quieter machine)"
        )


def _rate(entry: Mapping[str, Any]) -> list[str]:
    gflops, share = entry.get("gflops"), entry.get("percent_of_peak")
    return ["-" if not gflops else f"{gflops:.0f}", "-" if not share else f"{share:.0f}%"]


def _print_effort(document: Mapping[str, Any]) -> None:
    line = f"{document['trials']} trials, {document['failed']} failed, {document['seconds']:.1f} s"
    if document.get("phases"):
        line += f": {output.phases(document['phases'])}"
    output.line(line)
    reused = document.get("reused") or 0
    if reused and reused == document["trials"]:
        print("answered from earlier records; --fresh tunes again")
        return
    _print_transfer(document)
    if reused:
        print(f"{reused} of the trials are from an earlier run")
    if document.get("suspect"):
        print(f"something else used the machine during {document['suspect']} measurements")
    if document.get("interrupted"):
        print("interrupted: everything measured is kept; --resume goes on from there")
    elif document.get("ended_by"):
        print("ended by an error: everything measured is kept")
    elif document.get("converged") is False:
        print(f"the search {IN_WORDS[end_of(False, document)]}")


def _print_transfer(document: Mapping[str, Any]) -> None:
    """One line if records of elsewhere have said where a search began."""
    told = [part["transfer"] for part in document.get("tasks") or [document] if part.get("transfer")]
    if told:
        trials, sources = sum(each["trials"] for each in told), {name for each in told for name in each["sources"]}
        kernels = f" of {len(told)} kernels" if "tasks" in document else ""
        output.line(
            f"the search{kernels} began where {trials} recorded trials of {', '.join(sorted(sources))} point to"
        )
