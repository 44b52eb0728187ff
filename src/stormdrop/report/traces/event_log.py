"""`--log`: what happens during a tuning, as JSON lines.

Something that takes time has two lines: one when it begins, and one when it ends. If a tuning hangs or is killed, the
last lines without an end say where.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...events import Event, Kind
from .lines_file import LinesFile, encoded

VERSION = 1
"""Version of the lines. It is raised if the meaning of a field changes; new fields do not raise it."""


class EventLog:
    """Writes each event as a line, which is in the hands of the operating system before the work goes on.

    The file is appended to. Each run begins with a line whose `what` is "log".
    """

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        """Opens the file and writes the first line of this run.

        Args:
            path: The file.
            complain: Is called with one line if the file fails later. The tuning goes on without it.

        Raises:
            InputError: The file cannot be opened.
        """
        self._file = LinesFile(path, complain, append=True)
        self._began: dict[int, float] = {}
        self._write(
            Kind.HAPPENED, "log", "log", {"version": VERSION, "stormdrop": __version__, "pid": os.getpid()}, clock=None
        )

    def __call__(self, event: Event) -> None:
        """Writes an event."""
        fields: dict[str, Any] = dict(event.details)
        if event.number:
            fields["number"] = event.number
        if event.kind is Kind.STARTED:
            self._began[event.number] = event.seconds
        elif event.kind is Kind.FINISHED and event.number in self._began:
            fields["took"] = event.seconds - self._began.pop(event.number)
        self._write(event.kind, event.what, event.where, fields, event.seconds)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, kind: Kind, what: str, where: str, fields: dict[str, Any], clock: float | None) -> None:
        head = {
            "time": datetime.now(timezone.utc).isoformat(timespec="microseconds"),
            "clock": time.perf_counter() if clock is None else clock,
            "event": kind.value,
            "what": what,
            "where": where,
        }
        self._file.write(encoded({**head, **fields}) + b"\n")
