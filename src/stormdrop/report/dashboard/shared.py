"""What all requests to the dashboard share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from ...records.contract import machine_alone
from ...records.reading.reader import RecordsReader
from ...records.reading.session_progress import ProgressOfSessions
from ..formatting import FILTERS
from ..layer_label import layer_label
from ..traces.announcement import runs_at_work

_TICK = 2.0  # seconds after which a page is drawn anew while something runs


@dataclass
class Shared:
    """What all requests share.

    Attributes:
        reader: The records.
        log: The log of a tuning, if one was named.
        ending: Says whether the server is about to end, which waits for its connections.
        progress: The progress of the sessions that were looked at.
        templates: The templates of the pages. They escape what they are given.
    """

    reader: RecordsReader
    log: Path | None = None
    ending: Callable[[], bool] = lambda: False
    progress: ProgressOfSessions = field(init=False)
    templates: Environment = field(init=False)

    def __post_init__(self) -> None:
        self.progress = ProgressOfSessions(self.reader)
        self.templates = Environment(
            loader=PackageLoader("stormdrop.report.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters.update(FILTERS, machine_alone=machine_alone, layer_label=layer_label)
        self.templates.globals.update(log=self.log is not None)

    @property
    def database(self) -> str:
        """The name of the database, as runs name it."""
        place = self.reader.place
        return place.name if place.file is None else str(place.file.absolute())

    def stamp(self) -> str:
        """A text that changes whenever a page may look different; while something runs, its time changes."""
        runs = [(run.writer, int(run.elapsed / _TICK)) for run in runs_at_work()]
        return json.dumps([self.reader.stamp(), self._stamp_of_log(), runs])

    def _stamp_of_log(self) -> list[float]:
        if self.log is None:
            return []
        try:
            status = self.log.stat()
        except OSError:
            return []
        return [status.st_size, status.st_mtime]
