"""Traces: who is the fastest, by all samples, and when."""

from __future__ import annotations

from stormdrop.trial import Candidate, Measurement, Phases, Status, Trial
from stormdrop.tuning.trace import Trace

A, B, C, D = (Candidate("s", (index,)) for index in range(4))


def traced(*trials: tuple[Candidate, Measurement]) -> Trace:
    trace = Trace()
    for elapsed, (candidate, measurement) in enumerate(trials):
        trace.seconds[0] = float(elapsed)
        trace.record(Trial(candidate, measurement))
    return trace


def ok(*seconds: float, suspect: bool = False) -> Measurement:
    return Measurement(Status.OK, seconds, suspect=suspect)


def failed(error: str, status: Status = Status.RUNTIME) -> Measurement:
    return Measurement(status, (), error)


def test_nothing_yet() -> None:
    trace = Trace()
    assert (len(trace), trace.failed, trace.suspect, trace.statuses, trace.error) == (0, 0, 0, {}, "")
    assert (trace.winner, trace.fastest, trace.working, trace.curve) == (None, None, [], [])


def test_candidates_are_counted_once_and_measurements_each() -> None:
    trace = traced((A, ok(1.0)), (A, ok(3.0, suspect=True)), (B, failed("no")), (B, failed("no")))
    assert (len(trace), trace.failed, trace.suspect) == (2, 1, 1)
    assert trace.statuses == {"ok": 2, "runtime": 2}
    assert trace.first_statuses == {A: Status.OK, B: Status.RUNTIME}
    assert A in trace.measurements and C not in trace.measurements


def test_a_candidate_that_failed_once_does_not_work() -> None:
    trace = traced((A, ok(1.0)), (A, failed("no")), (B, ok(2.0)))
    assert (trace.working, trace.failed, trace.winner) == ([B], 1, B)


def test_a_candidate_that_failed_first_does_not_work_later() -> None:
    trace = traced((A, failed("no")), (A, ok(1.0)))
    assert (trace.working, trace.winner, trace.fastest) == ([], None, None)


def test_the_fastest_by_all_samples_comes_first() -> None:
    trace = traced((A, ok(1.0)), (B, ok(2.0)), (C, ok(3.0)), (A, ok(9.0, 9.0)))
    assert trace.working == [B, C, A]
    assert trace.samples(A) == [1.0, 9.0, 9.0]
    assert trace.medians == {A: 9.0, B: 2.0, C: 3.0}


def test_the_curve_says_what_the_search_would_report() -> None:
    """A's first sample was luck: with more samples B leads, and the curve rises to B's time."""
    trace = traced((A, ok(1.0)), (B, ok(2.0)), (C, failed("no")), (A, ok(9.0, 9.0)), (D, ok(0.5)))
    assert trace.curve == [(0.0, 1.0), (3.0, 2.0), (4.0, 0.5)]
    assert (trace.winner, trace.fastest) == (D, 0.5)


def test_a_leader_that_fails_leaves_the_lead() -> None:
    trace = traced((A, ok(1.0)), (A, failed("no")))
    assert [lead.candidate for lead in trace.leads] == [A, None]
    assert trace.curve == [(0.0, 1.0)]


def test_costs_are_those_of_the_phases_or_those_that_are_given() -> None:
    trace = Trace()
    trace.record(Trial(A, Measurement(Status.OK, (1.0,), phases=Phases(build=2.0, run=1.0))))
    trace.record(Trial(B, failed("no")), Phases(build=0.5))
    assert trace.status_seconds == {Status.OK: 3.0, Status.RUNTIME: 0.5}


def test_the_most_frequent_error() -> None:
    trace = traced((A, failed("rare")), (B, failed("frequent")), (C, failed("frequent")), (D, ok(1.0)))
    assert trace.error == "frequent"
    assert traced((A, failed("first")), (B, failed("second"))).error == "first"


def failure(number: int, error: str, status: Status = Status.COMPILE_HOST) -> Trial:
    return Trial(Candidate("space", (number,)), Measurement(status, (), error))


def test_failures_that_are_all_alike_are_hopeless_once_the_origins_are_among_them() -> None:
    origins = [Candidate("space", (0,)), Candidate("other", (0,))]
    trace = Trace()
    for number in range(40):
        trace.record(failure(number, f"no such file /tmp/kernel{number}.o at 0x7f{number:x}"))
        assert not trace.hopeless(origins)  # the other origin was not tried
    trace.record(Trial(origins[1], Measurement(Status.COMPILE_HOST, (), "no such file /tmp/kernel77.o at 0x70")))
    reason = trace.hopeless(origins)
    assert reason.startswith("all 41 candidates failed in the same way (compile_host): no such file /tmp/kernel")


def test_failures_in_two_ways_or_a_candidate_that_works_are_not_hopeless() -> None:
    origins = [Candidate("space", (0,))]
    for last in (
        failure(40, "another reason"),
        failure(40, "no memory", Status.RUNTIME),
        Trial(Candidate("space", (40,)), Measurement(Status.OK, (1.0,))),
    ):
        trace = Trace()
        for number in range(40):
            trace.record(failure(number, "no memory"))
        assert trace.hopeless(origins)
        trace.record(last)
        assert not trace.hopeless(origins)


def test_a_search_that_tries_no_origins_has_more_patience() -> None:
    trace = Trace()
    for number in range(1, 256):
        trace.record(failure(number, "no memory"))
        assert not trace.hopeless([Candidate("space", (0,))])
    trace.record(failure(256, "no memory"))
    assert trace.hopeless([Candidate("space", (0,))])
