"""Shows on standard error how far a run is: as a display that stays in place on a terminal, else as plain lines."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from ..report.layer_label import layer_label
from .live_display import LiveDisplay
from .output import say, seconds

if TYPE_CHECKING:
    from ..tuning.result import KernelProgress, Progress

_EVERY = 5.0  # seconds between plain lines
_WIDTH = 80  # columns that a plain line has, so that a log can be read
_PER_SECOND = 1.0  # how often the display is drawn anew: each time costs some milliseconds beside what is measured


class Reporter:
    """Shows the progress of a run. Call it with each `Progress`.

    It is a context manager, so that the display is removed however the run ends.
    """

    def __init__(
        self, trials: int | None, opening: str = "", started: float | None = None, *, lines: bool = True
    ) -> None:
        """A reporter that has shown nothing yet.

        Args:
            trials: The most trials of the run; None is no bound.
            opening: A line that is shown once, with the first progress. An error in the input is found before that, so
                its message stands alone.
            started: When the run began, a reading of `time.perf_counter`; now by default.
            lines: Whether it writes lines where there is no terminal.
        """
        self._trials = trials
        self._opening, self._started, self._lines = opening, started, lines
        self._live: Live | None = None
        self._last = time.monotonic()
        self._message = ""
        self._ended: set[str] = set()
        self._display = LiveDisplay(opening)
        if sys.stderr.isatty():
            console = Console(stderr=True)
            self._live = Live(self._display, console=console, refresh_per_second=_PER_SECOND, transient=True)

    def __enter__(self) -> Reporter:
        if self._live:
            from ..tuning.result import Progress  # loads NumPy, which a wrong option should not wait for

            begun = 0.0 if self._started is None else time.perf_counter() - self._started
            self._display.show(Progress(0, 0, None, begun, None, "reading"), 0.0)
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Shows how far the run is."""
        if self._live:
            self._display.show(progress, self._share(progress))
            return
        if progress.checking or not self._lines:
            return
        if self._opening:
            say(self._opening)
            self._opening = ""
        for kernel in progress.kernels:
            if kernel.state == "done" and kernel.name not in self._ended:
                self._ended.add(kernel.name)
                say(_of_kernel(kernel, len(self._ended), len(progress.kernels)))
        now = time.monotonic()
        new_message = bool(progress.message) and progress.message != self._message
        if new_message or now - self._last >= _EVERY:
            self._last, self._message = now, progress.message
            rest = f"{_detail(progress)}, {progress.elapsed:.0f} s{_left(progress)}"
            say(_with_name(progress.message, rest))

    def _share(self, progress: Progress) -> float:
        """The fraction of the budget that is spent: of the time or of the trials, whichever is larger."""
        shares = [0.0]
        if progress.budget_seconds:
            shares.append(progress.elapsed / progress.budget_seconds)
        if self._trials:
            shares.append(progress.trials / self._trials)
        return min(1.0, max(shares))


def _left(progress: Progress) -> str:
    """The time that is left, as the end of a line; empty if the time is not bounded."""
    if not progress.budget_seconds:
        return ""
    return f", {max(0.0, progress.budget_seconds - progress.elapsed):.0f} s left"


def _detail(progress: Progress) -> str:
    """The trials and the best time so far."""
    failed = f" ({progress.failed} failed)" if progress.failed else ""
    best = f", {progress.of} {seconds(progress.best_seconds)}" if progress.best_seconds else ""
    return f"{progress.trials} trials{failed}{best}"


def _of_kernel(kernel: KernelProgress, ended: int, kernels: int) -> str:
    """A line about a kernel whose tuning has ended."""
    best = "nothing worked" if kernel.best_seconds is None else f"{seconds(kernel.best_seconds)} x {kernel.calls}"
    name = layer_label(kernel.layers) or kernel.name
    return _with_name(f"done {ended} of {kernels}: {name}", f"{best}, {kernel.trials} trials")


def _with_name(name: str, rest: str) -> str:
    """A line that begins with a name, which is cut so that the line can be read at 80 columns."""
    if not name:
        return rest
    room = max(12, _WIDTH - len(rest) - 2)
    return f"{name if len(name) <= room else name[: room - 3] + '...'}: {rest}"
