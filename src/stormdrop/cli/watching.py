"""`--log` and `--trace` of the commands that tune: the files that say what happens, while it happens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from .. import events
from ..errors import InputError
from ..report.traces.event_log import EventLog
from ..report.traces.event_trace import EventTrace
from . import options, output


@contextlib.contextmanager
def watched(title: str, log: Path | None, trace: Path | None) -> Iterator[None]:
    """A context whose events are written to the files of `--log` and `--trace`.

    Args:
        title: What is tuned.
        log: The value of --log.
        trace: The value of --trace.

    Raises:
        InputError: A file cannot be written, or both are the same.
    """
    for path, option in ((log, "--log"), (trace, "--trace")):
        if path is not None:
            options.writable_file(path, option)
    if log is not None and trace is not None and log.absolute() == trace.absolute():
        raise InputError(f"--log and --trace are the same file: {log}")
    with contextlib.ExitStack() as stack:
        if log is not None:
            event_log = EventLog(log, output.say)
            stack.callback(event_log.close)
            stack.enter_context(events.listening(event_log))
        if trace is not None:
            event_trace = EventTrace(trace, title, output.say)
            stack.callback(event_trace.close)
            stack.enter_context(events.listening(event_trace))
        yield
