"""`tune --trace`: what happens during a tuning as a trace: phases, search, workers with their jobs, the lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ...events import Event, Kind
from .trace_file import TraceFile


class EventTrace:
    """Writes each event into a trace while it happens. Each place of an event, such as a worker, has a lane."""

    def __init__(self, path: Path, title: str, complain: Callable[[str], None]) -> None:
        """Creates the file, or replaces it.

        Args:
            path: The file.
            title: What is tuned.
            complain: Is called with one line if the file fails later. The tuning goes on without it.

        Raises:
            InputError: The file cannot be created.
        """
        self._file = TraceFile(path, title, complain)
        self._open: set[int] = set()

    def __call__(self, event: Event) -> None:
        """Writes an event."""
        file, lane = self._file, _lane(event)
        if event.kind is Kind.STARTED:
            self._open.add(event.number)
            file.begin(lane, _title(event), event.seconds, event.details)
        elif event.kind is Kind.FINISHED and event.number in self._open:
            self._open.remove(event.number)
            file.end(lane, event.seconds, event.details)
        elif event.kind is Kind.HAPPENED:
            file.instant(lane, event.what, event.seconds, event.details)
        elif event.kind is Kind.LEVEL:
            milliseconds = 1e3 * float(event.details["value"])
            file.counter(f"{event.what} of {_kernel(event)}", "ms", event.seconds, milliseconds)

    def close(self) -> None:
        """Ends the trace."""
        self._file.close()


def _title(event: Event) -> str:
    """What a bar says: what it is, and of which layers. The name of the kernel is among the details of the bar."""
    layers = event.details.get("layers")
    return f"{event.what} of {layers}" if layers else event.what


def _kernel(event: Event) -> str:
    """What a curve belongs to. Two kernels may compute the same layer, so that the label alone is not enough."""
    layers = event.details.get("layers")
    return f"{layers} ({event.where})" if layers else event.where


def _lane(event: Event) -> str:
    """The lane of an event. Spans of one lane are nested, so that each thread has lanes of its own."""
    thread = threading.current_thread()
    return event.where if thread is threading.main_thread() else f"{event.where} ({thread.name})"
