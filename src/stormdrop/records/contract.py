"""What is remembered of a tuning, and what a store of such memories promises.

    Problem        what was tuned, for which target, on which machine: a record is only ever used for an equal problem
    Setting        how it was tuned: search, options, seed, measurement method, tool versions, fingerprints
    StoredSession  one tuning of a problem under a setting; it holds an ordered list of trials
    Record         one trial as the tuning loop hands it to the store
    StoredTrial    one trial as the store gives it back
    Outcome        what a session ended with
    Store          appends trials and answers queries

Values come back as JSON holds them, with one exception: a list inside a configuration comes back as a tuple. The
configurations of a space hold tile values as tuples, so a configuration is equal to what was stored.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from typing_extensions import Self

from ..trial import Measurement

Config = Mapping[str, Any]
"""A configuration: the value of each knob by its name. Values are JSON values or tuples of them."""


LONGEST_NAME = 1000
"""The most characters of a name in the records."""


CONDITIONS = ", constants from "
"""Separates a machine from the conditions of a measurement there, such as where the constants of a kernel come from."""


def machine_alone(machine: str) -> str:
    """A machine, as problems name it, without the conditions of a measurement.

    Example:
        >>> machine_alone("a CPU, 2 cores, constants from memory, inputs and outputs from the last cache")
        'a CPU, 2 cores'
    """
    return machine.partition(CONDITIONS)[0]


class State(enum.Enum):
    """Where a session stands. A session counts as interrupted if its process died before it could say so."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Problem:
    """What is tuned. Two problems are the same if all fields but the name are equal.

    Args:
        workload_key: The hash (hexadecimal) of the normalised function. It finds candidates for a match quickly.
        workload_text: The serialised function. Two workloads with one key are the same only if their texts are equal.
        workload_name: A name for people, of which `LONGEST_NAME` characters are kept: a kernel of a quantised model may
            be named after a hundred operators. It takes no part in comparisons.
        target: The target that the kernels are compiled for.
        machine: What a time depends on besides the target: the CPU model and the number of cores used.
    """

    workload_key: str
    workload_text: str
    workload_name: str
    target: str
    machine: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "workload_name", self.workload_name[:LONGEST_NAME])


@dataclass(frozen=True)
class Setting:
    """How a problem is tuned.

    Args:
        search: The name of the search.
        seed: The seed of the search's random numbers, an integer of any size.
        sketches: The name of each sketch and the fingerprint of its space.
        options: The options of the search, as JSON values.
        method: How candidates are measured (for example the number of repeats), as JSON values.
        versions: The name of each tool that has a part in a time, and its version.
    """

    search: str
    seed: int
    sketches: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a session ended with: its best candidate, measured again beside the baseline.

    Args:
        sketch: The sketch of the best candidate, or None if no candidate worked.
        config: The configuration of the best candidate, or None if no candidate worked.
        seconds: The time of the best candidate in seconds per execution, or None if no candidate worked.
        interval: The confidence interval of `seconds`, in seconds.
        baseline_seconds: The time of the default schedule in the same measurement, in seconds per execution.
        converged: Whether the search ended because it had nothing left to try.
        extra: Further JSON values that belong to the result.

    Raises:
        ValueError: If only some of `sketch`, `config` and `seconds` are None.
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
class StoredSession:
    """One tuning of a problem.

    Args:
        id: A UUID, unique over all databases.
        problem: What is tuned.
        setting: How it is tuned.
        created: When the session was opened, in ISO 8601 and UTC.
        state: Where the session stands.
        outcome: What the session ended with, or None if it has no result yet.
        imported: Whether another database or a file brought it, and no run has gone on with it here. Its times are
            what somebody says.
    """

    id: str
    problem: Problem
    setting: Setting
    created: str
    state: State
    outcome: Outcome | None = None
    imported: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Record:
    """One trial as the tuning loop hands it to the store.

    Args:
        sketch: The sketch of the candidate.
        config: The configuration of the candidate.
        measurement: What was measured.
        elapsed: Seconds of tuning from the beginning of the session to this trial.
    """

    sketch: str
    config: Config
    measurement: Measurement
    elapsed: float = 0.0


@dataclass(frozen=True)
class StoredTrial:
    """One trial as the store gives it back.

    Args:
        batch: The number of the search's `ask` that this trial belongs to.
        position: The place of the trial in its session, counted from 0 without gaps.
        sketch: The sketch of the candidate.
        fingerprint: `Space.fingerprint` of the sketch's space.
        config: The configuration of the candidate.
        measurement: What was measured.
        elapsed: Seconds of tuning from the beginning of the session to this trial.
    """

    batch: int
    position: int
    sketch: str
    fingerprint: str
    config: Config
    measurement: Measurement
    elapsed: float = 0.0


@dataclass(frozen=True)
class Filter:
    """Selects the sessions that equal every field that is not None. A filter without fields selects all."""

    workload_name: str | None = None
    workload_key: str | None = None
    target: str | None = None
    machine: str | None = None
    search: str | None = None
    state: State | None = None


@dataclass(frozen=True)
class Summary:
    """One line of a list of sessions. Its other fields are those of `Problem`, `Setting` and `StoredSession`.

    Args:
        trials: The number of trials so far.
        failed: How many of these trials failed.
        best_seconds: The time of the session's outcome, in seconds. A session without an outcome has the lowest
            median of a measurement instead, which is optimistic because it is the best of many. None if no
            candidate worked.
        baseline_seconds: The time of the default schedule, in seconds, or None if it is not known.
        written: When something of the session was last written to this database, in ISO 8601 and UTC, by the clock of
            the machine that wrote it. None if that is not known.
        layers: The names of the layers of a model that the kernel computes; empty if it is no kernel of a model, or if
            they are not known.
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
    written: str | None = field(default=None, compare=False)
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Absorbed:
    """How many sessions and trials came in from another database or a file.

    Args:
        added: Sessions that were new.
        extended: Sessions that were known and now have more trials or an outcome.
        known: Sessions that brought nothing new.
        diverged: Sessions that were continued in two places. The copy in this database is kept.
        trials: Trials that were new.
    """

    added: int = 0
    extended: int = 0
    known: int = 0
    diverged: int = 0
    trials: int = 0


Dump = Iterable[tuple[StoredSession, Sequence[StoredTrial]]]
"""Sessions with all their trials, oldest first."""


@runtime_checkable
class Store(Protocol):
    """Remembers tunings. `open_store` opens the implementation in a SQL database.

    A session has one writer: the store that opened or resumed it last. A store that wrote the session before gets a
    `StoreError` at its next write, so that two runs never mix their trials in one session. Several processes may
    write sessions of their own, and read, at the same time. A store is used by one thread at a time and does not
    survive a fork: open another one there.

    Raises:
        StoreError: Every method raises it, with a message of one line, if the database fails.

    Example:
        >>> from stormdrop.records import Outcome, Problem, Record, Setting, open_store
        >>> from stormdrop.trial import Measurement, Status
        >>> problem = Problem("5f2a", "the function", "matmul", "llvm", "a CPU, 2 cores")
        >>> setting = Setting("droplet", seed=0, sketches={"tiled": "fingerprint of its space"})
        >>> store = open_store("sqlite://")  # a database in memory
        >>> session = store.open(problem, setting)
        >>> store.append(session, 0, [Record("tiled", {"tile": (4, 2)}, Measurement(Status.OK, (1.5e-3,)))])
        >>> stopped = store.interrupt(session)
        >>> stopped.state.value
        'interrupted'

        A later run goes on where this one stopped:

        >>> [session] = store.unfinished(problem, setting)
        >>> session = store.resume(session)
        >>> [trial] = store.records(session)
        >>> trial.config
        {'tile': (4, 2)}
        >>> session = store.finish(session, Outcome("tiled", trial.config, seconds=1.5e-3))
        >>> store.finished(problem) == [session]
        True
        >>> store.close()
    """

    def open(self, problem: Problem, setting: Setting) -> StoredSession:
        """Opens a new session.

        Args:
            problem: What is tuned.
            setting: How it is tuned.

        Returns:
            The session, which is running and has this store as its writer.
        """

    def resume(self, session: StoredSession) -> StoredSession:
        """Makes this store the writer of an unfinished session.

        Args:
            session: A session that is interrupted, or running in this process.

        Returns:
            The session, which is running again.

        Raises:
            StoreError: If the session is finished, or if another process on this machine still writes it.
        """

    def append(self, session: StoredSession, batch: int, records: Sequence[Record]) -> None:
        """Appends all records, or none if it raises. They survive the death of the process once it has returned.

        Args:
            session: A running session that this store writes.
            batch: The number of the search's `ask` that the records belong to.
            records: The trials, in the order in which they were measured.

        Raises:
            ValueError: If the session lacks the sketch of a record, or if a time is not finite.
            TypeError: If a configuration holds a value that is neither JSON's nor a number of NumPy's.
            StoreError: If the session is not running, or if another run writes it now.
        """

    def finish(self, session: StoredSession, outcome: Outcome) -> StoredSession:
        """Ends a session for good.

        Args:
            session: A running session that this store writes.
            outcome: What it ended with.

        Returns:
            The session, which is finished.
        """

    def interrupt(self, session: StoredSession, outcome: Outcome | None = None) -> StoredSession:
        """Marks a session as stopped before its end. It can be resumed.

        Args:
            session: A running session that this store writes.
            outcome: The best candidate so far, if it is known.

        Returns:
            The session, which is interrupted.
        """

    def session(self, session_id: str) -> StoredSession:
        """The session with this id. Raises `StoreError` if there is none."""

    def records(self, session: StoredSession) -> list[StoredTrial]:
        """All trials of a session, in the order in which they were appended."""

    def finished(self, problem: Problem) -> list[StoredSession]:
        """The finished sessions of this problem in which a candidate worked, newest first."""

    def unfinished(self, problem: Problem, setting: Setting) -> list[StoredSession]:
        """The sessions that a run with this setting may resume.

        Args:
            problem: What is tuned.
            setting: Search, options and seed must equal those of the session. Sketches, method and versions may
                differ: a caller that must not mix them compares the session's setting with its own.

        Returns:
            The sessions that did not end, newest first. A session that another live process on this machine writes
            is left out.
        """

    def sessions(self, selection: Filter = ...) -> list[Summary]:
        """One line for each session that a filter selects, newest first."""

    def dump(self, selection: Filter = ...) -> Iterator[tuple[StoredSession, list[StoredTrial]]]:
        """The sessions that a filter selects, with their trials. The oldest session comes first.

        All are read in one transaction, so what is written meanwhile is not seen.
        Call no other method of the store until the iterator is exhausted or closed.
        """

    def absorb(self, dump: Dump, *, measured_here: bool = False) -> Absorbed:
        """Takes in sessions from another store or a file. Doing it again changes nothing.

        Args:
            dump: The sessions. A session that is running in its own database is interrupted in this one.
            measured_here: Whether the user of this machine measured all of them. Otherwise they count as imported.

        Returns:
            How many sessions and trials were new.

        Raises:
            StoreError: If the database fails, or if an imported session holds what no tuning measures. Then nothing
                was taken in; the same holds if `dump` raises.
        """

    def close(self) -> None:
        """Releases connections and files. The store cannot be used afterwards."""

    def __enter__(self) -> Self:
        """The store itself, for a `with` statement."""

    def __exit__(self, *_: object) -> None:
        """Writes what is not written yet, and as a rule closes the store."""


@runtime_checkable
class SharedStore(Protocol):
    """A `Store` that other processes may write to at the same time. Any other store never waits.

    Attributes:
        patience: Seconds for which a method that writes waits for another writer. Whoever uses the store may set it.
    """

    patience: float

    @property
    def given(self) -> str | None:
        """The store as a user named it, without a password; None for the default one."""
