"""The options that commands share in groups: a group is a dataclass, whose fields `spread` shows to typer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from ..search import parse_search
from ..tuning.options import DEFAULT_SEARCH, FLOAT32, TuneOptions
from . import arrays, completion, options
from .options import (
    ArchOption,
    DatabaseOption,
    DenormalsOption,
    MaxErrorOption,
    PrecisionOption,
    SeedOption,
    ShapeOption,
    TargetOption,
)

R = TypeVar("R")


def spread(command: Callable[..., R]) -> Callable[..., R]:
    """Lets a command take the fields of a dataclass as options of its own, where it has a parameter of that class.

    Args:
        command: A function whose parameters are annotated as typer wants them, or with such dataclasses.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        group = groups.get(name)
        defaults = {name: parameter.default} if group is None else {each.name: each.default for each in fields(group)}
        kinds = hints if group is None else get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kinds[option])
            for option, default in defaults.items()
        ]

    @functools.wraps(command)
    def gathered(**given: Any) -> R:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        return command(**given)

    gathered.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    gathered.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return gathered


@dataclass(frozen=True)
class TuningFlags:
    """What the commands that tune share: what is searched and for how long, where it is measured, what is kept."""

    target: TargetOption = None
    search: Annotated[
        str,
        typer.Option(
            "--search",
            metavar="NAME",
            autocompletion=completion.searches,
            help=f"The search: one of {options.SEARCHES_HELP}.",
        ),
    ] = DEFAULT_SEARCH
    trials: Annotated[
        int | None,
        typer.Option("--trials", metavar="N", help="Stop after N measured candidates, over the whole command."),
    ] = None
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="T",
            help="Stop after this wall time, which includes everything: 90s, 3m, 1h, or 15 (seconds).",
        ),
    ] = None
    db: DatabaseOption = None
    seed: SeedOption = 0
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run with the same options.")] = False
    fresh: Annotated[bool, typer.Option("--fresh", help="Tune as if nothing were known yet.")] = False
    no_transfer: Annotated[
        bool,
        typer.Option(
            "--no-transfer",
            help="Do not begin where records of other machines, and of other shapes of the operator, say.",
        ),
    ] = False
    max_error: MaxErrorOption = None
    sketches: Annotated[
        str | None,
        typer.Option(
            "--sketches",
            metavar="NAME",
            help="The sketches to search: builtin (the default), rules (derived as Ansor does) or meta_schedule "
            "(TVM's).",
        ),
    ] = None
    space: Annotated[
        str | None, typer.Option("--space", hidden=True, help="What --sketches was called before 0.3.")
    ] = None
    features: Annotated[
        str,
        typer.Option(
            "--features",
            metavar="KIND",
            help="What the cost models of evolutionary and gradient see: knobs, analytic (on GPUs the seven of the "
            "AF-DS paper), both of these, or statements (Ansor's 164, 10 ms per candidate, 0.1 for a contraction on a "
            "GPU; evolutionary:preset=paper then has one cost model for all kernels of a model).",
        ),
    ] = "knobs"
    runner: Annotated[
        str | None,
        typer.Option(
            "--runner",
            metavar="HOST:PORT",
            help="Measure on another machine, where TVM's RPC server runs; kernels are built here.",
        ),
    ] = None
    tracker: Annotated[
        str | None,
        typer.Option(
            "--tracker",
            metavar="HOST:PORT",
            help="Measure on all boards of one kind that TVM's RPC tracker knows, at the same time.",
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="KEY",
            help="The key of these boards at the tracker; or which machines of a fleet: the name of one, or of a kind.",
        ),
    ] = None
    fleet: Annotated[
        str | None,
        typer.Option(
            "--fleet",
            metavar="ADDRESS",
            help="Measure on all equal machines of a cluster of Ray at the same time: auto, HOST:PORT or "
            "ray://HOST:PORT.",
        ),
    ] = None
    keep_denormals: DenormalsOption = False
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="FILE",
            help="Append what happens to this file, as JSON lines: each build, run and wait when it begins and when it "
            "ends, so that a hang is seen.",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write what happens as a trace to this file, which https://ui.perfetto.dev shows: workers, builds, "
            "runs, the machine's lock, phases.",
        ),
    ] = None

    def tune_options(self, precision: str = FLOAT32) -> TuneOptions:
        """The options of the tuning.

        Args:
            precision: What a model computes in.

        Raises:
            InputError: A number is out of its range, two options contradict each other, or the search, one of its
                options or its preset is unknown.
        """
        name, search_options = parse_search(self.search)
        return TuneOptions(
            search=name,
            search_options=search_options,
            trials=self.trials,
            seconds=options.duration(self.time),
            seed=self.seed,
            resume=self.resume,
            fresh=self.fresh,
            max_error=self.max_error,
            sketches=self.space if self.sketches is None else self.sketches,
            features=self.features,
            precision=precision,
            transfer=not self.no_transfer,
        )

    def place(self) -> str:
        """Where kernels are measured; see `options.runner_address`, which also checks the name of the target."""
        options.not_empty(self.target, "--target", "cpu")
        return options.runner_address(self.runner, self.tracker, self.device, self.fleet)


@dataclass(frozen=True)
class ModelFlags:
    """What the commands that make a compiled model share: its inputs, its precision, and where it is saved."""

    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Where to save the compiled model; by default MODEL.sd in the current folder."
        ),
    ] = None
    shape: ShapeOption = None
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--value",
            metavar="INPUT=1",
            help="The value of an input, which the compiled model no longer takes: a number, or several as in "
            "axes=0,1; repeatable. Needed for an input that decides a shape.",
        ),
    ] = None
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="OUTPUT=INPUT",
            help="An output of a decoder that is an input of its next step, as in 'present.*=past_key_values.*'; "
            "repeatable. By default names say it.",
        ),
    ] = None
    samples: Annotated[
        Path | None,
        typer.Option(
            "--samples",
            metavar="DATA.npz",
            help="Inputs that have a meaning for the model, by name, to verify and time it on: several samples of an "
            "input one after the other on its first axis. Inputs that it lacks are drawn.",
        ),
    ] = None
    native: Annotated[
        bool,
        typer.Option(
            "--native", help="Save machine code: this needs a C compiler now, but no TVM where the model runs."
        ),
    ] = False
    precision: PrecisionOption = FLOAT32
    arch: ArchOption = None

    def of_model(self, model: Path) -> dict[str, Any]:
        """What `tune_model_with` and `compile_model_with` take for these options, by the names of their parameters.

        Args:
            model: The model, an ONNX file.

        Raises:
            ModelError: There is no such file.
            InputError: An option is not written as it should be, or nothing can be saved at its folder.
        """
        options.onnx_file(model)
        return {
            "shapes": options.shapes(self.shape or ()),
            "values": options.values(self.value or ()),
            "state": options.states(self.state or ()),
            "samples": None if self.samples is None else arrays.read(self.samples),
            "out": options.artifact_folder(self.out or Path(f"{model.stem}.sd"), "--out"),
            "native": self.native,
        }
