"""A run of `tune_model`: where its time goes, what its user is told, and whether Ctrl-C has ended it."""

from __future__ import annotations

import logging
import math
import time as clock
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from ..tuning.result import Progress
from .phases import timed
from .tuned_task import TunedTasks

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class TuningRun:
    """The clock of a run: where its time goes, what its user is told, and whether Ctrl-C has ended it."""

    def __init__(self, begin: float, seconds: float | None, on_progress: Callable[[Progress], None] | None) -> None:
        self.begin, self.seconds = begin, seconds
        self.phases: dict[str, float] = {}
        self.interrupted = False
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

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A context whose wall time is counted under this name."""
        return timed(self.phases, name)

    def add(self, tuned: TunedTasks) -> None:
        """Adds the phases of the tasks."""
        self._tuned, self.interrupted = tuned, tuned.interrupted
        for task in tuned.tasks:
            for phase, seconds in task.result.phases.items() if task.result is not None else ():
                self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    def despite_interruption(self, work: Callable[[], T]) -> T:
        """What `work` returns. The first Ctrl-C of the run only begins it anew, so that what was found is saved."""
        try:
            return work()
        except KeyboardInterrupt:
            if self.interrupted:
                raise
            self.interrupted = True
            return work()

    def say(self, message: str) -> None:
        """Tells the user what is done now."""
        _logger.info("%s", message)
        if self._on_progress is not None and self._tuned is not None:
            results = [task.result for task in self._tuned.tasks if task.result is not None]
            trials, failed = sum(result.trials for result in results), sum(result.failed for result in results)
            latency = self._tuned.curve[-1][1] if self._tuned.curve else None
            elapsed = clock.perf_counter() - self.begin
            self._on_progress(Progress(trials, failed, latency, elapsed, self.seconds, message))
