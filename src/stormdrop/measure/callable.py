"""A measurer that calls a Python function in this process: whatever can be called can be searched."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SpaceError
from ..space import Space
from ..trial import Candidate, Measurement, Phases, Request, Status
from .contract import Measurer
from .timing import FEWEST_ROUNDS, rounds_within

Seconds = float | Sequence[float] | NDArray[np.floating[Any]]
"""What an objective returns: one sample, or several. All are finite and greater than zero: logs are compared."""

Objective = Callable[[str, dict[str, Any]], Seconds]
"""Takes the name of a space and a configuration of it, which it may keep and change."""

_CUTOFF = 3.0  # times the fastest: slower candidates are hopeless


class CallableMeasurer(Measurer):
    """Measures by calling the objective, one call at a time.

    An objective that returns one number is called until there are as many samples as are wanted; one that returns
    several is called once, and these are the samples, however many. In a race each turn is one call, and the median
    of what it returns. What it raises is the failure of this candidate (RUNTIME), and so is what it returns that is
    no time (WRONG_ANSWER); only what is no `Exception`, such as KeyboardInterrupt, goes through.

    The objective alone knows what it measures, so that nothing here guards it: no lock, no time limit, no watch for
    foreign load. What may hang or crash belongs in a process of its own, with a limit.

    `best` is the median of the fastest candidate so far, in seconds: a candidate whose sample exceeds three times
    that is hopeless and gets no more samples.
    """

    def __init__(self, spaces: Sequence[Space], objective: Objective, best: float | None = None) -> None:
        self.best = best
        self._spaces = {space.name: space for space in spaces}
        self._objective = objective

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """See `Measurer.measure`; there are more samples than wanted where one call brings more."""
        for request in requests:
            taken = _Taken()
            while taken.ok and len(taken.seconds) < request.repeats:
                samples = self._call(request.candidate, taken)
                taken.seconds += samples
                if len(samples) > 1 or (self.best is not None and samples and samples[0] > _CUTOFF * self.best):
                    break
            if taken.ok:
                median = statistics.median(taken.seconds)
                self.best = median if self.best is None else min(self.best, median)
            yield taken.measurement()

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        """See `Measurer.race`; whoever fails once is out."""
        racing = [(candidate, _Taken()) for candidate in candidates]
        for turn in range(rounds):
            for candidate, taken in racing if turn % 2 == 0 else reversed(racing):
                if taken.ok and (samples := self._call(candidate, taken)):
                    taken.seconds.append(statistics.median(samples))
        return [taken.measurement() for _, taken in racing]

    def race_for(
        self, candidates: Sequence[Candidate], estimates: Sequence[float], seconds: float
    ) -> Sequence[Measurement]:
        """See `Measurer.race_for`.

        A call takes the time it takes, whatever time it reports: a few rounds show how many more fit.
        """
        raced = self.race(candidates, FEWEST_ROUNDS)
        turns = [measurement.phases.run / FEWEST_ROUNDS for measurement in raced]
        more = rounds_within(turns, seconds) - FEWEST_ROUNDS
        working = [index for index, measurement in enumerate(raced) if measurement.ok]
        if more and working:
            later = self.race([candidates[index] for index in working], more)
            for index, measurement in zip(working, later, strict=True):
                raced[index] = _joined(raced[index], measurement)
        return raced

    def wall_seconds(self, spent: Phases) -> dict[str, float]:
        """The wall seconds of all calls; the other phases are those of a kernel."""
        return {"run": spent.run}

    def close(self) -> None:
        """Nothing to give back."""

    def _call(self, candidate: Candidate, taken: _Taken) -> list[float]:
        """The samples of one call; none where it failed, and then `taken` says why."""
        samples: list[float] = []
        start = time.perf_counter()
        try:
            config = self._spaces[candidate.sketch].config(candidate.point)
        except SpaceError as error:
            taken.status, taken.error = Status.INSTANTIATION, _line(str(error))
            return samples
        try:
            samples = _samples(self._objective(candidate.sketch, config))
        except _NoTime as error:
            taken.status, taken.error = Status.WRONG_ANSWER, _line(str(error))
        except Exception as error:  # noqa: BLE001  whatever an objective raises is this candidate's failure
            taken.status, taken.error = Status.RUNTIME, _line(f"{type(error).__name__}: {error}")
        taken.wall += time.perf_counter() - start
        return samples


def _joined(earlier: Measurement, later: Measurement) -> Measurement:
    if not later.ok:
        return later
    return Measurement(Status.OK, earlier.seconds + later.seconds, "", earlier.phases + later.phases)


@dataclass
class _Taken:
    """What the calls for one candidate brought so far; `wall` is in seconds."""

    seconds: list[float] = field(default_factory=list)
    status: Status = Status.OK
    error: str = ""
    wall: float = 0.0

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    def measurement(self) -> Measurement:
        return Measurement(self.status, tuple(self.seconds) if self.ok else (), self.error, Phases(run=self.wall))


class _NoTime(Exception):
    """An objective returned what is no time. Never leaves this module."""


def _samples(returned: object) -> list[float]:
    """What an objective returned, as samples in seconds. Raises `_NoTime`."""
    values = np.atleast_1d(np.asarray(returned))
    if (
        values.dtype.kind not in "iuf"
        or values.ndim != 1
        or not values.size
        or not np.all((values > 0) & (values < np.inf))
    ):
        raise _NoTime(f"not seconds, one number or several, finite and above zero: {returned!r}")
    return [float(value) for value in values]


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
