"""Comparisons on a small recorded ground whose optimum is known."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from stormdrop.compare.comparison import Comparison, compare
from stormdrop.compare.grounds import Limits, MachineGround, RecordedGround
from stormdrop.compare.search_run import PARTS
from stormdrop.compare.search_spec import SearchSpec, parse_searches
from stormdrop.errors import InputError, SearchError
from stormdrop.measure.replay import Recorded, Recording
from stormdrop.space import Constraint, Ordinal, Space
from stormdrop.trial import Candidate, Measurement, Phases, Status, Trial
from stormdrop.tuning.result import Progress
from stormdrop.tuning.trace import Trace


def ground(name: str = "bowl", bottom: tuple[int, int] = (5, 2), noise: float = 0.05) -> Recording:
    """A bowl of 8 x 8 points, of which those with the largest sum fail."""
    constraint = Constraint(("a", "b"), lambda a, b: (a, b) != (0, 1), "not 0 and 1")
    space = Space("bowl", [Ordinal("a", range(8)), Ordinal("b", range(8))], [constraint])
    rng = np.random.default_rng(3)
    recorded = {}
    for point in space.points():
        phases = Phases(build=2.0, check=0.5)
        if sum(point) > 9:
            recorded[Candidate("bowl", point)] = Recorded((), Status.COMPILE_DEVICE, "no registers", phases)
        else:
            seconds = 1e-3 * (1 + 0.1 * ((point[0] - bottom[0]) ** 2 + (point[1] - bottom[1]) ** 2))
            samples = seconds * np.exp(rng.normal(0.0, noise, 5))
            recorded[Candidate("bowl", point)] = Recorded(tuple(samples.tolist()), phases=phases)
    return Recording(name, (space,), recorded)


def untimed(document: Any) -> Any:
    """A document without the fields that depend on how fast the searches were."""
    if isinstance(document, dict):
        timed = {"search", "search_seconds", "seconds", "search_ms_per_evaluation"}
        return {k: untimed(v) for k, v in document.items() if k not in timed or isinstance(v, str)}
    return [untimed(entry) for entry in document] if isinstance(document, list) else document


def run(text: str = "droplet,random", **settings: Any) -> Comparison:
    return compare([ground()], parse_searches(text), **{"seeds": 3, "trials": 30, **settings})


def test_runs_are_told_by_search_and_seed() -> None:
    document = run().to_json()
    assert [(search_run["search"], search_run["seed"]) for search_run in document["runs"]] == [
        (search, seed) for search in ("droplet", "random") for seed in range(3)
    ]
    assert document["ground"] == "bowl"
    assert document["grounds"][0]["optimum_config"] == {"a": 5, "b": 2}
    assert (document["trials"], document["seeds"], document["searches"]) == (30, 3, ["droplet", "random"])


def test_a_comparison_is_a_few_lines_of_text() -> None:
    compared = run("droplet,random", trials=60)
    title, droplet, random = repr(compared).splitlines()
    assert title == "Comparison on bowl, 3 seeds:"
    assert droplet.startswith("  droplet  ") and droplet.endswith(" times the optimum after 60 trials")
    assert random.startswith("  random   ") and float(random.split()[1]) >= 1


def test_best_is_the_recorded_median_of_what_led_and_not_a_sample() -> None:
    recording, document = ground(), run().to_json()
    truths = {recording.truth(candidate) for candidate in recording.recorded}
    assert document["optimum"] == recording.optimum_seconds == min(t for t in truths if t is not None)
    for search_run in document["runs"]:
        assert set(search_run["trajectory"]["best"]) <= truths
        assert search_run["best"] == search_run["trajectory"]["best"][-1]
        assert search_run["best_over_optimum"] == search_run["best"] / document["optimum"] >= 1
        point = recording.spaces[0].point(search_run["config"])
        assert recording.truth(Candidate(search_run["sketch"], point)) == search_run["best"]


def test_evaluations_to_within_is_when_the_trajectory_first_gets_there() -> None:
    document = run().to_json()
    for search_run in document["runs"]:
        ratios = [best / document["optimum"] for best in search_run["trajectory"]["best"]]
        for label, factor in (("1.05", 1.05), ("1.10", 1.1)):
            counts = zip(search_run["trajectory"]["evaluations"], ratios, strict=True)
            assert search_run["evaluations_to_within"][label] == next(
                (n for n, ratio in counts if ratio <= factor), None
            )
    assert any(search_run["evaluations_to_within"]["1.05"] for search_run in document["runs"])


def test_costs_are_those_of_the_recording_and_of_the_search() -> None:
    (search_run,) = run("random", seeds=1).to_json()["runs"]
    assert search_run["evaluations"] == sum(search_run["statuses"].values()) == 30
    assert search_run["phases"]["build"] == pytest.approx(30 * 2.0)
    assert search_run["phases"]["check"] == pytest.approx(30 * 0.5)
    assert search_run["search_seconds"] == search_run["phases"]["search"] > 0
    assert search_run["seconds"] == pytest.approx(sum(search_run["phases"].values()))
    assert search_run["status_seconds"]["compile_device"] == pytest.approx(
        2.5 * search_run["statuses"]["compile_device"]
    )


def test_time_bounds_a_run() -> None:
    """A batch of eight takes a little more than 20 s. The third begins before 42 s and is the last."""
    (search_run,) = run("random", seeds=1, trials=60, time=42.0).to_json()["runs"]
    assert search_run["evaluations"] == 24
    assert search_run["phases"]["build"] == pytest.approx(48.0)


@pytest.mark.long
def test_the_same_runs_again_and_side_by_side() -> None:
    first, again, jobs = run(), run(), run(jobs=2)
    assert untimed(first.to_json()) == untimed(again.to_json()) == untimed(jobs.to_json())


def test_searches_of_one_seed_see_the_same_noise_and_seeds_different() -> None:
    seen = [
        RecordedGround(ground(), Limits(20)).run(SearchSpec(name, name), seed).medians
        for name, seed in (("grid", 0), ("random", 0), ("grid", 1))
    ]
    shared = seen[0].keys() & seen[1].keys()
    assert shared
    assert all(seen[0][candidate] == seen[1][candidate] for candidate in shared)
    assert seen[0] != seen[2]


def test_exact_answers_are_the_medians() -> None:
    (search_run,) = run("grid", seeds=1, trials=63, exact=True).to_json()["runs"]
    assert search_run["best_over_optimum"] == 1.0
    assert search_run["trajectory"]["best"] == sorted(search_run["trajectory"]["best"], reverse=True)


def test_several_grounds_and_their_mean() -> None:
    grounds = [ground(), ground("bump", (1, 6), noise=0.3)]
    document = compare(grounds, parse_searches("droplet,random"), seeds=4, trials=30).to_json()
    assert (document["ground"], document["optimum"]) == (None, None)
    assert [entry["ground"] for entry in document["grounds"]] == ["bowl", "bump"]
    assert len(document["runs"]) == 16
    for search, summary in enumerate(document["summary"]):
        means = [entry["summary"][search]["best_over_optimum"]["mean"] for entry in document["grounds"]]
        assert summary["best_over_optimum"]["mean"] == pytest.approx(np.mean(means))
        assert summary["runs"] == 8
    assert document["differences"][0]["pairs"] == 8
    assert document["grounds"][0]["differences"][0]["pairs"] == 4
    json.dumps(document, allow_nan=False)


def test_ctrl_c_keeps_the_seeds_that_all_searches_finished() -> None:
    done: list[Progress] = []

    def stop(progress: Progress) -> None:
        done.append(progress)
        if len(done) == 5:
            raise KeyboardInterrupt

    comparison = run(on_progress=stop)
    assert comparison.interrupted
    document = comparison.to_json()
    assert {(search_run["search"], search_run["seed"]) for search_run in document["runs"]} == {
        (search, seed) for search in ("droplet", "random") for seed in range(2)
    }
    assert document["summary"][0]["runs"] == 2
    done[:] = [done[0]] * 4
    with pytest.raises(KeyboardInterrupt):
        run(on_progress=stop)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": 0}, "seeds=0 must be 1 or more"),
        ({"trials": 0}, "trials=0 must be 1 or more"),
        ({"jobs": 0}, "jobs=0 must be 1 or more"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(**settings)


def test_grounds_of_one_name_and_no_searches() -> None:
    with pytest.raises(InputError, match="two recordings are called bowl"):
        compare([ground(), ground()], parse_searches("random"))
    with pytest.raises(InputError, match="no search to compare"):
        compare([ground()], [])


def test_what_a_search_refuses_is_said_before_any_run() -> None:
    seen: list[Progress] = []
    with pytest.raises(SearchError):
        compare([ground()], [SearchSpec("r", "random"), SearchSpec("x", "x")], on_progress=seen.append)
    assert seen == []


class FakeMachine(MachineGround):
    """A machine that only races, with these medians. A candidate that is not among them has stopped working."""

    def __init__(self, raced: dict[Candidate, float]) -> None:
        self.raced, self.entrants, self.raced_first = raced, list[Candidate](), set[Candidate]()

    def measurer(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __enter__(self) -> Any:
        return self

    def race(self, candidates: list[Candidate], rounds: int) -> list[Measurement]:
        self.entrants = candidates
        self.raced_first = self.raced_first or set(candidates)
        failed = Measurement(Status.RUNTIME, error="died")
        return [Measurement(Status.OK, (self.raced[c],) * rounds) if c in self.raced else failed for c in candidates]


def traced(*seconds: tuple[Candidate, float]) -> Trace:
    trace = Trace(len(PARTS))
    for candidate, median in seconds:
        trace.record(Trial(candidate, Measurement(Status.OK, (median,))))
    return trace


def test_runs_on_the_machine_are_judged_by_a_race_of_all_that_led() -> None:
    a, b, c, d = (Candidate("s", (i,)) for i in range(4))
    first = traced((a, 9.0), (b, 1.0), (d, 1.5))
    second = traced((c, 2.0), (d, 1.4), (b, 1.2))
    second.leads = second.leads[:2]  # b took the lead for a moment only
    machine = FakeMachine({b: 1.3, c: 1.9})
    optimum, times = machine.true_times([first, second], race=True)
    assert machine.entrants == [d]  # the second time; a is far from the best
    assert machine.raced_first == {b, c, d}
    assert optimum == (b, 1.3)
    assert times == [[9.0, 1.3], [1.9, None]]  # d died in both races
    optimum, times = machine.true_times([first, second], race=False)
    assert optimum is not None and optimum[0] == b and optimum[1] == pytest.approx(1.1)
    assert machine.true_times([Trace()], race=True) == (None, [[]])
