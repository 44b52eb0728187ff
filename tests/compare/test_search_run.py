"""What one run of a search reports: which candidate leads when, and what it has cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import pytest

from stormdrop.compare.search_run import PARTS, run_search
from stormdrop.compare.search_spec import SearchSpec, parse_searches
from stormdrop.errors import InputError, SearchError
from stormdrop.space import Ordinal, Space
from stormdrop.trial import Candidate, Measurement, Phases, Request, Status, Trial

SPENT = Phases(0.1, 0.2, 0.3, 0.4)
A, B, C, D = (Candidate("s", (i,)) for i in range(4))


class Scripted:
    """A search that asks for given requests, batch by batch."""

    name: ClassVar[str] = "scripted"
    converged = True

    def __init__(self, batches: Sequence[Sequence[Candidate]], best: Candidate | None = None) -> None:
        self.batches, self.best = list(batches), best
        self.told: list[Candidate] = []

    @property
    def finished(self) -> bool:
        return not self.batches

    def ask(self, n: int) -> list[Request]:
        return [Request(candidate, 1) for candidate in self.batches.pop(0)] if self.batches else []

    def tell(self, trials: Sequence[Trial]) -> None:
        self.told += [trial.candidate for trial in trials]


class Answers:
    """A measurer that gives each candidate its samples one after the other. None stands for a failure."""

    def __init__(self, samples: dict[Candidate, Sequence[float | None]], phases: Phases = SPENT):
        self.samples = {candidate: list(its) for candidate, its in samples.items()}
        self.phases = phases

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request in requests:
            seconds = self.samples[request.candidate].pop(0)
            if seconds is None:
                yield Measurement(Status.RUNTIME, error="died", phases=self.phases)
            else:
                yield Measurement(Status.OK, (seconds,), phases=self.phases, suspect=request.candidate == B)

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        raise AssertionError("a walk does not race")

    def close(self) -> None: ...

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None: ...


def leads(walked: object) -> list[tuple[int, Candidate | None]]:
    return [(lead.evaluations, lead.candidate) for lead in walked.leads]  # type: ignore[attr-defined]


def test_the_least_median_of_all_samples_leads_and_repeats_are_no_evaluations() -> None:
    """B's first sample was too fast, and its median grows past A's. Then C fails when it is measured again."""
    answers = Answers({A: [3.0], B: [1.0, 9.0, 9.0], C: [2.0, None], D: [5.0]})
    walked = run_search(Scripted([[A, B], [B, B, D], [C], [C]]), answers, trials=10)
    assert leads(walked) == [(1, A), (2, B), (2, A), (4, C), (4, A)]
    assert [lead.batch for lead in walked.leads] == [1, 1, 2, 3, 4]
    assert walked.winner == A
    assert walked.medians == {A: 3.0, B: 9.0, D: 5.0}
    assert list(walked.measurements) == [A, B, D, C]
    assert set(walked.first_statuses.values()) == {Status.OK}  # C's failure came later
    assert walked.suspect == 3
    assert walked.converged


def test_costs_are_split() -> None:
    walked = run_search(Scripted([[A, B], [A, C]]), Answers({A: [3.0, 3.0], B: [None], C: [1.0]}), trials=10)
    spent = dict(zip(PARTS, walked.seconds, strict=True))
    assert {part: spent[part] for part in PARTS[1:]} == pytest.approx(dict(schedule=0.4, build=0.8, run=1.2, check=1.6))
    assert 0 < spent["search"] < 0.5
    assert walked.status_seconds == pytest.approx({Status.OK: 3.0, Status.RUNTIME: 1.0})
    assert walked.leads[-1].seconds[1:] == pytest.approx(tuple(walked.seconds[1:]))
    assert walked.first_statuses[B] is Status.RUNTIME


def test_trials_end_it_at_the_first_new_candidate_too_many() -> None:
    search = Scripted([[A], [A, B, A, C, A], [D]])
    walked = run_search(search, Answers({A: [3.0] * 4, B: [2.0]}), trials=2)
    assert list(walked.measurements) == [A, B]
    assert search.told == [A, A, B, A]


def test_time_ends_it_after_the_batch() -> None:
    walked = run_search(Scripted([[A], [B], [C], [D]]), Answers({A: [1.0], B: [2.0], C: [3.0], D: [4.0]}), 10, time=1.5)
    assert list(walked.measurements) == [A, B]


def test_what_a_finished_search_holds_for_the_best_is_what_it_reports() -> None:
    samples = {A: [3.0], B: [1.0], C: [2.0]}
    assert run_search(Scripted([[A, B]], best=A), Answers(samples), 10).winner == A
    assert run_search(Scripted([[A, B], [C]], best=A), Answers(samples), 2).winner == B  # it was not finished
    assert run_search(Scripted([[A, B]], best=D), Answers(samples), 10).winner == B  # never measured


def test_nothing_works() -> None:
    walked = run_search(Scripted([[A], [B]]), Answers({A: [None], B: [None]}), 10)
    assert (walked.winner, walked.leads) == (None, [])
    walked = run_search(Scripted([[A], [A]]), Answers({A: [1.0, None]}), 10)
    assert leads(walked) == [(1, A), (1, None)]
    assert walked.winner is None


def test_live_measurements_cost_what_was_waited_for() -> None:
    """Workers that build side by side report 0.3 s of building, for which nobody waited. Their run phases count."""
    walked = run_search(Scripted([[A], [B]]), Answers({A: [1.0], B: [1.0]}, Phases(0.1, 0.2, 0.0, 0.0)), 10, live=True)
    assert 0 < walked.seconds[1] == pytest.approx(walked.seconds[2] / 2)
    assert sum(walked.seconds) < 0.2
    walked = run_search(Scripted([[A]]), Answers({A: [1.0]}, Phases(0.0, 0.0, 0.01, 0.02)), 10, live=True)
    assert walked.seconds[4] == 0.02
    assert walked.seconds[3] == pytest.approx(0.01, abs=0.1)


def test_contenders_have_typed_options() -> None:
    plain, variant = parse_searches(" droplet, droplet:test=student:speculation=false:max_iterations=3:confidence=0.9")
    assert plain == SearchSpec("droplet", "droplet")
    assert variant.label == "droplet:test=student:speculation=false:max_iterations=3:confidence=0.9"
    assert variant.options == {"test": "student", "speculation": False, "max_iterations": 3, "confidence": 0.9}
    (unlimited,) = parse_searches("droplet:max_iterations=none")
    assert unlimited.options == {"max_iterations": None}
    search = variant.create([Space("s", [Ordinal("a", [1, 2, 3])])], 0)
    assert search.name == "droplet"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dropplet", "unknown search 'dropplet'; did you mean 'droplet'?"),
        ("droplet:confidnce=0.9", "search 'droplet' has no option 'confidnce'; did you mean 'confidence'?"),
        ("droplet:confidence=high", "option confidence must be float, not 'high'"),
        ("droplet:confidence=2", "droplet's confidence must be at least 0.5 and below 1, not 2.0"),
        ("droplet:repeats=2.5", "option repeats must be int, not '2.5'"),
        ("droplet:speculation=perhaps", "option speculation must be bool, not 'perhaps'"),
        ("droplet:max_iterations=x", "option max_iterations must be int or none, not 'x'"),
        ("droplet:repeats", "write an option as name=value, not 'repeats'"),
        ("droplet:repeats=3:repeats=4", "option repeats is given twice"),
        ("droplet:test=studnet", "did you mean 'student'?"),
    ],
)
def test_bad_contenders(text: str, said: str) -> None:
    with pytest.raises(SearchError) as raised:
        parse_searches(text)
    assert said in str(raised.value)


def test_no_contender_and_one_twice() -> None:
    with pytest.raises(InputError, match="no search is named"):
        parse_searches(" , ")
    with pytest.raises(InputError, match="search random is given twice"):
        parse_searches("random,droplet,random")
