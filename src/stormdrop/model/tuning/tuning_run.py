"""A run of `tune_model` or `compile_model`: its phases, what its user is told, and whether Ctrl-C has ended it."""

from __future__ import annotations

import logging
import math
import time as clock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from ... import events
from ...tuning.result import Progress
from ..building.tuned_task import TunedTasks

T = TypeVar("T")

_LATE = 1.2
"""From this many times its time on, a run says why it took so long."""

MODEL = "model about"
"""What the progress of a model says before its estimated latency."""

_NAMED = 4  # phases

_logger = logging.getLogger(__name__)


class TuningRun:
    """The clock of a run: where its time goes, what its user is told, and whether Ctrl-C has ended it."""

    def __init__(self, begin: float, seconds: float | None, on_progress: Callable[[Progress], None] | None) -> None:
        self.begin, self.seconds = begin, seconds
        self.phases: dict[str, float] = {}
        self.interrupted = False
        self._has_found = False  # whether the run has measured anything that is worth a model
        self.untuned: float | None = None  # seconds of an execution with default schedules, at the first size
        self.peer: float | None = None  # and by onnxruntime
        self._on_progress = on_progress
        self._tuned: TunedTasks | None = None

    @property
    def end(self) -> float:
        """When it should end, a reading of `time.perf_counter`."""
        return math.inf if self.seconds is None else self.begin + self.seconds

    @property
    def left(self) -> float | None:
        """Wall seconds until then, at least 0; None if they are not bounded."""
        return None if self.seconds is None else max(0.0, self.end - clock.perf_counter())

    @property
    def has_time(self) -> bool:
        """Whether there is time left, and nobody has ended the run."""
        return not self.interrupted and self.left != 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A context whose wall time is counted under this name; several may have one name."""
        start = clock.perf_counter()
        try:
            with events.span(name, "phases"):
                yield
        finally:
            seconds = clock.perf_counter() - start
            self.phases[name] = self.phases.get(name, 0.0) + seconds
            _logger.info("%s took %.2f s", name, seconds)

    def add(self, tuned: TunedTasks) -> None:
        """Adds the phases of the tasks, and what was found.

        Raises:
            KeyboardInterrupt: Ctrl-C has ended the tuning before anything was measured: there is nothing to save.
        """
        self._tuned, self.interrupted = tuned, tuned.interrupted
        self.phases["records"] = self.phases.get("records", 0.0) + tuned.records_seconds
        results = [task.result for task in tuned.tasks if task.result is not None]
        for result in results:
            for phase, seconds in result.phases.items():
                self.phases[phase] = self.phases.get(phase, 0.0) + seconds
        # A session that was resumed and ended at once has found what it had; what the records answer is found anyway.
        self._has_found = any(result.trials > (0 if result.interrupted else result.reused) for result in results)
        if self.interrupted and not self._has_found:
            raise KeyboardInterrupt

    def despite_interruption(self, work: Callable[[], T]) -> T:
        """What `work` returns.

        The first Ctrl-C of a run that has measured something only begins it anew, so that what was found is saved.
        """
        try:
            return work()
        except KeyboardInterrupt:
            if self.interrupted or not self._has_found:
                raise
            self.interrupted = True
            return work()

    def say_if_late(self, name: str) -> None:
        """Says where the time of a run has gone that took longer than it should.

        Always done are one import, a verification on one sample at least, a look at the records, and a compilation.

        Args:
            name: The name of the model.
        """
        taken = clock.perf_counter() - self.begin
        if self.seconds is None or taken <= _LATE * self.seconds:
            return
        longest = sorted(self.phases.items(), key=lambda each: -each[1])[:_NAMED]
        parts = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in longest)
        _logger.warning("%s: took %.1f s in place of %.1f s: %s", name, taken, self.seconds, parts)

    def say(self, message: str, checking: bool = False) -> None:
        """Tells the user what is done now.

        Args:
            message: What is done, in a few words.
            checking: As in `Progress`.
        """
        _logger.info("%s", message)
        tuned = () if self._tuned is None else self._tuned.tasks
        results = [task.result for task in tuned if task.result is not None]
        trials, failed = sum(result.trials for result in results), sum(result.failed for result in results)
        latency = self._tuned.curve[-1][1] if self._tuned is not None and self._tuned.curve else None
        elapsed = clock.perf_counter() - self.begin
        self.report(Progress(trials, failed, latency, elapsed, self.seconds, message, MODEL, checking=checking))

    def report(self, progress: Progress) -> None:
        """Passes on how far the tuning is, with what was measured before it."""
        if self._on_progress is not None:
            self._on_progress(replace(progress, untuned_seconds=self.untuned, peer_seconds=self.peer))
