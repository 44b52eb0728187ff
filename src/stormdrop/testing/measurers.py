"""What every measurer must hold to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ..measure.contract import Measurer
from ..trial import Candidate, Request, Status


@dataclass(frozen=True)
class Ground:
    """A measurer, at least two candidates that work on it, and at least one that fails."""

    measurer: Measurer
    good: tuple[Candidate, ...]
    bad: tuple[Candidate, ...]


class MeasurerConformance(ABC):
    """Inherit, and return a fresh ground from `make`. All methods are tests."""

    @abstractmethod
    def make(self) -> Ground:
        """A new measurer, not yet closed, and candidates for it."""

    def test_one_answer_per_request_in_order(self) -> None:
        """Good and bad candidates mixed: a failure is a value, and concerns its own request only."""
        ground = self.make()
        with ground.measurer as measurer:
            mixed = [ground.good[0], *ground.bad, ground.good[1], ground.good[0]]
            answers = list(measurer.measure([Request(candidate, 2) for candidate in mixed]))
        assert [answer.ok for answer in answers] == [candidate not in ground.bad for candidate in mixed]
        for answer in answers:
            if answer.ok:
                assert 1 <= len(answer.seconds) <= 2
                assert all(second > 0 for second in answer.seconds)
                assert answer.error == ""
                assert answer.phases.total > 0
            else:
                assert answer.status is not Status.OK
                assert answer.error
                assert "\n" not in answer.error

    def test_answers_come_one_by_one(self) -> None:
        """The caller may stop in between, and measure something else afterwards."""
        ground = self.make()
        with ground.measurer as measurer:
            answers = measurer.measure([Request(candidate, 1) for candidate in (*ground.good, *ground.bad)])
            assert next(answers).ok
            del answers
            assert [a.ok for a in measurer.measure([Request(ground.good[1], 1)])] == [True]

    def test_nothing_asked_nothing_answered(self) -> None:
        """An empty list of requests is no error."""
        ground = self.make()
        with ground.measurer as measurer:
            assert list(measurer.measure([])) == []

    def test_race_pairs_its_samples(self) -> None:
        """Every candidate that works has one sample per round."""
        ground = self.make()
        with ground.measurer as measurer:
            raced = measurer.race([ground.good[0], ground.bad[0], ground.good[1]], 4)
        assert [answer.ok for answer in raced] == [True, False, True]
        assert [len(answer.seconds) for answer in raced] == [4, 0, 4]

    def test_closing_twice_is_harmless(self) -> None:
        """Also inside of the context manager."""
        ground = self.make()
        with ground.measurer as measurer:
            measurer.close()
        ground.measurer.close()
