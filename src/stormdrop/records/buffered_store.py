"""A store that costs a tuning nothing if its database fails: what cannot be written waits in memory.

with BufferedStore(store) as buffered:
    ...  # tune; a write that fails is tried again from time to time
         # at the end what is still missing is tried once more, and else saved to a file that `db import` reads
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from typing_extensions import Self

from ..errors import StoreError
from ..trial import Phases
from .codec import clean
from .contract import (
    Absorbed,
    Dump,
    Filter,
    Outcome,
    Problem,
    Record,
    Setting,
    SharedStore,
    State,
    Store,
    StoredSession,
    StoredTrial,
    Summary,
)
from .json_lines import write_lines
from .sql.connection import DatabaseFailure
from .sql.sql_store import check_record, new_session

RETRY_SECONDS = 10.0
"""Seconds after a failure for which the database is left alone."""

RETRY_FACTOR = 10.0
"""Times as long as a failed write took, for which the database is left alone: a dead network costs little time."""

PATIENCE = 1.0
"""Seconds for which a write waits for another process, as long as a tuning runs."""

LAST_SECONDS = 10.0
"""Seconds at the end for which a database is waited for that is locked, or that a network has lost."""

_PAUSE = 0.1  # seconds between two attempts at the end

T = TypeVar("T")

_ALL = Filter()


def buffered(store: Store) -> AbstractContextManager[BufferedStore]:
    """A context that holds the store, buffered. A store that is buffered already stays as it is."""
    return nullcontext(store) if isinstance(store, BufferedStore) else BufferedStore(store)


@dataclass
class _Session:
    """A session that this store writes: all that the database should hold of it."""

    session: StoredSession
    trials: list[StoredTrial]
    missing: int = 0  # trials that the database lacks
    complete: bool = True  # whether it lacks nothing

    def add(self, batch: int, records: Sequence[Record]) -> None:
        for record in records:
            self.trials.append(_as_stored(self.session, len(self.trials), batch, record))
        self.missing += len(records)

    def is_written(self) -> None:
        self.complete, self.missing = True, 0


class BufferedStore:
    """A `Store` over another one, for a tuning. What its methods do is described in `Store`.

    It differs in what happens if the database fails. A failure before anything was written is raised: another database
    can still be given. Afterwards a tuning meets no failure. Trials and outcomes are kept in memory and written as soon
    as the database takes them. What cannot be read is as if it were not there. A session that another run has taken
    over meanwhile goes on under an id of its own.

    It is a context manager. At its end it writes what is missing; the other store stays open.
    """

    def __init__(self, store: Store, say: Callable[[str], None] | None = None) -> None:
        """A store over another one.

        Args:
            store: Keeps the records.
            say: Is called with a line if the database fails; by default the line becomes a `RuntimeWarning`.
        """
        self._store = store
        self._say = say or _warn
        self._sessions: dict[str, _Session] = {}  # by the id under which they were opened
        self._offered: dict[str, list[StoredTrial] | None] = {}  # what may be resumed, with its trials
        self._begun = False
        self._reason = ""  # why the last write failed
        self._passes = False  # whether that may pass by itself
        self._next = -math.inf  # when the database may be tried again
        if isinstance(store, SharedStore):
            self._former_patience, store.patience = store.patience, PATIENCE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.settle()

    def close(self) -> None:
        self.settle()
        self._store.close()

    @property
    def missing(self) -> int:
        """The number of records that wait in memory, because the database did not take them yet."""
        return sum(kept.missing for kept in self._missing)

    # Writing

    def open(self, problem: Problem, setting: Setting) -> StoredSession:
        kept = _Session(new_session(problem, setting), [], complete=False)
        self._begun, self._sessions[kept.session.id] = True, kept
        self._write_missing()
        return kept.session

    def resume(self, session: StoredSession) -> StoredSession:
        offered = session.id in self._offered
        told = self._offered.pop(session.id, None)  # what the search was told, whatever the database says by now
        trials = self._known(lambda: self._store.records(session)) if told is None else told
        kept = _Session(dataclasses.replace(session, state=State.RUNNING), trials)
        try:
            kept.session = self._store.resume(session)
        except StoreError as error:
            if not (isinstance(error, DatabaseFailure) or offered):
                raise
            self._failed(kept, error)  # in the latter case another run has taken it over
        self._begun, self._sessions[session.id] = True, kept
        return kept.session

    def append(self, session: StoredSession, batch: int, records: Sequence[Record]) -> None:
        kept = self._sessions.get(session.id)
        if kept is None:
            self._store.append(session, batch, records)
            return
        for record in records:
            check_record(kept.session, record)
        kept.add(batch, records)
        if kept.complete:
            self._write(kept, lambda: self._store.append(kept.session, batch, records))
        self._write_missing()

    def finish(self, session: StoredSession, outcome: Outcome) -> StoredSession:
        if session.id not in self._sessions:
            return self._store.finish(session, outcome)
        return self._end(session, State.FINISHED, outcome, lambda kept: self._store.finish(kept, outcome))

    def interrupt(self, session: StoredSession, outcome: Outcome | None = None) -> StoredSession:
        if session.id not in self._sessions:
            return self._store.interrupt(session, outcome)
        return self._end(session, State.INTERRUPTED, outcome, lambda kept: self._store.interrupt(kept, outcome))

    def absorb(self, dump: Dump, *, measured_here: bool = False) -> Absorbed:
        return self._store.absorb(dump, measured_here=measured_here)

    # Reading

    def session(self, session_id: str) -> StoredSession:
        return self._store.session(session_id)

    def records(self, session: StoredSession) -> list[StoredTrial]:
        found = self._known(lambda: self._store.records(session))
        if session.id in self._offered:
            self._offered[session.id] = found
        return found

    def finished(self, problem: Problem) -> list[StoredSession]:
        return self._known(lambda: self._store.finished(problem))

    def unfinished(self, problem: Problem, setting: Setting) -> list[StoredSession]:
        found = self._known(lambda: self._store.unfinished(problem, setting))
        self._offered.update((session.id, None) for session in found)
        return found

    def sessions(self, selection: Filter = _ALL) -> list[Summary]:
        return self._known(lambda: self._store.sessions(selection))

    def dump(self, selection: Filter = _ALL) -> Iterator[tuple[StoredSession, list[StoredTrial]]]:
        return self._store.dump(selection)

    # The end

    def settle(self) -> None:
        """Writes what the database lacks, or saves it to a file. Settling twice is harmless."""
        deadline = time.monotonic() + LAST_SECONDS
        try:
            self._write_missing(now=True)
            while self._missing and self._passes and time.monotonic() < deadline:
                time.sleep(_PAUSE)
                self._write_missing(now=True)
        finally:  # also after Ctrl-C
            if isinstance(self._store, SharedStore):
                self._store.patience = self._former_patience
            if missing := self._missing:
                self._sessions.clear()
                self._save(missing)

    def _save(self, missing: Sequence[_Session]) -> None:
        """Saves sessions in the current folder, or else in the one for temporary files."""
        dump = [(kept.session, kept.trials) for kept in missing]
        count = sum(kept.missing for kept in missing)
        records = f"{count} record{'' if count == 1 else 's'}" if count else "the result of a tuning"
        what = f"{records} could not be written ({self._reason})"
        name = f"stormdrop-records-{uuid.uuid4().hex[:8]}.jsonl"
        folders: tuple[Callable[[], str | Path], ...] = (Path.cwd, tempfile.gettempdir)
        for folder in folders:
            try:
                path = Path(folder()) / name
                _write_whole(dump, path)
            except OSError:  # it is full, read-only or gone
                continue
            self._say(f"{what}; they are in {path}, and `{self._import_command(path)}` takes them in")
            return
        self._say(f"{what}, nor into a file: they are lost")

    def _import_command(self, path: Path) -> str:
        """The command that takes the file in where its records belong."""
        place = self._store.given if isinstance(self._store, SharedStore) else None
        words = ["stormdrop", "db", "import", "--trusted", str(path), *([] if place is None else ["--db", place])]
        return shlex.join(words)

    # Helpers

    @property
    def _missing(self) -> list[_Session]:
        return [kept for kept in self._sessions.values() if not kept.complete]

    def _write_missing(self, now: bool = False) -> None:
        """Writes what the database lacks, unless it has just failed."""
        for kept in self._missing:
            if not now and time.monotonic() < self._next:
                return
            if not self._write(kept, lambda kept=kept: self._restore(kept)):  # type: ignore[misc]
                return

    def _restore(self, kept: _Session) -> None:
        """Brings the database's copy of a session to the state of ours. If that is another run's now, it gets ours."""
        if not self._is_restored(kept):
            kept.session = dataclasses.replace(kept.session, id=str(uuid.uuid4()))
            self._is_restored(kept)

    def _is_restored(self, kept: _Session) -> bool:
        """Whether the database's copy of a session could be brought to the state of ours."""
        if self._store.absorb([(kept.session, kept.trials)], measured_here=True).diverged:
            return False
        try:
            if kept.session.state is not State.FINISHED:
                self._store.resume(kept.session)
        except DatabaseFailure:
            raise
        except StoreError:  # another run writes it, or has finished it
            return False
        if kept.session.state is State.INTERRUPTED:
            self._store.interrupt(kept.session, kept.session.outcome)
        return True

    def _write(self, kept: _Session, write: Callable[[], object]) -> bool:
        """Writes to the database what it lacks of a session, by calling `write`.

        Returns:
            Whether it was written.
        """
        begin = time.monotonic()
        try:
            write()
        except StoreError as error:
            self._failed(kept, error, time.monotonic() - begin)
            return False
        except BaseException:  # Ctrl-C: nobody knows whether it was written
            kept.complete = False
            raise
        self._next = -math.inf
        kept.is_written()
        return True

    def _failed(self, kept: _Session, error: StoreError, took: float = 0.0) -> None:
        if not self._reason:
            self._say(f"{error}; the tuning goes on, and its records are kept in memory until they can be written")
        self._reason, self._passes = str(error), isinstance(error, DatabaseFailure) and error.passes
        self._next, kept.complete = time.monotonic() + max(RETRY_SECONDS, RETRY_FACTOR * took), False

    def _end(
        self,
        session: StoredSession,
        state: State,
        outcome: Outcome | None,
        write: Callable[[StoredSession], StoredSession],
    ) -> StoredSession:
        kept = self._sessions[session.id]
        running, kept.session = kept.session, dataclasses.replace(kept.session, state=state, outcome=outcome)
        if kept.complete:
            self._write(kept, lambda: write(running))
        self._write_missing()
        if kept.complete:
            del self._sessions[session.id]
        return kept.session

    def _known(self, query: Callable[[], list[T]]) -> list[T]:
        """What the database answers; nothing if it fails, or holds damaged rows, after the tuning has begun."""
        try:
            return query()
        except StoreError:
            if not self._begun:
                raise
            return []


def _write_whole(dump: Dump, path: Path) -> None:
    try:
        with path.open("xb") as out:
            write_lines(dump, out)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _as_stored(session: StoredSession, position: int, batch: int, record: Record) -> StoredTrial:
    """A record as the database gives it back."""
    measurement, phases = record.measurement, record.measurement.phases
    return StoredTrial(
        batch=batch,
        position=position,
        sketch=record.sketch,
        fingerprint=session.setting.sketches[record.sketch],
        config=record.config,
        measurement=dataclasses.replace(
            measurement,
            error=clean(measurement.error),
            phases=Phases(*map(float, (phases.schedule, phases.build, phases.run, phases.check))),
            suspect=bool(measurement.suspect),
        ),
        elapsed=float(record.elapsed),
    )


def _warn(line: str) -> None:
    warnings.warn(line, RuntimeWarning, stacklevel=2)
