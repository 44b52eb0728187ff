"""The command line.

Its commands are `stormdrop tune`, `tune-op`, `compile`, `quantize`, `run`, `bench`, `compare`, `landscape`, `report`,
`dashboard`, `operators`, `doctor`, `cache`, `fleet` and `db`.

Exit codes: 0 for success; 1 if something of ours failed; 2 for bad usage or bad input, with one line on standard error
that begins with "stormdrop:"; 130 after Ctrl-C, 143 after SIGTERM and 129 after SIGHUP, with everything kept that was
measured so far.

This file imports little, so that it answers a signal from the first moment on.

app.py           all commands by name, and what bad usage means
commands/        the commands
options.py       options, and how their text is read
flags.py         options that commands share in groups
services.py      the options that say how a model is called as a service, and the table of how it serves
arrays.py        arrays in files
output.py        documents and tables
progress.py      how far a run is, on standard error: lines, or a display
live_display.py  that display
status_line.py   what a command does now, in a line on a terminal
extras.py        what `pip install 'stormdrop[...]'` has brought
watching.py      `--log` and `--trace`
guide.py         examples and descriptions in the help
completion.py    what a shell offers
signals.py       signals that end a command as Ctrl-C does
streams.py       standard output and standard error that nobody reads; lines that fit a terminal
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from ..errors import InputError, OptionError, StormdropError, UnsupportedFunction, without_passwords
from . import signals, streams


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits."""
    streams.guard()
    code = run(sys.argv[1:] if arguments is None else arguments, process_ends=True)
    if code > signals.OF_SIGNALS:
        _end(code)
    sys.exit(code)


def run(arguments: Sequence[str], *, process_ends: bool = False) -> int:
    """Runs one command and returns its exit code. If something was wrong, it prints one line that says what.

    Args:
        arguments: The command and its arguments.
        process_ends: Whether the process ends afterwards; it then ignores the signals that end a command.
    """
    started = time.perf_counter()
    with signals.as_interrupts(process_ends=process_ends) as interruption:
        try:
            code = _run(arguments, started)
        except KeyboardInterrupt:
            code = _complain("interrupted; everything measured so far is kept", signals.INTERRUPTED)
            if process_ends:
                _end(interruption.exit_code(code))
        return interruption.exit_code(code)


def _run(arguments: Sequence[str], started: float) -> int:
    try:
        from ..machine import threads

        threads.configure()  # before any command loads TVM
        from . import app

        code = app.run(arguments, started)
        sys.stdout.flush()
        return code
    except OptionError as error:
        return _complain(error.on_command_line(), 2)
    except (InputError, UnsupportedFunction) as error:  # no sketch takes what the user named
        return _complain(str(error), 2)
    except StormdropError as error:
        return _complain(str(error), 1)
    except PermissionError as error:  # Python before 3.14 raises it if one asks whether a path is a file
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), 2)
    except MemoryError as error:
        return _complain(f"out of memory{f': {error}' if str(error) else ''}", 1)


def _end(code: int) -> NoReturn:
    """Ends the process at once after a signal.

    Python would wait for threads that compile, and would end by SIGINT itself if Ctrl-C came in the midst of an `exec`.
    Objects of TVM that are half made would complain on standard error.
    """
    with contextlib.suppress(StormdropError, OSError):  # nobody reads it, or the disk is full
        sys.stdout.flush()
    os._exit(code)


def _complain(message: str, code: int) -> int:
    line = " ".join(without_passwords(message).split())  # one line, even if the message has several
    print(streams.filled(f"stormdrop: {line}", sys.stderr), file=sys.stderr, flush=True)
    return code
