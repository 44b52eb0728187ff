"""Files in the trace event format, which https://ui.perfetto.dev and chrome://tracing open.

The format is described in "Trace Event Format" (Google, 2016). Its form as a JSON array needs no end, so the trace of a
process that was killed can be opened, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .lines_file import LinesFile, encoded

_PROCESS = 1  # the format's number of a process; all lanes are threads of one


class TraceFile:
    """A trace with named lanes. All times are readings of one clock, in seconds."""

    def __init__(self, path: Path, title: str, complain: Callable[[str], None]) -> None:
        """Creates the file, or replaces it.

        Args:
            path: The file.
            title: What the trace is of.
            complain: Is called with one line if the file fails later.

        Raises:
            InputError: The file cannot be created.
        """
        self._file = LinesFile(path, complain, append=False)
        self._lanes: dict[str, int] = {}
        self._origin: float | None = None
        self._file.write(b"[\n")
        self._write({"ph": "M", "name": "process_name", "tid": 0, "args": {"name": title}})

    def name(self, lane: str) -> None:
        """Gives a lane its place: lanes are shown in the order in which they are named or used first."""
        if lane not in self._lanes:
            number = self._lanes[lane] = len(self._lanes) + 1
            self._write({"ph": "M", "name": "thread_name", "tid": number, "args": {"name": lane}})
            self._write({"ph": "M", "name": "thread_sort_index", "tid": number, "args": {"sort_index": number}})

    def begin(self, lane: str, name: str, seconds: float, details: Mapping[str, Any]) -> None:
        """Begins a slice, which contains those that begin before it ends."""
        self._write({"ph": "B", **self._at(lane, seconds), "name": name, "args": dict(details)})

    def end(self, lane: str, seconds: float, details: Mapping[str, Any]) -> None:
        """Ends the slice of a lane that began last."""
        self._write({"ph": "E", **self._at(lane, seconds), "args": dict(details)})

    def slice(self, lane: str, name: str, seconds: float, duration: float, details: Mapping[str, Any]) -> None:
        """A slice whose duration is known."""
        self._write(
            {"ph": "X", **self._at(lane, seconds), "dur": _micro(duration), "name": name, "args": dict(details)}
        )

    def instant(self, lane: str, name: str, seconds: float, details: Mapping[str, Any]) -> None:
        """Something that takes no time."""
        self._write({"ph": "i", "s": "t", **self._at(lane, seconds), "name": name, "args": dict(details)})

    def counter(self, name: str, unit: str, seconds: float, value: float) -> None:
        """The new value of a number that is drawn as a curve."""
        self._write({"ph": "C", "tid": 0, "ts": self._stamp(seconds), "name": name, "args": {unit: value}})

    def close(self) -> None:
        """Ends the array and closes the file."""
        self._file.write(
            encoded({"ph": "M", "pid": _PROCESS, "name": "process_labels", "args": {"labels": "complete"}})
        )
        self._file.write(b"\n]\n")
        self._file.close()

    def _at(self, lane: str, seconds: float) -> dict[str, Any]:
        self.name(lane)
        return {"tid": self._lanes[lane], "ts": self._stamp(seconds)}

    def _stamp(self, seconds: float) -> float:
        if self._origin is None:
            self._origin = seconds
        return _micro(seconds - self._origin)

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(encoded({"pid": _PROCESS, **event}) + b",\n")


def _micro(seconds: float) -> float:
    """Microseconds, the format's unit, to the nanosecond."""
    return round(1e6 * seconds, 3)
