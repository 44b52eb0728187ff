"""The commands by name, and what bad usage means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from .._version import __version__
from ..errors import InputError
from . import comparing, database, running, tuning

app = typer.Typer(
    name="stormdrop",
    help="Near-peak tensor kernels in seconds.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("tune")(tuning.tune)
app.command("tune-op")(tuning.tune_op)
app.command("run")(running.run)
app.command("bench")(running.bench)
app.command("compare")(comparing.compare)
app.command("landscape")(comparing.landscape)
app.command("doctor")(running.doctor)
app.add_typer(database.app, name="db")

# The base class of what typer raises for bad usage. Versions of typer have it in different places.
_UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]


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


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code.

    It calls the command without typer's own `main`, which would turn Ctrl-C and a closed pipe into silent exit codes.

    Raises:
        InputError: the usage is wrong.
    """
    command = typer.main.get_command(app)
    try:
        with command.make_context("stormdrop", list(arguments)) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as end:  # after --help and --version
        return end.exit_code
    except _UsageProblem as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        raise InputError(f"{message.rstrip('.')} (see stormdrop --help)") from None
