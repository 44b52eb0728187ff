"""The conformance suite of measurers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ..measure.contract import Measurer
from ..trial import Candidate, Request, Status


@dataclass(frozen=True)
class MeasurerCase:
    """A measurer under test.

    Args:
        measurer: The measurer, not yet closed.
        working: At least two candidates that it can measure.
        failing: At least one candidate that fails.
    """

    measurer: Measurer
    working: tuple[Candidate, ...]
    failing: tuple[Candidate, ...]


class MeasurerConformance(ABC):
    """The rules of `Measurer`, each in one test. Inherit, and return a new case from `make`.

    Example:
        >>> from stormdrop.measure.replay import ReplayMeasurer
        >>> a, b, missing = (Candidate("tiled", (index,)) for index in range(3))
        >>> class TestReplay(MeasurerConformance):
        ...     def make(self):
        ...         return MeasurerCase(ReplayMeasurer({a: [1e-3], b: [2e-3]}, exact=True), (a, b), (missing,))
        >>> TestReplay().test_race_pairs_its_samples()
    """

    @abstractmethod
    def make(self) -> MeasurerCase:
        """A new measurer, not yet closed, with candidates for it."""

    def test_one_measurement_per_request_in_order(self) -> None:
        """A failure is a value and concerns its own request only: working and failing candidates may be mixed."""
        case = self.make()
        with case.measurer as measurer:
            candidates = [case.working[0], *case.failing, case.working[1], case.working[0]]
            measurements = list(measurer.measure([Request(candidate, 2) for candidate in candidates]))
        assert [measurement.ok for measurement in measurements] == [
            candidate not in case.failing for candidate in candidates
        ]
        for measurement in measurements:
            if measurement.ok:
                assert 1 <= len(measurement.seconds) <= 2
                assert all(sample > 0 for sample in measurement.seconds)
                assert measurement.error == ""
                assert measurement.phases.total > 0
            else:
                assert measurement.status is not Status.OK
                assert measurement.error
                assert "\n" not in measurement.error

    def test_measurements_come_one_by_one(self) -> None:
        """The caller may stop before the end, and measure something else afterwards."""
        case = self.make()
        with case.measurer as measurer:
            measurements = measurer.measure([Request(candidate, 1) for candidate in (*case.working, *case.failing)])
            assert next(measurements).ok
            del measurements
            assert [measurement.ok for measurement in measurer.measure([Request(case.working[1], 1)])] == [True]

    def test_no_requests_give_no_measurements(self) -> None:
        """An empty list of requests is no error."""
        case = self.make()
        with case.measurer as measurer:
            assert list(measurer.measure([])) == []

    def test_race_pairs_its_samples(self) -> None:
        """Every candidate that works has one sample per round."""
        case = self.make()
        with case.measurer as measurer:
            measurements = measurer.race([case.working[0], case.failing[0], case.working[1]], 4)
        assert [measurement.ok for measurement in measurements] == [True, False, True]
        assert [len(measurement.seconds) for measurement in measurements] == [4, 0, 4]

    def test_closing_twice_is_harmless(self) -> None:
        """A measurer may also be closed inside of its context manager."""
        case = self.make()
        with case.measurer as measurer:
            measurer.close()
        case.measurer.close()
