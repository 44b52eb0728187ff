"""The commands by name, and what bad usage means."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from .._version import __version__
from ..errors import InputError
from . import completion, guide
from .commands import (
    benching,
    cache,
    comparing,
    compiling,
    dashboard,
    database,
    doctor,
    fleet,
    listing,
    quantizing,
    reporting,
    running,
    tuning,
)

app = typer.Typer(
    name="stormdrop",
    help="Near-peak tensor kernels in seconds.",
    no_args_is_help=False,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: dict[str, Callable[..., int | None]] = {
    "tune": tuning.tune,
    "tune-op": tuning.tune_op,
    "compile": compiling.compile_,
    "quantize": quantizing.quantize,
    "run": running.run,
    "bench": benching.bench,
    "compare": comparing.compare,
    "landscape": comparing.landscape,
    "report": reporting.report,
    "dashboard": dashboard.dashboard,
    "operators": listing.operators,
    "doctor": doctor.doctor,
    "cache": cache.cache,
    "fleet": fleet.fleet,
}


class _Command(typer.core.TyperCommand):
    """A command whose help ends with examples, which are not made before somebody asks for help."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        self.epilog = guide.epilog(str(self.name))
        super().format_epilog(ctx, formatter)


_SHORT = {
    "quantize": "Quantise an ONNX model: to bytes, or its weights alone.",
    "bench": "Time an operator or a model beside its peers.",
    "compare": "Compare searches side by side.",
    "landscape": "Draw the times over two knobs, and the path of a search.",
    "report": "Write one HTML page of what a tuning found and why.",
    "dashboard": "Show the records in a browser, live.",
    "operators": "List the operators with their arguments.",
    "doctor": "Show what this machine offers, and what is installed.",
    "cache": "Show or clear the compiled graphs of torch.compile.",
    "fleet": "Show the machines of a fleet.",
}
"""What the list of commands says of those whose first sentence is too long for it."""

for _name, _command in _COMMANDS.items():
    app.command(_name, cls=_Command, short_help=_SHORT.get(_name))(_command)
app.add_typer(database.app, name="db")

# The base class of what typer raises for bad usage. Versions of typer have it in different places.
_UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]


def _long_option(message: str, error: Exception) -> str:
    """What an unknown option of one letter may be short for, as the end of a message: no option of ours has one."""
    given, context = re.match(r"No such option: -(\w)$", message), getattr(error, "ctx", None)
    if given is None or context is None:
        return ""
    options = [option for parameter in context.command.params for option in parameter.opts]
    fitting = [option for option in options if option.startswith(f"--{given[1]}")]
    return f" (Possible options: {', '.join(fitting)})" if fitting else ""


_DATABASE = re.compile(r"\.(db|sqlite3?)$|://")
"""What the name of a database holds, as against that of a model."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str], started: float) -> int:
    """Runs one command and returns its exit code.

    It calls the command without typer's own `main`, which would turn Ctrl-C and a closed pipe into silent exit codes.

    Args:
        arguments: The command and its arguments.
        started: When it was given, a reading of `time.perf_counter`; `--time` counts from there.

    Raises:
        InputError: The usage is wrong.
    """
    command = typer.main.get_command(app)
    if completion.VARIABLE in os.environ:
        command.main(list(arguments), "stormdrop")  # answers the shell and exits
    try:
        with command.make_context("stormdrop", list(arguments), obj=started) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as end:  # after --help and --version
        return end.exit_code
    except _UsageProblem as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        option = str(getattr(error, "option_name", ""))
        if any(option.lstrip("-") in guide.arguments(word) for word in arguments):
            given = next((word for word in arguments if word.startswith(f"{option}=")), f"{option}=VALUE")
            message = f"{option}: an argument of an operator has no dashes: {given.lstrip('-')}"
        message = message.rstrip(".")
        extra = re.match(r"Got unexpected extra argument\S* \((.+)\)", message)
        if extra and _DATABASE.search(extra[1]):
            message += f"; a database is named with --db {extra[1]}"
        message += _long_option(message, error)
        raise InputError(f"{message} (see stormdrop --help)") from None
