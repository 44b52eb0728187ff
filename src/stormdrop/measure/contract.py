"""The contract of a measurer: it takes requests and returns measurements. A failed candidate is a measurement, too."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from typing_extensions import Self

from ..trial import Candidate, Measurement, Phases, Request
from .timing import SAMPLE_SECONDS, rounds_within


@runtime_checkable
class Measurer(Protocol):
    """Measures candidates of one workload on one machine.

    A measurer inherits from this class and implements `measure`, `race` and `close`. It overrides another method if it
    knows better. Use it as a context manager, and from one thread at a time.

    Attributes:
        deadline: a reading of `time.perf_counter` after which it does not wait for the machine any more, if others use
            it. Its owner sets it before each call.

    Raises:
        MeasureError: no candidate can be measured at all, for example because no worker starts; or, as `LockTimeout`,
            because the machine was not free before the deadline. It raises nothing else.
    """

    deadline: float = math.inf

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """Measures candidates one by one.

        Args:
            requests: the candidates, each with the number of samples that is wanted.

        Yields:
            One measurement per request, in order, each as soon as it is known. A measurement that is OK holds
            `repeats` samples. It may hold fewer if the candidate is hopeless, and more if one execution brings
            several. The caller may stop before the end; the rest is then abandoned.
        """

    def announce(self, requests: Sequence[Request]) -> None:
        """Tells what the next calls of `measure` will ask for, so that nothing idle waits for the slowest of a batch.

        Args:
            requests: the requests of these calls, in order. What was announced before and is not among them will not
                come.
        """
        return  # a measurer of one machine has nothing idle

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        """Measures a few candidates in turns: every round takes one sample of each, in a changing order.

        Args:
            candidates: the candidates that race.
            rounds: the number of rounds.

        Returns:
            One measurement per candidate, in order. Each that is OK holds exactly `rounds` samples, and sample r of
            every candidate was taken in round r, so that samples can be compared in pairs.
        """

    def race_for(
        self, candidates: Sequence[Candidate], estimates: Sequence[float], seconds: float
    ) -> Sequence[Measurement]:
        """A race of as many rounds as fit into a time.

        Args:
            candidates: the candidates that race.
            estimates: the expected seconds of one execution of each candidate.
            seconds: wall seconds of the race. It takes longer if even the fewest rounds do not fit.

        Returns:
            One measurement per candidate, as `race` returns them.
        """
        # A turn is one execution that warms up, and one sample.
        turns = [estimate + max(estimate, SAMPLE_SECONDS) for estimate in estimates]
        return self.race(candidates, rounds_within(turns, seconds))

    def wall_seconds(self, spent: Phases) -> Mapping[str, float]:
        """Wall seconds by phase. They are less than the sum over all measurements if measurements run side by side.

        Args:
            spent: the sum of the phases of all measurements.
        """
        return dataclasses.asdict(spent)

    def conditions(self) -> Mapping[str, Any]:
        """The conditions under which the times were taken, such as clocks, as values for JSON."""
        return {}

    def close(self) -> None:
        """Gives back processes and locks. Closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
