"""The command line: `stormdrop tune`, `tune-op`, `run`, `bench`, `compare`, `landscape`, `doctor`, `db`.

Exit codes: 0 success; 1 something of ours failed; 2 bad usage or bad input, with one line on standard error that
begins with "stormdrop:"; 130 after Ctrl-C, with everything measured so far kept.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from .._version import __version__
from ..errors import InputError, StormdropError, UnsupportedFunction
from ..machine import threads
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

# The root of what typer raises for bad usage; where that class lives has changed between its versions.
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs one command; returns its exit code. Prints the line that says what was wrong, if anything was."""
    threads.configure()  # before any command loads TVM
    try:
        code = app(list(arguments), standalone_mode=False, prog_name="stormdrop")
        sys.stdout.flush()
        return int(code or 0)
    except (InputError, UnsupportedFunction) as error:  # what the user named is what no sketch takes
        return _complain(str(error), 2)
    except StormdropError as error:
        return _complain(str(error), 1)
    except MemoryError as error:
        return _complain(f"out of memory{f': {error}' if str(error) else ''}", 1)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted; what was measured so far is kept", tuning.INTERRUPTED)
    except BrokenPipeError:
        # Who read our output has left, as `head` does. Python would complain again when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except _UsageProblem as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        return _complain(f"{message.rstrip('.')} (see stormdrop --help)", 2)


def _complain(message: str, code: int) -> int:
    line = " ".join(message.split())  # one line, whatever it was made of
    print(f"stormdrop: {line}", file=sys.stderr, flush=True)
    return code
