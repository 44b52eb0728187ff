"""One line on a terminal that says what a command does, and for how many seconds. Elsewhere nothing is said.

A command that loads TVM or a model would be silent for seconds otherwise. To draw the line takes microseconds, so that
it may stay beside what is timed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console

from ..errors import without_passwords
from .progress import Reporter

if TYPE_CHECKING:
    from ..tuning.result import Progress

_EVERY = 1.0  # seconds between two drawings
_OPENING = 20  # columns that what the command does has at least, if the line is narrow


@contextlib.contextmanager
def loading(opening: str) -> Iterator[None]:
    """Shows what is done while TVM is loaded by a command that forks this process then.

    A process with a second thread cannot be forked, so a timer draws the line. It draws none while the system loads a
    library.

    Args:
        opening: What is done, such as "tuning resnet50.onnx".
    """
    main = threading.current_thread() is threading.main_thread()
    if not (main and sys.stderr.isatty() and hasattr(signal, "setitimer")):
        yield
        return
    line = _Line(opening, "loading TVM")
    before = signal.signal(signal.SIGALRM, lambda *_: line.draw())
    signal.setitimer(signal.ITIMER_REAL, _EVERY, _EVERY)
    line.draw()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        line.hide()


@contextlib.contextmanager
def telling(opening: str, text: str = "") -> Iterator[Teller]:
    """Shows what is done now, and takes it away in the end.

    Args:
        opening: What the command does, such as "running resnet50.sd".
        text: What it does first, in a few words.

    Yields:
        A function that takes what is done next, in a few words.
    """
    if not sys.stderr.isatty():
        with contextlib.closing(Teller(opening, None)) as teller:
            yield teller
        return
    line, ended = _Line(opening, text), threading.Event()

    def tick() -> None:
        while not ended.wait(_EVERY):
            line.draw()

    ticker = threading.Thread(target=tick, name="status line", daemon=True)
    with contextlib.redirect_stderr(cast(TextIO, _Above(sys.stderr, line))):
        line.draw()
        ticker.start()
        try:
            with contextlib.closing(Teller(opening, line)) as teller:
                yield teller
        finally:
            ended.set()
            ticker.join()
            line.hide()


class Teller:
    """Says what a command does now: call it with a few words. `telling` makes it."""

    def __init__(self, opening: str, line: _Line | None) -> None:
        """A teller.

        Args:
            opening: What the command does.
            line: Where it says so; None for nowhere.
        """
        self._opening, self._line = opening, line
        self._reporter: Reporter | None = None

    def __call__(self, text: str) -> None:
        self.close()
        if self._line is not None:
            self._line.show(text)

    def tuning(self, progress: Progress) -> None:
        """Shows how far a tuning is that the command does, in place of the line, until something else is said."""
        if self._reporter is None:
            if self._line is not None:
                self._line.hide()
            self._reporter = Reporter(None, "" if self._line is None else self._opening).__enter__()
        self._reporter(progress)

    def close(self) -> None:
        """Takes away how far a tuning is."""
        if self._reporter is not None:
            self._reporter.__exit__(None, None, None)
            self._reporter = None


class _Line:
    """The line. Threads may draw it and write above it at the same time."""

    def __init__(self, opening: str, text: str) -> None:
        self._opening, self._text = without_passwords(opening), text
        self._begin, self._width = time.monotonic(), Console(stderr=True).width - 1
        self._stream, self._lock = sys.stderr, threading.RLock()
        self._hidden = self._midway = False  # midway: what was written above it last did not end with its line

    def show(self, text: str) -> None:
        """Draws the line with another text."""
        self._text, self._hidden = text, False
        self.draw()

    def draw(self) -> None:
        """Draws the line, unless it is hidden."""
        with self._lock:
            if not self._hidden and not self._midway:
                text = f": {self._text}" if self._text else ""
                text += f", {time.monotonic() - self._begin:.0f} s"
                words = _shortened(self._opening, max(_OPENING, self._width - len(text))) + text
                self._put(f"\r{words[: self._width]}\x1b[K")

    def hide(self) -> None:
        """Takes the line away until it is shown again."""
        with self._lock:
            if not self._hidden and not self._midway:
                self._put("\r\x1b[2K")
            self._hidden = True

    def write_above(self, text: str) -> int:
        """Writes a text where the line is, which is drawn below it a moment later."""
        with self._lock:
            if not self._hidden:
                if not self._midway:
                    self._put("\r\x1b[2K")
                self._midway = not text.endswith("\n")
            written = self._stream.write(text)
            self._stream.flush()
            return written

    def _put(self, text: str) -> None:
        # The handler of a signal must not write to a buffer that the program may be writing to.
        with contextlib.suppress(OSError):  # the terminal has gone, and the line is worth no result
            os.write(self._stream.fileno(), text.encode(errors="replace"))


def _shortened(words: str, width: int) -> str:
    return words if len(words) <= width else f"{words[: width - 1]}…"


class _Above:
    """Standard error while the line is shown: what is written to it stands above the line."""

    def __init__(self, stream: TextIO, line: _Line) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        return self._line.write_above(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
