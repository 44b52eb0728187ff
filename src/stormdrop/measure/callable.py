"""A measurer that calls a Python function in this process, so that anything that can be called can be searched."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SpaceError, message_of, quoted, shown
from ..space import Space
from ..trial import Candidate, Measurement, Phases, Request, Status
from .contract import Measurer
from .timing import FEWEST_ROUNDS, rounds_within

Seconds = float | Sequence[float] | NDArray[np.floating[Any]]
"""What an objective returns: one sample in seconds, or several, at most 1,000,000. All are from 1e-100 to 1e100."""

Objective = Callable[[str, dict[str, Any]], Seconds]
"""A function of the name of a space and a configuration of it. It may keep and change the configuration."""

_LEAST, _GREATEST = 1e-100, 1e100  # so that squares and ratios of times are numbers, too
_MOST_SAMPLES = 1_000_000

_CUTOFF = 3.0  # times the fastest candidate: a slower one is hopeless


class CallableMeasurer(Measurer):
    """Measures by calling an objective, one call at a time.

    An objective that returns one number is called until there are as many samples as are wanted. An objective that
    returns several is called once, and they are the samples, however many there are. In a race each turn is one call,
    and its sample is the median of what the call returns.

    If the objective raises an exception, this candidate fails (RUNTIME). If it returns something that is no time, or
    raises `WrongAnswer`, the candidate fails, too (WRONG_ANSWER). Only what is no `Exception` is passed on, such as
    KeyboardInterrupt.

    Only the objective knows what it measures, so nothing here guards it: there is no lock, no time limit, and no watch
    for foreign load. An objective that may hang or crash should use a process of its own, with a time limit.

    Attributes:
        best: The median seconds of the fastest candidate so far. A candidate with a sample of more than three times
            that is hopeless and gets no more samples.
    """

    def __init__(self, spaces: Sequence[Space], objective: Objective, best: float | None = None) -> None:
        """A measurer that has called nothing yet.

        Args:
            spaces: The spaces that candidates come from.
            objective: Is called with the name of a space and a configuration of it.
            best: The median seconds of the fastest candidate that is known from records.
        """
        self.best = best
        self._spaces = {space.name: space for space in spaces}
        self._objective = objective

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """See `Measurer.measure`. There are more samples than wanted if one call returns more."""
        for request in requests:
            calls = _Calls()
            while calls.ok and len(calls.seconds) < request.repeats:
                samples = self._call(request.candidate, calls)
                calls.seconds += samples
                if len(samples) > 1 or (self.best is not None and samples and samples[0] > _CUTOFF * self.best):
                    break
            if calls.ok:
                median = statistics.median(calls.seconds)
                self.best = median if self.best is None else min(self.best, median)
            yield calls.measurement()

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        """See `Measurer.race`. A candidate that has failed once is not called again."""
        racing = [(candidate, _Calls()) for candidate in candidates]
        for turn in range(rounds):
            for candidate, calls in racing if turn % 2 == 0 else reversed(racing):
                if calls.ok and (samples := self._call(candidate, calls)):
                    calls.seconds.append(statistics.median(samples))
        return [calls.measurement() for _, calls in racing]

    def race_for(
        self, candidates: Sequence[Candidate], estimates: Sequence[float], seconds: float
    ) -> Sequence[Measurement]:
        """See `Measurer.race_for`.

        The duration of a call has nothing to do with the seconds that it returns. The first rounds show how many more
        fit into the time.
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
        """The wall seconds of all calls. The other phases are those of a kernel."""
        return {"run": spent.run}

    def _call(self, candidate: Candidate, calls: _Calls) -> list[float]:
        """The samples of one call; empty if it failed. Notes the wall time, and why it failed, in `calls`."""
        samples: list[float] = []
        start = time.perf_counter()
        try:
            config = self._spaces[candidate.sketch].config(candidate.point)
        except SpaceError as error:
            calls.status, calls.error = Status.INSTANTIATION, _line(message_of(error))
            return samples
        try:
            samples = _samples(self._objective(candidate.sketch, config))
        except WrongAnswer as error:
            calls.status, calls.error = Status.WRONG_ANSWER, _line(str(error))
        except Exception as error:  # noqa: BLE001  whatever an objective raises is this candidate's failure
            calls.status, calls.error = Status.RUNTIME, _line(f"{type(error).__name__}: {message_of(error)}")
        calls.wall += time.perf_counter() - start
        return samples


@dataclass
class _Calls:
    """What the calls for one candidate have brought so far: samples, the first failure, and the wall seconds."""

    seconds: list[float] = field(default_factory=list)
    status: Status = Status.OK
    error: str = ""
    wall: float = 0.0

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    def measurement(self) -> Measurement:
        return Measurement(self.status, tuple(self.seconds) if self.ok else (), self.error, Phases(run=self.wall))


class WrongAnswer(Exception):
    """A candidate computes something else, or its objective returned something that is no time.

    An objective raises it to fail the candidate with the status WRONG_ANSWER.
    """


def _samples(returned: object) -> list[float]:
    """What an objective returned, as samples in seconds. Raises `WrongAnswer`."""
    try:
        values = np.atleast_1d(np.asarray(returned))
    except ValueError:  # lists of different lengths
        values = np.empty(0)
    if (
        values.dtype.kind not in "iuf"
        or values.ndim != 1
        or not 0 < values.size <= _MOST_SAMPLES
        or not np.all(((wide := values.astype(np.longdouble)) >= _LEAST) & (wide <= _GREATEST))
    ):
        raise WrongAnswer(
            f"the objective must return seconds, one number or several, finite and above zero, not {quoted(returned)}"
        )
    return [float(value) for value in values]


def _joined(earlier: Measurement, later: Measurement) -> Measurement:
    """Two measurements of one candidate as one. It fails if the later one does."""
    if not later.ok:
        return later
    return Measurement(Status.OK, earlier.seconds + later.seconds, "", earlier.phases + later.phases)


def _line(text: str) -> str:
    return shown(" ".join(text.split()), 300)
