"""The shared values: requests, measurements and trials."""

import pytest

from stormdrop.trial import Candidate, Measurement, Phases, Request, Status, Trial, within


def test_a_measurement_has_samples_exactly_when_it_is_ok() -> None:
    assert Measurement(Status.OK, (1.0,)).ok
    assert not Measurement(Status.RUNTIME, error="died").ok
    with pytest.raises(ValueError, match="exactly when"):
        Measurement(Status.OK)
    with pytest.raises(ValueError, match="exactly when"):
        Measurement(Status.RUNTIME, (1.0,))


def test_a_failed_trial_has_no_time() -> None:
    candidate = Candidate("s", (1,))
    assert Trial(candidate, Measurement(Status.OK, (3.0, 1.0, 2.0))).median == 2.0
    with pytest.raises(ValueError, match="wrong_answer"):
        _ = Trial(candidate, Measurement(Status.WRONG_ANSWER, error="differs")).median


def test_a_request_needs_a_repeat() -> None:
    with pytest.raises(ValueError, match="at least one repeat"):
        Request(Candidate("s", ()), 0)


def test_phases_add_up() -> None:
    total = Phases(1, 2, 3, 4) + Phases(schedule=1)
    assert total == Phases(2, 2, 3, 4)
    assert total.total == 11


def test_values_are_hashable_and_ordered() -> None:
    a, b = Candidate("s", (1, 2)), Candidate("s", (1, 3))
    assert a < b
    assert len({a, Candidate("s", (1, 2)), b}) == 2


def test_requests_are_cut_before_one_candidate_too_many() -> None:
    a, b, c = (Request(Candidate("s", (i,))) for i in range(3))
    known = {a.candidate}
    assert within([a, b, a, b, c, a], known, 2) == [a, b, a, b]
    assert within([a, b], known, 1) == [a]
    assert within([a, b, c], set(), 3) == [a, b, c]
    assert known == {a.candidate}
