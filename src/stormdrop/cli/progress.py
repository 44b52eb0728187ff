"""Shows on standard error how far a run is: as a bar on a terminal, else as a plain line every few seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .output import say, seconds

if TYPE_CHECKING:
    from ..tuning.result import Progress as TuningProgress

_EVERY = 5.0  # seconds between plain lines


class Reporter:
    """Shows the progress of a run. Call it with each `Progress`.

    It is a context manager, so that the bar is removed however the run ends.
    """

    def __init__(self, trials: int | None, opening: str = "") -> None:
        """A reporter that has shown nothing yet.

        Args:
            trials: the most trials of the run; None is no bound.
            opening: a line that is shown once, with the first progress. An error in the input is found before that, so
                its message stands alone.
        """
        self._trials = trials
        self._opening = opening
        self._bar: Progress | None = None
        self._last = time.monotonic()
        self._message = ""
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[detail]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("tuning", total=1.0, detail="")

    def __enter__(self) -> Reporter:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, progress: TuningProgress) -> None:
        """Shows how far the run is."""
        if self._opening:
            if self._bar:
                self._bar.console.print(self._opening, markup=False, highlight=False)
            else:
                say(self._opening)
            self._opening = ""
        if self._bar:
            self._bar.update(
                self._task,
                completed=self._share(progress),
                description=progress.message or "tuning",
                detail=_detail(progress) + _left(progress),
            )
            return
        now = time.monotonic()
        new_message = bool(progress.message) and progress.message != self._message
        if new_message or now - self._last >= _EVERY:
            self._last, self._message = now, progress.message
            prefix = f"{progress.message}: " if progress.message else ""
            say(f"{prefix}{_detail(progress)}, {progress.elapsed:.0f} s{_left(progress)}")

    def _share(self, progress: TuningProgress) -> float:
        """The fraction of the budget that is spent: of the time or of the trials, whichever is larger."""
        shares = [0.0]
        if progress.budget_seconds:
            shares.append(progress.elapsed / progress.budget_seconds)
        if self._trials:
            shares.append(progress.trials / self._trials)
        return min(1.0, max(shares))


def _left(progress: TuningProgress) -> str:
    """The time that is left, as the end of a line; empty if the time is not bounded."""
    if not progress.budget_seconds:
        return ""
    return f", {max(0.0, progress.budget_seconds - progress.elapsed):.0f} s left"


def _detail(progress: TuningProgress) -> str:
    """The trials and the best time so far."""
    failed = f" ({progress.failed} failed)" if progress.failed else ""
    best = f", {progress.of} {seconds(progress.best_seconds)}" if progress.best_seconds else ""
    return f"{progress.trials} trials{failed}{best}"
