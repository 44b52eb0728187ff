"""What the trials of one session amount to: the best so far over time, and how they ended. It is kept up to date."""

from __future__ import annotations

import math
import re
import statistics
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import msgspec
from sqlalchemy import select

from ..sql import schema
from .reader import RecordsReader

_STEP = 20_000  # trials that are read at a time: the rest of a longer session follows with the next look at it
_KEPT = 512  # sessions whose progress is kept
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MOST_KINDS = 50  # of errors
_decoder = msgspec.json.Decoder(tuple[float, ...])


@dataclass
class Progress:
    """The progress of a session.

    Attributes:
        read: How many of its trials this covers.
        curve: (seconds of tuning, lowest median so far in seconds), whenever the latter changed.
        statuses: How many trials ended in each way.
        errors: How many trials failed with each error, whose numbers are replaced by #.
        suspect: How many trials something else disturbed.
        elapsed: Seconds of tuning until the last trial.
    """

    read: int = 0
    curve: list[tuple[float, float]] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    suspect: int = 0
    elapsed: float = 0.0


class ProgressOfSessions:
    """The progress of the sessions that somebody looks at. A later look reads only the trials that are new.

    Several threads may use one object.
    """

    def __init__(self, reader: RecordsReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._identity = reader.identity
        self._known: OrderedDict[int, Progress] = OrderedDict()

    def of(self, number: int) -> Progress:
        """The progress of a session.

        Args:
            number: The number of its row.

        Raises:
            StoreError: The database fails.
        """
        with self._lock:
            if self._identity != self._reader.identity:  # the file was replaced
                self._identity = self._reader.identity
                self._known.clear()
            progress = self._known.setdefault(number, Progress())
            self._known.move_to_end(number)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
            self._read_on(number, progress)
            return progress

    def _read_on(self, number: int, progress: Progress) -> None:
        table = schema.trial
        columns = (table.c.status, table.c.seconds, table.c.error, table.c.suspect, table.c.elapsed)
        statement = select(*columns).where(table.c.session == number, table.c.position >= progress.read)
        with self._reader.reading() as connection:
            rows = connection.execute(statement.order_by(table.c.position).limit(_STEP)).all()
            for status, seconds, error, suspect, elapsed in rows:
                progress.read += 1
                progress.statuses[status] += 1
                progress.suspect += bool(suspect)
                progress.elapsed = float(elapsed)
                if error:
                    kind = _NUMBER.sub("#", error)[:200]
                    is_known = kind in progress.errors or len(progress.errors) < _MOST_KINDS
                    progress.errors[kind if is_known else "other"] += 1
                samples = _decoder.decode(seconds)
                best = progress.curve[-1][1] if progress.curve else math.inf
                # No median is below the lowest sample, and few samples are below the best so far.
                if samples and min(samples) < best and (median := statistics.median(samples)) < best:
                    progress.curve.append((progress.elapsed, median))
