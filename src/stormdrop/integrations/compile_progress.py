"""Says on standard error what a compilation does: the call of a model that waits for it would be silent otherwise.

    stormdrop: compiling forward of resnet.py for 1x3x224x224: importing it
    stormdrop: compiled forward of resnet.py for 1x3x224x224 in 12.1 s (import 3.0 s, verify 4.2 s, ...)

On a terminal one line stays in place, counts the seconds, and goes at the end. Elsewhere each phase is a line. If the
log of `stormdrop` takes INFO, the lines go there. If its level is set above INFO, nothing is said.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from .. import events

_logger = logging.getLogger(__name__)

_WORTH_A_LINE = 1.0
"""Seconds from which on it is said how long something took."""

_WORDS = {
    "import": "importing it",
    "verify": "computing what is right, and comparing with it",
    "schedule": "choosing schedules",
    "peak": "measuring the machine",
    "compile": "compiling kernels",
    "race": "timing schedules",
}


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """A context in which a model is compiled, whose phases are shown.

    Args:
        what: What is compiled, such as "forward of resnet.py for 1x3x224x224".
    """
    shown = _Shown(what)
    with ExitStack() as stack:
        stack.enter_context(events.listening(shown.hear, here=True))
        if sys.stderr.isatty() and _speaks() and not _logs():
            console = Console(stderr=True)
            live = Live(shown, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
            shown.live = stack.enter_context(live)
        else:
            say(str(shown))
        yield
    said(f"compiled {what}", shown.begin, shown.phases)


def said(what: str, begin: float, phases: dict[str, float] | None = None) -> None:
    """Says what was done, and how long it took, if that was long.

    Args:
        what: What was done.
        begin: When it began, a reading of `time.perf_counter`.
        phases: The seconds of its parts.
    """
    seconds = time.perf_counter() - begin
    if seconds >= _WORTH_A_LINE:
        parts = ", ".join(f"{name} {part:.1f} s" for name, part in (phases or {}).items())
        say(f"{what} in {seconds:.1f} s" + (f" ({parts})" if parts else ""))


def say(line: str) -> None:
    """A line in the log if that takes INFO, else on standard error, unless the log's level was set above INFO."""
    if _logs():
        _logger.info("%s", line)
    elif _speaks():
        print(f"stormdrop: {line}", file=sys.stderr, flush=True)


class _Shown:
    """What a compilation does now, and how long its phases took."""

    def __init__(self, what: str) -> None:
        self.begin = time.perf_counter()
        self.phases: dict[str, float] = {}
        self.live: Live | None = None
        self._what, self._phase, self._since = what, "", self.begin

    def __str__(self) -> str:
        return f"compiling {self._what}" + (f": {_WORDS.get(self._phase, self._phase)}" if self._phase else "")

    def __rich__(self) -> Text:
        line = f"stormdrop: {self}, {time.perf_counter() - self.begin:.0f} s"
        return Text(line, no_wrap=True, overflow="ellipsis")

    def hear(self, event: events.Event) -> None:
        """Takes the beginnings and ends of the phases."""
        if event.where != "phases":
            return
        if event.kind is events.Kind.STARTED:
            changed, self._phase, self._since = event.what != self._phase, event.what, event.seconds
            if changed and self.live is None:
                say(str(self))
        elif event.kind is events.Kind.FINISHED:
            self.phases[event.what] = self.phases.get(event.what, 0.0) + event.seconds - self._since


def _logs() -> bool:
    """Whether the log takes these lines."""
    return _logger.isEnabledFor(logging.INFO) and _logger.hasHandlers()


def _speaks() -> bool:
    """Whether nobody has told the log of this package to be silent: the level of the root says nothing of it."""
    names = __name__.split(".")
    levels = [logging.getLogger(".".join(names[:count])).level for count in range(len(names), 0, -1)]
    level = next((level for level in levels if level), logging.INFO)
    return level <= logging.INFO and logging.root.manager.disable < logging.INFO
