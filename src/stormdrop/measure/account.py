"""Where the wall time of a measurer on this machine goes, and how often things happen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from ..trial import Phases


@dataclass
class Account:
    """The account of one measurer. All times are wall seconds.

    Attributes:
        build: The time in which workers compiled, side by side.
        run: The time in which kernels ran. It includes what the consumer of the measurements did meanwhile.
        lock: The time spent waiting for the machine-wide lock.
        reference: The time spent waiting for the expected outputs.
        restarts: Worker processes that were replaced.
        built: Kernels that were built.
        retried: Runs that were repeated because something else used the machine.
        clocks: The GPU's clock after each run, in MHz.
    """

    build: float = 0.0
    run: float = 0.0
    lock: float = 0.0
    reference: float = 0.0
    restarts: int = 0
    built: int = 0
    retried: int = 0
    clocks: list[int] = field(default_factory=list)

    @contextmanager
    def timed(self, phase: Literal["build", "run"]) -> Iterator[None]:
        """Adds the wall time inside of this context to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, phase, getattr(self, phase) + time.perf_counter() - start)

    def wall_seconds(self, spent: Phases) -> dict[str, float]:
        """Wall seconds by phase.

        Workers compile side by side, so their own seconds add up to more than the wall time. The wall time of building
        is shared between schedule and build in the proportion of these seconds.

        Args:
            spent: The sum of the phases of all measurements.
        """
        compiling, check = spent.schedule + spent.build, min(self.run, spent.check)
        share = self.build / compiling if compiling else 0.0
        return {
            "schedule": spent.schedule * share,
            "build": spent.build * share,
            "run": self.run - check,
            "check": check,
            "lock": self.lock,
            "reference": self.reference,
        }
