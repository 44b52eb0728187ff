"""The contract of a measurer, which takes requests and returns measurements, and of a site, where kernels are measured.

A failed candidate is a measurement, too.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from typing_extensions import Self

from ..trial import Candidate, Measurement, Phases, Request
from .timing import SAMPLE_SECONDS, rounds_within

if TYPE_CHECKING:
    from ..ir.workload import Workload
    from ..machine.contract import Machine
    from ..machine.limits.passing import Passing
    from ..sketches.contract import AnySketch
    from ..space import Space


@runtime_checkable
class Measurer(Protocol):
    """Measures candidates of one workload on one machine.

    A measurer inherits from this class and implements `measure`, `race` and `close`. It overrides another method if it
    knows better. Use it as a context manager, and from one thread at a time.

    Attributes:
        deadline: A reading of `time.perf_counter` after which it does not wait for the machine any more, if others use
            it. Its owner sets it before each call.

    Raises:
        MeasureError: No candidate can be measured at all, for example because no worker starts; or, as `LockTimeout`,
            because the machine was not free before the deadline. It raises nothing else.
    """

    deadline: float = math.inf

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """Measures candidates one by one.

        Args:
            requests: The candidates, each with the number of samples that is wanted.

        Yields:
            One measurement per request, in order, each as soon as it is known. A measurement that is OK holds
            `repeats` samples. It may hold fewer if the candidate is hopeless, and more if one execution brings
            several. The caller may stop before the end; the rest is then abandoned.
        """

    def announce(self, requests: Sequence[Request]) -> None:
        """Tells what the next calls of `measure` will ask for, so that nothing idle waits for the slowest of a batch.

        Args:
            requests: The requests of these calls, in order. What was announced before and is not among them will not
                come.
        """
        return  # a measurer of one machine has nothing idle

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        """Measures a few candidates in turns: every round takes one sample of each, in a changing order.

        Args:
            candidates: The candidates that race.
            rounds: The number of rounds.

        Returns:
            One measurement per candidate, in order. Each that is OK holds exactly `rounds` samples, and sample r of
            every candidate was taken in round r, so that samples can be compared in pairs.
        """

    def race_for(
        self, candidates: Sequence[Candidate], estimates: Sequence[float], seconds: float
    ) -> Sequence[Measurement]:
        """A race of as many rounds as fit into a time.

        Args:
            candidates: The candidates that race.
            estimates: The expected seconds of one execution of each candidate.
            seconds: Wall seconds of the race. It takes longer if even the fewest rounds do not fit.

        Returns:
            One measurement per candidate, as `race` returns them.
        """
        # A turn is one execution that warms up, and one sample.
        turns = [estimate + max(estimate, SAMPLE_SECONDS) for estimate in estimates]
        return self.race(candidates, rounds_within(turns, seconds))

    def wall_seconds(self, spent: Phases) -> Mapping[str, float]:
        """Wall seconds by phase. They are less than the sum over all measurements if measurements run side by side.

        Args:
            spent: The sum of the phases of all measurements.
        """
        return dataclasses.asdict(spent)

    def conditions(self) -> Mapping[str, Any]:
        """The conditions under which the times were taken, such as clocks, as values for JSON."""
        return {}

    def close(self) -> None:
        """Gives back processes and locks, if there are any. Closing twice is harmless."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class KernelSetup:
    """What is measured: the candidates of one workload.

    Attributes:
        workload: The function to measure.
        target: The machine to build for.
        sketches: The sketches that candidates come from, with their spaces.
        seed: The seed of the inputs.
        passing: What passes through the caches between two executions, as in a model with other kernels; None if
            nothing does.
        best: The lowest median so far in seconds, if records give it: time limits follow from it.
    """

    workload: Workload
    target: Machine
    sketches: Sequence[tuple[AnySketch, Space]]
    seed: int = 0
    passing: Passing | None = None
    best: float | None = None

    def __call__(self, workshop: Any, stop: threading.Event) -> Measurer:
        """A measurer on a machine of a fleet, as the machine's workshop makes it (`measure/fleet/fleet_machine.py`)."""
        measurer: Measurer = workshop.measurer(self, stop)
        return measurer


class Site(Protocol):
    """Where kernels are measured: this machine, a rack of boards, a fleet, or a measurer that somebody gives.

    A site inherits from this class and implements `measurer`. It overrides another method if it knows better. What it
    holds, such as worker processes, serves one kernel after the other; use it as a context manager to give that back.
    """

    @property
    def width(self) -> int:
        """How many candidates it measures at the same time."""
        return 1

    def check(self, target: Machine) -> None:
        """Checks that it measures kernels of a machine.

        Args:
            target: The machine that the kernels are made for.

        Raises:
            InputError: It does not. The message is one line.
        """
        return

    def prepare(self, target: Machine, seconds: float | None) -> None:
        """Measures what times are compared with, such as the peak, if it can. Call it before `measurer`.

        Args:
            target: The machine that the kernels are made for.
            seconds: The wall seconds that it may take; None is no bound.
        """
        return

    def measurer(self, setup: KernelSetup) -> AbstractContextManager[Measurer]:
        """A measurer of one kernel.

        Args:
            setup: What is measured.

        Raises:
            MeasureError: Nothing can be measured.
        """

    def close(self) -> None:
        """Gives back what it holds. Closing twice is harmless."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
