import time
from typing import Any

import numpy as np
import pytest

from stormdrop.measure.callable import CallableMeasurer
from stormdrop.measure.contract import Measurer
from stormdrop.space import Ordinal, Space
from stormdrop.testing.measurers import MeasurerCase, MeasurerConformance
from stormdrop.trial import Candidate, Measurement, Request, Status

SPACE = Space("s", [Ordinal("x", [1, 2, 3, 4])])
A, B, C, D = (Candidate("s", (i,)) for i in range(4))
OUTSIDE = Candidate("s", (9,))


def fails_at_3(sketch: str, config: dict[str, Any]) -> float:
    if config["x"] == 3:
        raise RuntimeError("no\nsuch thing")
    return config["x"] * 1e-3


class TestOneNumber(MeasurerConformance):
    def make(self) -> MeasurerCase:
        return MeasurerCase(CallableMeasurer([SPACE], fails_at_3), (A, B), (C, OUTSIDE))


class TestSeveralNumbers(MeasurerConformance):
    def make(self) -> MeasurerCase:
        return MeasurerCase(CallableMeasurer([SPACE], lambda s, c: [fails_at_3(s, c)] * 2), (A, B), (C, OUTSIDE))


class Calls:
    """An objective that answers from a list, and keeps the values of x that it was called with."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.values: list[int] = []

    def __call__(self, sketch: str, config: dict[str, Any]) -> Any:
        self.values.append(config.pop("x"))  # the configuration is the objective's to change
        return self.results.pop(0)


def measured(objective: Any, repeats: int = 3, best: float | None = None) -> Measurement:
    (measurement,) = CallableMeasurer([SPACE], objective, best).measure([Request(A, repeats)])
    return measurement


def test_it_is_a_measurer() -> None:
    assert isinstance(CallableMeasurer([SPACE], fails_at_3), Measurer)


def test_an_objective_that_returns_one_number_is_called_again() -> None:
    calls = Calls(3.0, 1, np.float32(2.0))
    assert measured(calls).seconds == (3.0, 1.0, 2.0)
    assert calls.values == [1, 1, 1]


@pytest.mark.parametrize("samples", [[3.0, 1.0], (3.0, 1.0, 2.0, 4.0), np.array([1.0, 2.0])])
def test_several_numbers_are_the_samples(samples: Any) -> None:
    calls = Calls(samples)
    assert measured(calls).seconds == tuple(samples)
    assert calls.values == [1]


@pytest.mark.parametrize(
    "returned", [None, "1.0", True, float("nan"), float("inf"), -1.0, 0.0, [], [1.0, float("nan")], [[1.0, 2.0]], {}]
)
def test_a_result_that_is_no_time_fails_and_says_so(returned: Any) -> None:
    measurement = measured(Calls(returned))
    assert (measurement.status, measurement.seconds) == (Status.WRONG_ANSWER, ())
    assert measurement.error == (
        f"the objective must return seconds, one number or several, finite and above zero, not {returned!r}"
    )


def test_an_exception_is_one_line() -> None:
    (measurement,) = CallableMeasurer([SPACE], fails_at_3).measure([Request(C)])
    assert (measurement.status, measurement.error) == (Status.RUNTIME, "RuntimeError: no such thing")


def test_an_interrupt_is_no_failure() -> None:
    def interrupted(sketch: str, config: dict[str, Any]) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(interrupted)


def test_a_hopeless_candidate_gets_one_sample() -> None:
    assert len(measured(Calls(3.1, 3.1, 3.1), best=1.0).seconds) == 1
    assert len(measured(Calls(2.9, 2.9, 2.9), best=1.0).seconds) == 3
    first, second = CallableMeasurer([SPACE], Calls(1.0, 1.0, 3.1, 3.1)).measure([Request(A, 2), Request(B, 2)])
    assert (len(first.seconds), len(second.seconds)) == (2, 1)


def test_a_race_takes_turns_in_a_changing_order() -> None:
    calls = Calls(1.0, 2.0, 2.1, 1.1, 1.2, [2.2, 9.9, 0.1])
    a, b = CallableMeasurer([SPACE], calls).race([A, B], 3)
    assert calls.values == [1, 2, 2, 1, 1, 2]
    assert (a.seconds, b.seconds) == ((1.0, 1.1, 1.2), (2.0, 2.1, 2.2))


def test_a_candidate_that_fails_in_a_race_is_not_called_again() -> None:
    calls = Calls(1.0, None, 1.1, 1.2)
    a, b = CallableMeasurer([SPACE], calls).race([A, B], 3)
    assert calls.values == [1, 2, 1, 1]
    assert (a.ok, b.status) == (True, Status.WRONG_ANSWER)


def test_wall_time_is_that_of_the_calls() -> None:
    measurement = measured(lambda *_: time.sleep(0.002) or 1e-6)
    assert measurement.phases.total == measurement.phases.run >= 3 * 0.002
