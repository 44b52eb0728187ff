from collections.abc import Sequence

import numpy as np
import pytest

from stormdrop.measure.contract import Measurer
from stormdrop.measure.replay import Recorded, ReplayMeasurer
from stormdrop.testing.measurers import MeasurerCase, MeasurerConformance
from stormdrop.trial import Candidate, Measurement, Phases, Request, Status, Trial

A, B, C, D = (Candidate("s", (i,)) for i in range(4))
DATA: dict[Candidate, Recorded | Sequence[float] | Status] = {
    A: [1.0, 1.2, 1.1],
    B: Recorded((2.0, 2.2), phases=Phases(0.1, 0.2, 0.0, 0.3)),
    C: Status.RUNTIME,
}


class TestReplay(MeasurerConformance):
    def make(self) -> MeasurerCase:
        return MeasurerCase(ReplayMeasurer(DATA, np.random.default_rng(0)), (A, B), (C, D))


class TestExactReplay(MeasurerConformance):
    def make(self) -> MeasurerCase:
        return MeasurerCase(ReplayMeasurer(DATA, exact=True), (A, B), (C, D))


def test_it_is_a_measurer() -> None:
    assert isinstance(ReplayMeasurer(DATA, exact=True), Measurer)


def test_exact_is_the_median() -> None:
    (measurement,) = ReplayMeasurer(DATA, exact=True).measure([Request(A, 2)])
    assert measurement.seconds == (1.1, 1.1)


def test_draws_are_recorded_samples_and_differ_between_measurements() -> None:
    measurer = ReplayMeasurer(DATA, np.random.default_rng(0))
    measurements = list(measurer.measure([Request(A, 20), Request(A, 20)]))
    assert {sample for measurement in measurements for sample in measurement.seconds} == {1.0, 1.2, 1.1}
    assert measurements[0].seconds != measurements[1].seconds


def test_draws_do_not_depend_on_the_order_of_candidates() -> None:
    first, second = (ReplayMeasurer(DATA, np.random.default_rng(0)) for _ in range(2))
    a, b = first.measure([Request(A, 9), Request(B, 9)])
    b_first, a_second = second.measure([Request(B, 9), Request(A, 9)])
    assert (a, b) == (a_second, b_first)


def test_resumed_draws_continue() -> None:
    whole = ReplayMeasurer(DATA, np.random.default_rng(0))
    first, second = whole.measure([Request(A, 9), Request(A, 9)])
    resumed = ReplayMeasurer(DATA, np.random.default_rng(0))
    resumed.resume([Trial(A, first)])
    assert list(resumed.measure([Request(A, 9)])) == [second]


def test_recorded_wall_times_are_accounted_once() -> None:
    measurer = ReplayMeasurer(DATA, exact=True)
    first, second = measurer.measure([Request(B, 1), Request(B, 1)])
    assert first.phases == Phases(0.1, 0.2, 2.1, 0.3)
    assert second.phases == Phases(run=2.1)
    assert measurer.elapsed == pytest.approx(0.6 + 2 * 2.1)


def test_failures_keep_their_status() -> None:
    failed, missing = ReplayMeasurer(DATA, exact=True).measure([Request(C), Request(D)])
    assert failed == Measurement(Status.RUNTIME, error="recorded as runtime")
    assert missing.status is Status.UNKNOWN
    assert "not in the recorded data" in missing.error


def test_noise_needs_a_generator() -> None:
    with pytest.raises(ValueError, match="random generator"):
        ReplayMeasurer(DATA)
    with pytest.raises(ValueError, match="exactly when"):
        Recorded((), Status.OK)
