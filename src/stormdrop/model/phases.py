"""Where the wall time of a run goes, by the names of its phases."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .. import events

_logger = logging.getLogger(__name__)


@contextmanager
def timed(phases: dict[str, float], name: str) -> Iterator[None]:
    """Adds the wall seconds that the block takes to a phase.

    Args:
        phases: Seconds by the name of the phase; it is changed.
        name: The name of the phase. Several blocks may have one name.
    """
    start = time.perf_counter()
    try:
        with events.span(name, "phases"):
            yield
    finally:
        seconds = time.perf_counter() - start
        phases[name] = phases.get(name, 0.0) + seconds
        _logger.info("%s took %.2f s", name, seconds)
