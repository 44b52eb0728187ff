"""What happens while stormdrop works, told to whoever listens: the log and the trace of a tuning are made of it.

    span    something that takes time: it is told when it begins and when it ends, so that a hang is seen
    happened  something that takes no time
    level   a number that changes, such as the best time so far

Nobody listens by default, and then an event costs less than a microsecond. Listeners belong to the process, as the
handlers of Python's logging do, because what happens is spread over rooms and threads. Who wants to hear of one run
only listens in its thread: several threads of a process may each be at a run. Worker processes tell nothing: whoever
sends them jobs does.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Kind(Enum):
    """What an event says."""

    STARTED = "started"
    FINISHED = "finished"
    HAPPENED = "happened"
    LEVEL = "level"


@dataclass(frozen=True)
class Event:
    """One event.

    Args:
        kind: What it says.
        what: What began, ended or happened: "build", "run", "lock".
        where: What it happened to, such as "worker 3". Spans of one place and one thread are nested.
        seconds: When, a reading of `time.perf_counter`.
        number: The number of the span, unique in this process; 0 for what is no span.
        details: Values that JSON holds.
    """

    kind: Kind
    what: str
    where: str
    seconds: float
    number: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]
"""Is called in the thread in which the event happens, by one thread at a time. What it raises ends the work."""

_listeners: list[Listener] = []
_listeners_here: ContextVar[tuple[Listener, ...]] = ContextVar("_listeners_here", default=())
_telling = threading.RLock()
_numbers = itertools.count(1)


@contextmanager
def listening(listener: Listener, *, here: bool = False) -> Iterator[None]:
    """A context in which a listener is told every event of this process, or of this thread.

    Args:
        listener: Is called with each `Event`.
        here: Whether it is told only what happens in this thread.

    Example:
        >>> told = []
        >>> with listening(told.append), span("build", "worker 1", kernel=7) as outcome:
        ...     outcome["status"] = "ok"
        >>> [(event.kind.value, event.what, dict(event.details)) for event in told]
        [('started', 'build', {'kernel': 7}), ('finished', 'build', {'status': 'ok'})]
    """
    if here:
        token = _listeners_here.set((*_listeners_here.get(), listener))
        try:
            yield
        finally:
            _listeners_here.reset(token)
        return
    with _telling:
        _listeners.append(listener)
    try:
        yield
    finally:
        with _telling:
            _listeners.remove(listener)


@contextmanager
def span(what: str, where: str, **details: Any) -> Iterator[dict[str, Any]]:
    """A context that is told when it begins and when it ends.

    Args:
        what: What takes the time.
        where: What it happens to.
        **details: Values that JSON holds.

    Yields:
        A dictionary for what is known at the end. If the context ends with an exception, `error` names it.
    """
    number, outcome = started(what, where, **details), dict[str, Any]()
    try:
        yield outcome
    except BaseException as error:
        outcome.setdefault("error", type(error).__name__)
        raise
    finally:
        finished(number, what, where, **outcome)


def started(what: str, where: str, **details: Any) -> int:
    """Tells that something begins which `finished` ends. Returns its number; 0 if nobody listens."""
    if not _anybody():
        return 0
    number = next(_numbers)
    _tell(Event(Kind.STARTED, what, where, time.perf_counter(), number, details))
    return number


def finished(number: int, what: str, where: str, **details: Any) -> None:
    """Tells that what has this number ends. Nothing is told if nobody listened when it began."""
    if number and _anybody():
        _tell(Event(Kind.FINISHED, what, where, time.perf_counter(), number, details))


def happened(what: str, where: str, **details: Any) -> None:
    """Tells what takes no time."""
    if _anybody():
        _tell(Event(Kind.HAPPENED, what, where, time.perf_counter(), 0, details))


def level(what: str, where: str, value: float, **details: Any) -> None:
    """Tells the new value of a number.

    Args:
        what: The number.
        where: What it is a number of.
        value: Its value.
        **details: What else is known: values that JSON holds.
    """
    if _anybody():
        _tell(Event(Kind.LEVEL, what, where, time.perf_counter(), 0, {"value": value, **details}))


def _anybody() -> bool:
    """Whether anybody listens to this thread."""
    return bool(_listeners or _listeners_here.get())


def _tell(event: Event) -> None:
    with _telling:
        for listener in (*_listeners, *_listeners_here.get()):
            listener(event)
