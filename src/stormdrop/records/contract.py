"""What is remembered of a tuning, and what a store of it promises.

    Problem      what was tuned, for what, on what: a record is only ever taken for an equal problem
    Setting      how: search, options, seed, measurement method, tool versions, the sketches' fingerprints
    Session      one tuning of a problem under a setting; it holds an ordered list of trials
    Record       one trial as the tuning loop hands it in; StoredTrial the same as it comes back
    Outcome      what a session ended with
    Store        appends records and answers queries

Values come back as JSON holds them, with one exception: a list inside a configuration comes back as a tuple, so
that the configurations of a space (whose tile values are tuples) are equal to what was stored.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ..trial import Measurement

Config = Mapping[str, Any]
"""A configuration: the value of each knob by its name. Values are JSON values or tuples of them."""


class State(enum.Enum):
    """Where a session stands. One whose process died without a word counts as interrupted."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Problem:
    """What is tuned. Two problems are the same where all but the name, which is for people, are equal.

    `workload_key` is the hash (hex) of the normalised function and `workload_text` its serialised form: the key
    finds, the text decides. `machine` says what a time depends on besides the target: CPU model, cores used.
    """

    workload_key: str
    workload_text: str
    workload_name: str
    target: str
    machine: str


@dataclass(frozen=True)
class Setting:
    """How a problem is tuned. `sketches` maps the name of each sketch to the fingerprint of its space."""

    search: str
    seed: int
    sketches: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a session ended with: its best candidate, re-measured beside the baseline.

    `sketch`, `config` and `seconds` (per execution) are None where no candidate worked; `interval` is the
    confidence interval of `seconds`; `baseline_seconds` is the default schedule's time in the same measurement.
    """

    sketch: str | None = None
    config: Config | None = None
    seconds: float | None = None
    interval: tuple[float, float] | None = None
    baseline_seconds: float | None = None
    converged: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not ((self.sketch is None) == (self.config is None) == (self.seconds is None)):
            raise ValueError("an outcome has a sketch, a configuration and a time, or none of the three")


@dataclass(frozen=True)
class Session:
    """One tuning of a problem. `id` is unique over all databases; `created` is ISO 8601 in UTC."""

    id: str
    problem: Problem
    setting: Setting
    created: str
    state: State
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Record:
    """One trial as it is handed in; `elapsed` is seconds of tuning since the session began."""

    sketch: str
    config: Config
    measurement: Measurement
    elapsed: float = 0.0


@dataclass(frozen=True)
class StoredTrial:
    """One trial of a session: its `position` counts from 0 without gaps, `batch` is the ask that it belonged to."""

    batch: int
    position: int
    sketch: str
    fingerprint: str
    config: Config
    measurement: Measurement
    elapsed: float = 0.0


@dataclass(frozen=True)
class Filter:
    """Which sessions are meant: those that equal every field that is given."""

    workload_name: str | None = None
    workload_key: str | None = None
    target: str | None = None
    machine: str | None = None
    search: str | None = None
    state: State | None = None


@dataclass(frozen=True)
class Summary:
    """One line of a list of sessions.

    `best_seconds` is the outcome's, or while there is none the lowest median of one measurement: a best of many,
    and so optimistic. None where nothing worked.
    """

    id: str
    workload_name: str
    workload_key: str
    target: str
    machine: str
    search: str
    seed: int
    created: str
    state: State
    trials: int
    failed: int
    best_seconds: float | None
    baseline_seconds: float | None


@dataclass(frozen=True)
class Absorbed:
    """What came in from elsewhere.

    Sessions `added`; `extended` (known before, now with more trials or an outcome); `known` (nothing new);
    `diverged` (the same session was continued in two places: ours is kept). `trials` counts the new ones.
    """

    added: int = 0
    extended: int = 0
    known: int = 0
    diverged: int = 0
    trials: int = 0


Dump = Iterable[tuple[Session, Sequence[StoredTrial]]]
"""Sessions with all their trials, oldest first."""


@runtime_checkable
class Store(Protocol):
    """Remembers tunings. Every method raises `StoreError`, one line, where the database fails it.

    A session has one writer: the store that opened or resumed it last. Whoever wrote before gets a `StoreError`
    at its next write, so that two runs never mix their trials in one session. Several processes may write
    sessions of their own and read at the same time. A store is used by one thread at a time and does not
    survive a fork: open another one.
    """

    def open(self, problem: Problem, setting: Setting) -> Session:
        """A new running session."""

    def resume(self, session: Session) -> Session:
        """Makes this store the writer of an unfinished session, which is running again.

        Raises `StoreError` where it is finished, or where another process on this machine still writes it.
        """

    def append(self, session: Session, batch: int, records: Sequence[Record]) -> None:
        """Appends all records, or none where it raises; they survive the death of the process from its return on.

        `ValueError` where a record's sketch is not one of the session's.
        """

    def finish(self, session: Session, outcome: Outcome) -> Session:
        """Ends a session for good."""

    def interrupt(self, session: Session, outcome: Outcome | None = None) -> Session:
        """Marks a session as stopped before its end, with the best so far where that is known; it can be resumed."""

    def session(self, id: str) -> Session:
        """The session with this id."""

    def records(self, session: Session) -> list[StoredTrial]:
        """All trials of a session in the order in which they were appended."""

    def finished(self, problem: Problem) -> list[Session]:
        """The finished sessions of this problem that found something, newest first."""

    def unfinished(self, problem: Problem, setting: Setting) -> list[Session]:
        """The sessions of this problem with the same search, options and seed that did not end, newest first.

        One that another live process on this machine writes is left to it. Sketches, method and versions may differ:
        whoever must not mix them compares the session's setting.
        """

    def sessions(self, where: Filter = ...) -> list[Summary]:
        """What is stored, newest first."""

    def dump(self, where: Filter = ...) -> Iterator[tuple[Session, list[StoredTrial]]]:
        """Sessions with their trials, oldest first, as of one moment; hold no other call between two steps of it."""

    def absorb(self, dump: Dump) -> Absorbed:
        """Takes in sessions from elsewhere, all or (where it or `dump` raises) nothing; a second time changes nothing.

        A session that was running where it comes from is an interrupted one here.
        """

    def close(self) -> None:
        """Gives back connections and files; the store is of no use afterwards."""
