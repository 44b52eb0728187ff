from stormdrop.trial import Candidate, Measurement, Status, Trial
from stormdrop.tuning.trace import Tally

A, B, C, D = (Candidate("s", (i,)) for i in range(4))


def tallied(*trials: tuple[Candidate, Measurement]) -> Tally:
    tally = Tally()
    for elapsed, (candidate, measurement) in enumerate(trials):
        tally.add(Trial(candidate, measurement), float(elapsed))
    return tally


def ok(*seconds: float, suspect: bool = False) -> Measurement:
    return Measurement(Status.OK, seconds, suspect=suspect)


def failed(error: str, status: Status = Status.RUNTIME) -> Measurement:
    return Measurement(status, (), error)


def test_nothing_yet() -> None:
    tally = Tally()
    assert (len(tally), tally.failed, tally.suspect, tally.statuses, tally.error) == (0, 0, 0, {}, "")
    assert (tally.fastest, tally.working, tally.curve) == (None, [], [])


def test_candidates_are_counted_once_and_measurements_each() -> None:
    tally = tallied((A, ok(1.0)), (A, ok(3.0, suspect=True)), (B, failed("no")), (B, failed("no")))
    assert (len(tally), tally.failed, tally.suspect) == (2, 1, 1)
    assert tally.statuses == {"ok": 2, "runtime": 2}
    assert A in tally.measurements and C not in tally.measurements


def test_who_failed_once_does_not_work() -> None:
    tally = tallied((A, ok(1.0)), (A, failed("no")), (B, ok(2.0)))
    assert (tally.working, tally.failed) == ([B], 1)


def test_the_fastest_by_all_samples_comes_first() -> None:
    tally = tallied((A, ok(1.0)), (B, ok(2.0)), (C, ok(3.0)), (A, ok(9.0, 9.0)))
    assert tally.working == [B, C, A]
    assert tally.samples(A) == [1.0, 9.0, 9.0]
    assert tally.estimate(A) == 9.0


def test_the_curve_falls() -> None:
    tally = tallied((A, ok(2.0, 4.0)), (B, failed("no")), (C, ok(5.0)), (D, ok(1.0)))
    assert tally.curve == [(0.0, 3.0), (3.0, 1.0)]
    assert tally.fastest == 1.0


def test_the_most_frequent_error() -> None:
    tally = tallied((A, failed("rare")), (B, failed("frequent")), (C, failed("frequent")), (D, ok(1.0)))
    assert tally.error == "frequent"
    assert tallied((A, failed("first")), (B, failed("second"))).error == "first"
