"""SIGTERM and SIGHUP end a command as Ctrl-C does. What was found is kept, and the exit code names the signal."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

OF_SIGNALS = 128
"""The exit code of a command that a signal has ended is this plus the number of the signal."""

INTERRUPTED = 130
"""The exit code of an interrupted command: 128 + SIGINT."""

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # not every system has the last one
_SAME_SECONDS = 1.0
_PATIENT_SIGNALS = 2


class Interruption:
    """Turns signals into KeyboardInterrupt.

    The first signal ends the command, with its result so far. The second one ends the saving of that result as well. A
    third one has its default action. Signals that follow within a second count as one: a terminal that closes sends
    SIGHUP twice, `timeout` sends SIGTERM twice, and a logout sends both.

    Attributes:
        number: The first signal; None if there was none.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._count = 0
        self._last = -math.inf
        self._over = False

    def __call__(self, number: int, _: FrameType | None) -> None:
        """Handles a signal."""
        now = time.monotonic()
        if self._over or now - self._last < _SAME_SECONDS:
            return
        self._last = now
        self.number = self.number or number
        self._count += 1
        if self._count > _PATIENT_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise KeyboardInterrupt

    def end(self) -> None:
        """Lets signals do nothing from now on: the command has ended."""
        self._over = True

    def exit_code(self, code: int) -> int:
        """The exit code of a command that returned this one: 143 in place of 130 after SIGTERM, 129 after SIGHUP."""
        return OF_SIGNALS + self.number if code == INTERRUPTED and self.number is not None else code


@contextlib.contextmanager
def as_interrupts(*, process_ends: bool = False) -> Iterator[Interruption]:
    """While active, these signals raise KeyboardInterrupt in the main thread.

    A signal that is ignored stays ignored, as `nohup` wants it. In another thread than the main one nothing changes,
    because Python handles signals in the main thread only.

    Args:
        process_ends: Whether the process ends afterwards. Signals are then ignored from the end on: one that arrives
            while Python itself ends would show a traceback, or change the exit code.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    former = {number: signal.getsignal(number) for number in numbers}
    handled = {number: handler for number, handler in former.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for number in handled:
            signal.signal(number, interruption)
        yield interruption
    finally:
        interruption.end()
        for number, handler in handled.items():
            signal.signal(number, signal.SIG_IGN if process_ends else handler)
