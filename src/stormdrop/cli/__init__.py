"""The command line: `stormdrop tune`, `tune-op`, `compile`, `run`, `bench`, `compare`, `landscape`, `operators`,
`doctor`, `db`.

Exit codes: 0 for success; 1 if something of ours failed; 2 for bad usage or bad input, with one line on standard error
that begins with "stormdrop:"; 130 after Ctrl-C, 143 after SIGTERM and 129 after SIGHUP, with everything kept that was
measured so far.

This file imports little, so that it answers a signal from the first moment on. `commands` has the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..errors import InputError, StormdropError, UnsupportedFunction, without_passwords
from . import signals, streams


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits."""
    streams.guard()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code. If something was wrong, it prints one line that says what."""
    with signals.as_interrupts() as interruption:
        try:
            code = _run(arguments)
        except KeyboardInterrupt:
            code = _complain("interrupted; everything measured so far is kept", signals.INTERRUPTED)
        return interruption.exit_code(code)


def _run(arguments: Sequence[str]) -> int:
    try:
        from ..machine import threads

        threads.configure()  # before any command loads TVM
        from . import commands

        code = commands.run(arguments)
        sys.stdout.flush()
        return code
    except (InputError, UnsupportedFunction) as error:  # no sketch takes what the user named
        return _complain(str(error), 2)
    except StormdropError as error:
        return _complain(str(error), 1)
    except PermissionError as error:  # Python before 3.14 raises it if one asks whether a path is a file
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), 2)
    except MemoryError as error:
        return _complain(f"out of memory{f': {error}' if str(error) else ''}", 1)


def _complain(message: str, code: int) -> int:
    line = " ".join(without_passwords(message).split())  # one line, even if the message has several
    print(f"stormdrop: {line}", file=sys.stderr, flush=True)
    return code
