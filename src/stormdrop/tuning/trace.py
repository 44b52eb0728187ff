"""What a session has measured so far, candidate by candidate, and what follows from it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator

from ..trial import Candidate, Measurement, Trial


class Tally:
    """The measurements of each candidate, in order; `curve` holds (seconds of tuning, lowest median so far)."""

    def __init__(self) -> None:
        self.measurements: dict[Candidate, list[Measurement]] = {}
        self.curve: list[tuple[float, float]] = []

    def add(self, trial: Trial, elapsed: float) -> None:
        """Takes a trial that was over after `elapsed` seconds of tuning."""
        self.measurements.setdefault(trial.candidate, []).append(trial.measurement)
        if trial.ok and (not self.curve or trial.median < self.curve[-1][1]):
            self.curve.append((elapsed, trial.median))

    def __len__(self) -> int:
        """Distinct candidates."""
        return len(self.measurements)

    @property
    def fastest(self) -> float | None:
        """Lowest median of one measurement, in seconds."""
        return self.curve[-1][1] if self.curve else None

    @property
    def working(self) -> list[Candidate]:
        """Those that never failed, by the median of all their samples, the fastest first."""
        found = [candidate for candidate, all_of in self.measurements.items() if all(each.ok for each in all_of)]
        return sorted(found, key=self.estimate)

    @property
    def failed(self) -> int:
        """Distinct candidates that failed, be it once."""
        return sum(not all(each.ok for each in all_of) for all_of in self.measurements.values())

    @property
    def suspect(self) -> int:
        """Measurements taken beside foreign load."""
        return sum(each.suspect for each in self._all())

    @property
    def statuses(self) -> dict[str, int]:
        """Measurements by the value of their status."""
        return dict(Counter(each.status.value for each in self._all()))

    @property
    def error(self) -> str:
        """The most frequent error, one line; empty where nothing failed."""
        return _most_frequent(each.error for each in self._all() if not each.ok)

    def samples(self, candidate: Candidate) -> list[float]:
        """All samples of a candidate, in seconds."""
        return [sample for each in self.measurements[candidate] for sample in each.seconds]

    def estimate(self, candidate: Candidate) -> float:
        """Median of all samples of a candidate that works, in seconds."""
        return statistics.median(self.samples(candidate))

    def _all(self) -> Iterator[Measurement]:
        return (each for all_of in self.measurements.values() for each in all_of)


def _most_frequent(lines: Iterable[str]) -> str:
    return max(Counter(lines).items(), key=lambda entry: entry[1], default=("", 0))[0]
