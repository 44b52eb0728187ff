"""A measurer that answers from recorded data: every search can be run, compared and resumed without a machine.

    Recorded         what is known of one candidate
    Recording        a recorded ground: its spaces, what is known of each candidate, and the best of them
    ReplayMeasurer   answers requests from recorded data

All times are in seconds.
"""

from __future__ import annotations

import statistics
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..space import Space
from ..trial import Candidate, Measurement, Phases, Request, Status, Trial
from .contract import Measurer


@dataclass(frozen=True)
class Recorded:
    """What is known of one candidate.

    Args:
        seconds: Its samples; empty if it failed.
        status: The status with which it failed.
        error: One line that says why it failed.
        phases: Wall seconds. `schedule`, `build` and `check` are those of its first measurement. `run` is that of each
            measurement; if it is 0, the sum of the samples is taken.

    Raises:
        ValueError: The status is OK without samples, or is not OK with samples.
    """

    seconds: tuple[float, ...] = ()
    status: Status = Status.OK
    error: str = ""
    phases: Phases = field(default_factory=Phases)

    def __post_init__(self) -> None:
        if (self.status is Status.OK) != bool(self.seconds):
            raise ValueError(f"a record has samples exactly when it is OK: {self.status}, {self.seconds}")


@dataclass(frozen=True, eq=False)
class Recording:
    """A ground that was recorded, exhaustively or in part.

    Args:
        name: The name of the ground.
        spaces: Its spaces.
        recorded: What is known of each candidate. Every candidate is a point of one of the spaces.

    Raises:
        ValueError: No candidate worked, so there is no optimum.
    """

    name: str
    spaces: tuple[Space, ...]
    recorded: Mapping[Candidate, Recorded]

    def __post_init__(self) -> None:
        if not any(entry.seconds for entry in self.recorded.values()):
            raise ValueError(f"recording {self.name!r} holds no candidate that worked")

    @cached_property
    def optimum(self) -> Candidate:
        """The candidate with the lowest median; the first in their order if several have it."""
        return min(self._medians, key=lambda candidate: (self._medians[candidate], candidate))

    @property
    def optimum_seconds(self) -> float:
        """The recorded median of the optimum, in seconds."""
        return self._medians[self.optimum]

    def truth(self, candidate: Candidate) -> float | None:
        """The median of a candidate's samples, in seconds; None if it failed or is not recorded."""
        return self._medians.get(candidate)

    def measurer(self, rng: np.random.Generator | None = None, *, exact: bool = False) -> ReplayMeasurer:
        """A measurer over what is recorded; the arguments are `ReplayMeasurer`'s."""
        return ReplayMeasurer(self.recorded, rng, exact=exact)

    @cached_property
    def _medians(self) -> dict[Candidate, float]:
        return {
            candidate: statistics.median(entry.seconds) for candidate, entry in self.recorded.items() if entry.seconds
        }


class ReplayMeasurer(Measurer):
    """Draws samples from recorded ones, with replacement.

    A draw depends on the seed, on the candidate, and on how often the candidate was measured before, and on nothing
    else. So the order of the candidates does not matter. A resumed run can be continued, too: after `resume(trials)`
    the k-th measurement of a candidate is what it would have been without the interruption.

    A candidate that is not in the data fails as UNKNOWN.

    Attributes:
        elapsed: The sum of the recorded wall seconds of all measurements so far.

    Example:
        >>> from stormdrop.trial import Candidate, Request
        >>> candidate = Candidate("sketch", (0,))
        >>> (measurement,) = ReplayMeasurer({candidate: [1.0, 3.0, 2.0]}, exact=True).measure([Request(candidate, 2)])
        >>> measurement.seconds
        (2.0, 2.0)
    """

    def __init__(
        self,
        recorded: Mapping[Candidate, Recorded | Sequence[float] | Status],
        rng: np.random.Generator | None = None,
        *,
        exact: bool = False,
    ) -> None:
        """A measurer that has measured nothing yet.

        Args:
            recorded: What is known of each candidate. Samples in seconds alone, or a status alone, will do.
            rng: Gives the seed of the draws. It is needed unless `exact` is set.
            exact: Every sample is the median of the recorded ones, without noise.

        Raises:
            ValueError: `exact` is not set, and there is no `rng`.
        """
        if rng is None and not exact:
            raise ValueError("a replay with noise needs a random generator")
        self.elapsed = 0.0
        self._recorded = recorded
        self._exact = exact
        self._seed = 0 if rng is None else int(rng.integers(2**63))
        self._times_measured: Counter[Candidate] = Counter()

    def resume(self, trials: Sequence[Trial]) -> None:
        """Counts the trials of an earlier run as measured here."""
        self._times_measured.update(trial.candidate for trial in trials)

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """See `Measurer.measure`."""
        for request in requests:
            yield self._measurement(request.candidate, request.repeats)

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        """See `Measurer.race`."""
        return [self._measurement(candidate, rounds) for candidate in candidates]

    def _measurement(self, candidate: Candidate, repeats: int) -> Measurement:
        entry = self._recorded.get(candidate)
        if entry is None:
            return Measurement(Status.UNKNOWN, error=f"{candidate} is not in the recorded data")
        recorded = _as_recorded(entry)
        times = self._times_measured[candidate]
        self._times_measured[candidate] += 1
        seconds = self._draw(candidate, recorded.seconds, times, repeats) if recorded.seconds else ()
        run = recorded.phases.run or sum(seconds)
        first = recorded.phases if times == 0 else Phases()
        phases = Phases(first.schedule, first.build, run, first.check)
        self.elapsed += phases.total
        return Measurement(recorded.status, seconds, recorded.error, phases)

    def _draw(self, candidate: Candidate, seconds: Sequence[float], times: int, repeats: int) -> tuple[float, ...]:
        """Samples of a candidate that was measured `times` times before."""
        if self._exact:
            return (statistics.median(seconds),) * repeats
        key = zlib.crc32(repr((candidate.sketch, candidate.point)).encode())
        drawn = np.random.default_rng([self._seed, key, times]).integers(len(seconds), size=repeats)
        return tuple(float(seconds[index]) for index in drawn)


def _as_recorded(entry: Recorded | Sequence[float] | Status) -> Recorded:
    if isinstance(entry, Recorded):
        return entry
    if isinstance(entry, Status):
        return Recorded((), entry, f"recorded as {entry.value}")
    return Recorded(tuple(entry))
