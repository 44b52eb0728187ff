"""A measurer that answers from recorded data: every search can be run, compared and resumed without a machine.

Recorded         what is known of one candidate
Recording        a whole ground of them: its spaces, what is known of each candidate, the best of all
ReplayMeasurer   answers from them
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
    """What is known of one candidate: its samples (seconds), or the status with which it failed.

    `phases.schedule`, `build` and `check` are the wall seconds that the first measurement of the candidate
    cost; `phases.run` those of each measurement, taken as the sum of its samples where it is 0.
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
    """A ground that was recorded, exhaustively or in part: every candidate of `recorded` is a point of `spaces`.

    Raises ValueError where no candidate worked: there is no optimum then.
    """

    name: str
    spaces: tuple[Space, ...]
    recorded: Mapping[Candidate, Recorded]

    def __post_init__(self) -> None:
        if not any(known.seconds for known in self.recorded.values()):
            raise ValueError(f"recording {self.name!r} holds no candidate that worked")

    @cached_property
    def optimum(self) -> Candidate:
        """The candidate with the least median; the first of them in order where several have it."""
        return min(self._medians, key=lambda candidate: (self._medians[candidate], candidate))

    @property
    def optimum_seconds(self) -> float:
        """The recorded median of the optimum, in seconds."""
        return self._medians[self.optimum]

    def truth(self, candidate: Candidate) -> float | None:
        """The median of a candidate's samples, in seconds; None for one that failed or is not recorded."""
        return self._medians.get(candidate)

    def measurer(self, rng: np.random.Generator | None = None, *, exact: bool = False) -> ReplayMeasurer:
        """A measurer over what is recorded; the arguments are `ReplayMeasurer`'s."""
        return ReplayMeasurer(self.recorded, rng, exact=exact)

    @cached_property
    def _medians(self) -> dict[Candidate, float]:
        return {
            candidate: statistics.median(known.seconds) for candidate, known in self.recorded.items() if known.seconds
        }


class ReplayMeasurer(Measurer):
    """Draws samples from recorded ones, with replacement.

    The draw depends on the seed, the candidate and how often it was measured before, and on nothing else: the
    order of the candidates does not matter, and `resume(trials)` after a restart makes the k-th measurement
    of a candidate what it would have been. `exact=True` answers with the median instead, without noise.
    A candidate that is not in the data fails as UNKNOWN. `elapsed` sums up the recorded wall seconds.
    """

    def __init__(
        self,
        recorded: Mapping[Candidate, Recorded | Sequence[float] | Status],
        rng: np.random.Generator | None = None,
        *,
        exact: bool = False,
    ) -> None:
        """`rng` is only needed for noise. Raises ValueError without it where `exact` is False."""
        if rng is None and not exact:
            raise ValueError("a replay with noise needs a random generator")
        self._recorded = recorded
        self._exact = exact
        self._seed = 0 if rng is None else int(rng.integers(2**63))
        self._times_measured: Counter[Candidate] = Counter()
        self.elapsed = 0.0

    def resume(self, trials: Sequence[Trial]) -> None:
        """Count trials of an earlier run as measured here."""
        self._times_measured.update(trial.candidate for trial in trials)

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """See `Measurer.measure`."""
        for request in requests:
            yield self._answer(request.candidate, request.repeats)

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        """See `Measurer.race`."""
        return [self._answer(candidate, rounds) for candidate in candidates]

    def close(self) -> None:
        """Nothing to give back."""

    def _answer(self, candidate: Candidate, repeats: int) -> Measurement:
        found = self._recorded.get(candidate)
        if found is None:
            return Measurement(Status.UNKNOWN, error=f"{candidate} is not in the recorded data")
        recorded = _as_recorded(found)
        times = self._times_measured[candidate]
        self._times_measured[candidate] += 1
        seconds = self._draw(candidate, recorded.seconds, times, repeats) if recorded.seconds else ()
        run = recorded.phases.run or sum(seconds)
        first = recorded.phases if times == 0 else Phases()
        phases = Phases(first.schedule, first.build, run, first.check)
        self.elapsed += phases.total
        return Measurement(recorded.status, seconds, recorded.error, phases)

    def _draw(self, candidate: Candidate, seconds: Sequence[float], times: int, repeats: int) -> tuple[float, ...]:
        if self._exact:
            return (statistics.median(seconds),) * repeats
        key = zlib.crc32(repr((candidate.sketch, candidate.point)).encode())
        drawn = np.random.default_rng([self._seed, key, times]).integers(len(seconds), size=repeats)
        return tuple(float(seconds[i]) for i in drawn)


def _as_recorded(found: Recorded | Sequence[float] | Status) -> Recorded:
    if isinstance(found, Recorded):
        return found
    if isinstance(found, Status):
        return Recorded((), found, f"recorded as {found.value}")
    return Recorded(tuple(found))
