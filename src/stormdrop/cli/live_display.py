"""What a tuning looks like in a terminal: where it stands, the estimated latency as it falls, and its kernels."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..report.layer_label import layer_label
from ..tuning.result import KernelProgress, Progress
from .output import seconds

_BARS = "▁▂▃▄▅▆▇█"
_POINTS = 24  # of the curve
_OTHER_LINES = 6  # of the display, besides kernels, and of the terminal around it
_WIDE = 64  # columns from which on all columns of the table are shown
_COLUMNS = (("calls", 5), ("state", 8), ("trials", 6), ("best", 7), ("share", 6))
"""The columns beside the kernel, and how wide they are."""

_NARROW = ("state", "best")
_MARKS = {"tuning": "bold", "waiting": "dim", "plain": "dim"}


class LiveDisplay:
    """A display of the latest progress, as wide as the terminal and no higher. Rich asks for it again and again."""

    def __init__(self, opening: str) -> None:
        """A display that knows no progress yet.

        Args:
            opening: What is tuned, and until when.
        """
        self._opening = opening
        self._progress: Progress | None = None
        self._share = 0.0
        self._received = 0.0
        self._curve: list[float] = []

    def show(self, progress: Progress, share: float) -> None:
        """Takes the latest progress, and the fraction of the budget that is spent."""
        self._progress, self._share, self._received = progress, share, time.monotonic()
        if progress.best_seconds is not None and self._curve[-1:] != [progress.best_seconds]:
            self._curve.append(progress.best_seconds)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(20, options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        progress = self._progress
        if progress is None:
            return
        parts: list[RenderableType] = [Text(self._opening, overflow="ellipsis", no_wrap=True)] if self._opening else []
        if progress.kernels:
            parts.append(_table(progress.kernels, max(3, console.height - _OTHER_LINES), options.max_width))
        status = self._status(progress, options.max_width)
        parts += (
            [self._bar(progress, options.max_width)]
            if status is None
            else [status, self._bar(progress, options.max_width)]
        )
        yield Group(*parts)

    def _status(self, progress: Progress, width: int) -> Text | None:
        """What is known so far; None if that is nothing."""
        known = [seconds(each) for each in (progress.best_seconds, progress.untuned_seconds, progress.peer_seconds)]
        best, untuned, peer = known
        parts = {  # in the order of the line
            "trials": f"{progress.trials} trials" if progress.trials or progress.kernels else "",
            "failed": f"{progress.failed} failed" if progress.failed else "",
            "best": f"{progress.of} {best}" if progress.best_seconds is not None else "",
            "untuned": f"untuned {untuned}" if progress.untuned_seconds is not None else "",
            "peer": f"onnxruntime {peer}" if progress.peer_seconds is not None else "",
        }
        for spare in ("", "failed", "trials", "untuned"):  # whole parts go if the terminal is narrow
            parts.pop(spare, None)
            words = ", ".join(filter(None, parts.values()))
            if len(words) <= width:
                break
        if not words:
            return None
        line = Text(words, overflow="ellipsis", no_wrap=True)
        if len(self._curve) > 1 and len(line) + 2 + _POINTS <= width:
            line.append(f"  {sparkline(self._curve)}", "green")
        return line

    def _bar(self, progress: Progress, width: int) -> Table:
        elapsed = progress.elapsed + time.monotonic() - self._received
        words = f"{elapsed:.0f} s"
        if progress.budget_seconds:
            words += f", {max(0.0, progress.budget_seconds - elapsed):.0f} s left"
        line = Table.grid(padding=(0, 1))
        line.add_column(no_wrap=True, overflow="ellipsis", max_width=max(10, width - 45))
        line.add_column()
        line.add_column(no_wrap=True)
        line.add_row(Text(progress.message or "tuning"), ProgressBar(1.0, self._share, width=16), Text(words))
        return line


def sparkline(values: Sequence[float], points: int = _POINTS) -> str:
    """The values as blocks of different heights, at most `points` of them.

    Example:
        >>> sparkline([8.0, 4.0, 2.0, 1.0])
        '█▄▂▁'
    """
    stride = max(1.0, (len(values) - 1) / (points - 1))
    chosen = [values[round(index * stride)] for index in range(min(points, len(values)))]
    low, high = min(chosen), max(chosen)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in chosen)


def _table(kernels: Sequence[KernelProgress], rows: int, columns: int) -> Table:
    """The kernels as a table: the one that is tuned now, then those that take most of the time, as far as they fit."""
    wide = columns >= _WIDE
    total = sum(_together(kernel) for kernel in kernels)
    ordered = sorted(kernels, key=lambda kernel: (kernel.state != "tuning", -_together(kernel)))
    others = sum(size + 2 for heading, size in _COLUMNS if wide or heading in _NARROW)
    width = max(20, columns - others)
    shown = ordered if len(ordered) <= rows else ordered[: rows - 1]
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    table.add_column("kernel", no_wrap=True, overflow="ellipsis", ratio=1)
    for heading, size in _COLUMNS:
        if wide or heading in _NARROW:
            justify: JustifyMethod = "left" if heading == "state" else "right"
            table.add_column(heading, no_wrap=True, justify=justify, min_width=size)
    for kernel in shown:
        share = f"{_together(kernel) / total:.1%}" if _each(kernel) is not None and total else "-"
        cells = [str(kernel.calls), kernel.state, str(kernel.trials), seconds(_each(kernel)), share]
        kept = [cell for cell, (heading, _) in zip(cells, _COLUMNS, strict=True) if wide or heading in _NARROW]
        table.add_row(Text(layer_label(kernel.layers, width) or kernel.name), *kept, style=_MARKS.get(kernel.state, ""))
    if len(shown) < len(ordered):
        table.add_row(Text(f"and {len(ordered) - len(shown)} more"), style="dim")
    return table


def _together(kernel: KernelProgress) -> float:
    return kernel.calls * (_each(kernel) or 0.0)


def _each(kernel: KernelProgress) -> float | None:
    """Seconds of a call as far as it is known: tuned, or else untuned."""
    return kernel.untuned_seconds if kernel.best_seconds is None else kernel.best_seconds
