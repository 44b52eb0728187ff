"""Runs that are at work: each says in a small file what it does, from its first second on, and the dashboard shows it.

The records know a session from its first measurement on. A model is imported and verified before that.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from ... import events
from ...errors import one_line
from ...events import Event, Kind
from ...records.place import default_path
from ...records.sql.writer_process import is_dead, new_writer

PHASES = {
    "import": "importing the model",
    "verify": "verifying",
    "peak": "measuring the machine",
    "baseline": "timing the untuned model",
    "tune": "searching",
    "start": "starting workers",
    "search": "searching",
    "race": "racing the best candidates",
    "compile": "compiling the model",
    "latency": "timing the model",
}
"""Phases of a tuning in words, by the names of their spans."""

_PLACES = ("phases", "tuning")  # where spans happen that are phases
_EVERY = 1.0  # seconds between two writes of the file, if the phase stays the same

_logger = logging.getLogger(__name__)


_is_announced: ContextVar[bool] = ContextVar("_is_announced", default=False)
"""Whether the run that this thread is at is announced: several threads of a process may each be at one."""


@dataclass(frozen=True)
class Run:
    """What a run says about itself.

    Attributes:
        writer: Its process; see `records.sql.writer_process`.
        what: What it tunes.
        begun: When it began, in seconds since the epoch.
        budget_seconds: Wall seconds that it may take; None is no bound.
        budget_trials: Candidates that it may measure; None is no bound.
        database: Where its records are; empty if it does not say.
        phase: What it does now, in words.
        phase_begun: Since when, in seconds since the epoch.
        kernel: The name of the kernel that is searched now; empty if none is.
        layers: The layers that this kernel computes, in few words; empty if they are not known.
        kernels: How many kernels a model has; 0 for an operator, and before that is known.
        trials: Candidates measured in this run.
        failed: How many of them failed.
        best_seconds: Seconds of the fastest so far; of a model its estimated latency. None before anything has worked.
    """

    writer: str
    what: str
    begun: float
    budget_seconds: float | None
    budget_trials: int | None
    database: str
    phase: str
    phase_begun: float
    kernel: str = ""
    layers: str = ""
    kernels: int = 0
    trials: int = 0
    failed: int = 0
    best_seconds: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return max(0.0, time.time() - self.begun)

    @property
    def left(self) -> float | None:
        """Seconds that are left of its time, at least 0; None if it is not bounded."""
        return None if self.budget_seconds is None else max(0.0, self.budget_seconds - self.elapsed)

    @property
    def share(self) -> float | None:
        """The share of its budget that is spent, of the time or of the trials; None if neither is bounded."""
        spent = [self.elapsed / self.budget_seconds] if self.budget_seconds else []
        spent += [self.trials / self.budget_trials] if self.budget_trials else []
        return min(1.0, max(spent)) if spent else None


def folder() -> Path:
    """Where the files of runs are: beside the default database."""
    return default_path().parent / "running"


@contextmanager
def announced(
    what: str, seconds: float | None = None, trials: int | None = None, database: str = "", begun: float | None = None
) -> Iterator[None]:
    """A context of a run that says what it does. Inside another one of its thread it says nothing of its own.

    It says what happens in its own thread: other threads may be at other runs. A file that cannot be written disturbs
    no run.

    Args:
        what: What is tuned.
        seconds: Wall seconds that the run may take; None is no bound.
        trials: Candidates that it may measure; None is no bound.
        database: Where its records are.
        begun: When it began, a reading of `time.perf_counter`; now by default.
    """
    if _is_announced.get():
        yield
        return
    announcement = _Announcement(what, seconds, trials, database, begun)
    token = _is_announced.set(True)
    try:
        with events.listening(announcement, here=True):
            yield
    finally:
        announcement.end()
        _is_announced.reset(token)


def runs_at_work() -> list[Run]:
    """The runs of this user on this machine that have not ended, the newest first."""
    return sorted((run for _, run, dead in _files() if not dead), key=lambda run: -run.begun)


def _files() -> list[tuple[Path, Run, bool]]:
    """The files of runs, and whether the process of each was killed."""
    found = []
    for path in folder().glob("*.json"):
        try:
            run = msgspec.json.decode(path.read_bytes(), type=Run)
            found.append((path, run, is_dead(run.writer)))
        except (OSError, ValueError) as error:  # it has just ended, or another version has written it
            _logger.debug("%s: %s", path, one_line(error))
    return found


class _Announcement:
    """Keeps the file of a run up to date while things happen."""

    def __init__(
        self, what: str, seconds: float | None, trials: int | None, database: str, begun: float | None
    ) -> None:
        now = time.time()
        since = now if begun is None else now - (time.perf_counter() - begun)
        writer = new_writer()
        self._run = Run(writer, what, since, seconds, trials, database, "starting", since)
        self._path = folder() / f"{os.getpid()}-{writer[-8:]}.json"
        self._open: dict[int, tuple[str, str, str]] = {}  # phases that go on: in words, kernel, its layers
        self._of_model = False
        self._written = 0.0
        self._failed = not self._path.is_absolute()  # there is no home directory
        self._remove_ended()
        self._write()

    def __call__(self, event: Event) -> None:
        """Takes what an event of its run says."""
        phase = self._run.phase
        if event.kind is Kind.STARTED and event.where in _PLACES:
            self._began(event)
        elif event.kind is Kind.FINISHED and event.number in self._open:
            del self._open[event.number]
            self._show_phase()
        elif event.what == "trial":
            failed = self._run.failed + (event.details.get("status") != "ok")
            self._run = replace(self._run, trials=self._run.trials + 1, failed=failed)
        elif event.kind is Kind.LEVEL and event.what == ("estimated seconds" if self._of_model else "best seconds"):
            self._run = replace(self._run, best_seconds=float(event.details["value"]))
        if self._run.phase != phase or time.monotonic() - self._written >= _EVERY:
            self._write()

    def end(self) -> None:
        """Removes the file."""
        _remove(self._path)

    def _began(self, event: Event) -> None:
        if event.what not in PHASES and event.where != "phases":
            return
        if event.what == "tune":
            self._of_model = True
            self._run = replace(self._run, kernels=int(event.details.get("kernels", 0)), best_seconds=None)
        kernel, layers = (str(event.details.get(name, "")) for name in ("workload", "layers"))
        self._open[event.number] = PHASES.get(event.what, event.what), kernel, layers
        self._show_phase()

    def _show_phase(self) -> None:
        phase, kernel, layers = list(self._open.values())[-1] if self._open else (self._run.phase, "", "")
        begun = self._run.phase_begun if phase == self._run.phase else time.time()
        self._run = replace(self._run, phase=phase, phase_begun=begun, kernel=kernel, layers=layers)

    def _remove_ended(self) -> None:
        """Removes the files of runs that were killed."""
        for path, _, dead in _files():
            if dead:
                _remove(path)

    def _write(self) -> None:
        """Writes the file anew, in one step: a reader finds the old one or the new one."""
        self._written = time.monotonic()
        if self._failed:
            return
        beside = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(msgspec.json.encode(asdict(self._run)))
            beside.replace(self._path)
        except OSError as error:
            self._failed = True
            _logger.info("%s: %s: the dashboard does not show this run", self._path, one_line(error))


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _logger.info("%s: %s", path, one_line(error))
