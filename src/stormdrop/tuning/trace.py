"""A trace: what a search has measured, trial by trial, and which candidate was the fastest at which time.

Live sessions and comparisons record their trials here, so that both mean the same by "fastest": the lowest median over
all samples of a candidate so far, among the candidates that never failed.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..trial import Candidate, Measurement, Phases, Status, Trial

_ALIKE = 32
"""Candidates that fail in the same way before a session is given up, if the origins of its spaces are among them."""

_ALIKE_ANYWHERE = 256
"""The same without the origins."""

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?(e[+-]?\d+)?")
"""What differs between errors of the same kind: addresses, sizes, positions."""


@dataclass(frozen=True)
class Lead:
    """A moment from which on another candidate is the fastest.

    Attributes:
        batch: How many times the search was asked until then.
        evaluations: How many distinct candidates were measured until then.
        seconds: The wall time until then, by the parts that the recorder of the trace distinguishes.
        candidate: The fastest candidate; None if no candidate works any more.
        median: Its median seconds; None if no candidate works any more.
    """

    batch: int
    evaluations: int
    seconds: tuple[float, ...]
    candidate: Candidate | None
    median: float | None


class Trace:
    """The trials of one search, in order.

    Attributes:
        measurements: The measurements of each candidate; candidates in the order in which they were first measured.
        medians: The median seconds over all samples of each candidate that never failed.
        leads: The moments at which another candidate became the fastest.
        curve: (wall seconds, median seconds of the fastest candidate from then on). It rises if more samples show that
            the fastest candidate is slower than it seemed.
        seconds: Wall time so far, by part.
        batch: How many times the search was asked.
        status_seconds: Wall seconds of all measurements by their status.
        suspect: How many measurements were taken beside foreign load.
        converged: Whether the search said at its end that it had converged.
    """

    def __init__(self, parts: int = 1) -> None:
        """An empty trace that distinguishes `parts` parts of wall time."""
        self.measurements: dict[Candidate, list[Measurement]] = {}
        self.medians: dict[Candidate, float] = {}
        self.leads: list[Lead] = []
        self.curve: list[tuple[float, float]] = []
        self.seconds = [0.0] * parts
        self.batch = 0
        self.status_seconds: defaultdict[Status, float] = defaultdict(float)
        self.suspect = 0
        self.converged = False
        self._failed: set[Candidate] = set()
        self._errors: Counter[str] = Counter()
        self._ways: set[tuple[Status, str]] = set()

    def record(self, trial: Trial, phases: Phases | None = None) -> None:
        """Adds a trial. Set `seconds` and `batch` before.

        Args:
            trial: The candidate and its measurement.
            phases: The wall seconds that the measurement took; by default what the measurement says itself.
        """
        candidate, measurement = trial.candidate, trial.measurement
        leader = self.winner
        self.measurements.setdefault(candidate, []).append(measurement)
        self.status_seconds[measurement.status] += (measurement.phases if phases is None else phases).total
        self.suspect += measurement.suspect
        if not measurement.ok:
            self._errors[measurement.error] += 1
            self._ways.add((measurement.status, _NUMBER.sub("#", measurement.error)))
            self._failed.add(candidate)
            self.medians.pop(candidate, None)
        elif candidate not in self._failed:
            self.medians[candidate] = statistics.median(self.samples(candidate))
        if leader is None or candidate == leader:
            self.lead(min(self.medians, key=self.medians.__getitem__, default=None))
        elif candidate in self.medians and self.medians[candidate] < self.medians[leader]:
            self.lead(candidate)
        fastest = self.fastest
        if fastest is not None and (not self.curve or self.curve[-1][1] != fastest):
            self.curve.append((sum(self.seconds), fastest))

    def lead(self, candidate: Candidate | None) -> None:
        """Notes that from now on the search would report this candidate."""
        if candidate != self.winner:
            median = None if candidate is None else self.medians[candidate]
            self.leads.append(Lead(self.batch, len(self), tuple(self.seconds), candidate, median))

    def __len__(self) -> int:
        """Distinct candidates."""
        return len(self.measurements)

    @property
    def winner(self) -> Candidate | None:
        """What the search would report now; None if no candidate works."""
        return self.leads[-1].candidate if self.leads else None

    @property
    def fastest(self) -> float | None:
        """The median of the winner in seconds; None if no candidate works."""
        return None if self.winner is None else self.medians[self.winner]

    @property
    def working(self) -> list[Candidate]:
        """The measured candidates that never failed, sorted by their medians, the fastest first."""
        return sorted(self.medians, key=self.medians.__getitem__)

    @property
    def failed(self) -> int:
        """Distinct candidates that failed, even if only once."""
        return len(self._failed)

    @property
    def first_statuses(self) -> dict[Candidate, Status]:
        """The status of each candidate's first measurement."""
        return {candidate: measurements[0].status for candidate, measurements in self.measurements.items()}

    @property
    def statuses(self) -> dict[str, int]:
        """Measurements by the value of their status."""
        by_candidate = self.measurements.values()
        return dict(Counter(measurement.status.value for measurements in by_candidate for measurement in measurements))

    @property
    def error(self) -> str:
        """The most frequent error, one line; empty if nothing failed."""
        return max(self._errors, key=self._errors.__getitem__, default="")

    def hopeless(self, origins: Iterable[Candidate]) -> str:
        """Why there is no use in going on; empty if there may be.

        There is none if all candidates have failed in the same way, with the same error except for its numbers, and
        there were enough of them: `_ALIKE` with the origin of every space among them, which ought to work; or
        `_ALIKE_ANYWHERE`, if the search tries no origins. Many points of a space may well fail alike, up to nine of
        ten on a GPU: that number in a row is no chance.

        Args:
            origins: The origins of the spaces that are searched.
        """
        if len(self._failed) < len(self) or len(self) < _ALIKE or len(self._ways) > 1:
            return ""
        if len(self) < _ALIKE_ANYWHERE and not all(origin in self.measurements for origin in origins):
            return ""
        (status, _), *_ = self._ways
        return f"all {len(self)} candidates failed in the same way ({status.value}): {self.error}"

    def samples(self, candidate: Candidate) -> Sequence[float]:
        """All samples of a candidate, in seconds."""
        return [sample for measurement in self.measurements[candidate] for sample in measurement.seconds]
