"""The command line: `stormdrop tune`, `tune-op`, `run`, `bench`, `compare`, `landscape`, `doctor`, `db`.

Exit codes: 0 for success; 1 if something of ours failed; 2 for bad usage or bad input, with one line on standard error
that begins with "stormdrop:"; 130 after Ctrl-C, with everything kept that was measured so far.
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code. If something was wrong, it prints one line that says what."""
    threads.configure()  # before any command loads TVM
    try:
        code = app(list(arguments), standalone_mode=False, prog_name="stormdrop")
        sys.stdout.flush()
        return int(code or 0)
    except (InputError, UnsupportedFunction) as error:  # no sketch takes what the user named
        return _complain(str(error), 2)
    except StormdropError as error:
        return _complain(str(error), 1)
    except MemoryError as error:
        return _complain(f"out of memory{f': {error}' if str(error) else ''}", 1)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted; everything measured so far is kept", tuning.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except _UsageProblem as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        return _complain(f"{message.rstrip('.')} (see stormdrop --help)", 2)


def _complain(message: str, code: int) -> int:
    line = " ".join(message.split())  # one line, even if the message has several
    print(f"stormdrop: {line}", file=sys.stderr, flush=True)
    return code
