"""What the runs of a comparison amount to, and whether searches differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stormdrop.report.differences import differences, holm
from stormdrop.report.summary import best_after, best_at, checkpoints, comparison_document, name_of_optimum

PARTS = ("search", "schedule", "build", "run", "check")


def run(
    search: str, seed: int, ratios: list[float | None], evaluations: list[int], ground: str = "g", optimum: float = 2.0
) -> dict[str, Any]:
    """A run whose best reached these ratios after these evaluations. Each took 1 s of building and 0.5 s of running."""
    best = [None if ratio is None else ratio * optimum for ratio in ratios]
    end = best[-1] if best else None
    spent = {"search": 0.02, "schedule": 0.0, "build": 100.0, "run": 50.0, "check": 0.0}
    return {
        "ground": ground,
        "search": search,
        "seed": seed,
        "evaluations": 100,
        "best_over_optimum": None if end is None else end / optimum,
        "evaluations_to_within": {"1.05": evaluations[-1] if end == optimum else None, "1.10": None},
        "search_seconds": 0.02,
        "seconds": 150.02,
        "phases": spent,
        "statuses": {"ok": 90, "runtime": 10} if seed else {"ok": 100},
        "status_seconds": {"ok": 150.0},
        "converged": True,
        "trajectory": {
            "evaluations": evaluations,
            "best": best,
            **{part: [spent[part] / 100 * n for n in evaluations] for part in PARTS},
        },
    }


def summarised(runs: list[dict[str, Any]], trials: int = 100, grounds: tuple[str, ...] = ("g",)) -> dict[str, Any]:
    searches = list(dict.fromkeys(run["search"] for run in runs))
    described = [{"ground": name, "recorded": True, "optimum": 2.0} for name in grounds]
    return comparison_document({"trials": trials, "seeds": 2}, searches, described, runs)


def test_the_best_holds_until_the_next_and_after_the_end() -> None:
    improving = run("a", 0, [3.0, 1.5, 1.0], [2, 5, 5])
    assert best_at(improving, 2.0, [1, 2, 4, 5, 90, 1000]).tolist() == [np.inf, 3.0, 3.0, 1.0, 1.0, 1.0]
    assert best_after(improving, 2.0, [2.9, 3.1, 7.4, 7.6, 1e6]).tolist() == [np.inf, 3.0, 3.0, 1.0, 1.0]
    assert best_at(run("a", 0, [1.0, None], [2, 4]), 2.0, [3, 4]).tolist() == [1.0, np.inf]
    assert best_at(run("a", 0, [], []), 2.0, [1, 50]).tolist() == [np.inf, np.inf]
    assert best_at(improving, None, [5]).tolist() == [np.inf]


def test_checkpoints() -> None:
    assert checkpoints(200) == [25, 50, 100, 200]
    assert checkpoints(120) == [25, 50, 100, 120]
    assert checkpoints(25) == [25]
    assert checkpoints(7) == [7]


def test_a_summary_of_two_runs() -> None:
    runs = [run("a", 0, [2.0, 1.0], [10, 60]), run("a", 1, [1.08], [30])]
    (summary,) = summarised(runs)["summary"]
    assert summary["at"]["25"] == {
        "best_over_optimum": {"mean": None, "median": None},  # the second had nothing yet
        "within": {"1.05": 0.0, "1.10": 0.0},
    }
    assert summary["at"]["50"]["best_over_optimum"] == pytest.approx({"mean": 1.54, "median": 1.54})
    assert summary["at"]["50"]["within"] == {"1.05": 0.0, "1.10": 0.5}
    assert summary["at"]["100"] == {key: summary[key] for key in ("best_over_optimum", "within")}
    assert summary["within"] == {"1.05": 0.5, "1.10": 1.0}
    assert summary["evaluations_to_within"] == {"1.05": None, "1.10": None}  # half of the runs did not get there
    assert summary["search_ms_per_evaluation"] == pytest.approx(0.2)
    assert summary["phases"]["build"] == pytest.approx(100.0)
    assert summary["statuses"] == {"ok": 190, "runtime": 10}
    assert summary["converged"] == 1.0


def test_over_grounds_it_is_the_mean_of_each() -> None:
    runs = [run("a", seed, [end], [10], name) for name, end in (("g", 1.0), ("h", 2.0)) for seed in range(2)]
    whole = summarised(runs, grounds=("g", "h"))
    assert whole["ground"] is whole["optimum"] is None
    (summary,) = whole["summary"]
    assert summary["best_over_optimum"] == {"mean": 1.5, "median": 1.5}
    assert (summary["runs"], summary["statuses"]["ok"]) == (4, 380)
    assert summary["evaluations_to_within"]["1.05"] is None  # never on h
    assert summary["search"] == "a"
    runs[-1]["trajectory"]["best"] = runs[-2]["trajectory"]["best"] = [None]
    assert summarised(runs, grounds=("g", "h"))["summary"][0]["best_over_optimum"] == {"mean": None, "median": None}


def test_what_the_best_is_compared_with() -> None:
    assert name_of_optimum([{"recorded": True}, {"recorded": True}]) == "optimum"
    assert name_of_optimum([{"recorded": True}, {"recorded": False}]) == "best known"


def test_differences_pair_the_same_seed_and_ground() -> None:
    """b is 1% slower than a on every seed of both grounds, and its runs come in another order."""
    rng = np.random.default_rng(0)
    ends = {(name, seed): float(end) for name in "gh" for seed, end in enumerate(rng.uniform(1.0, 3.0, 5))}
    a = [run("a", seed, [end], [3], name) for (name, seed), end in ends.items()]
    b = [run("b", seed, [1.01 * end], [3], name) for (name, seed), end in reversed(ends.items())]
    (pair,) = summarised([*a, *b], grounds=("g", "h"))["differences"]
    assert (pair["a"], pair["b"], pair["pairs"]) == ("a", "b", 10)
    assert pair["ratio"] == pytest.approx(1 / 1.01)
    assert pair["interval"] == pytest.approx([1 / 1.01, 1 / 1.01])
    assert pair["p"] == pytest.approx(2 / 2**10)  # all ten signs agree: exact, two-sided
    assert pair["significant"]


def test_five_pairs_can_never_be_significant_and_equal_runs_are_not() -> None:
    (few,) = differences({"a": [1.0, 1.1, 1.2, 1.3, 1.4], "b": [2.0, 2.1, 2.2, 2.3, 2.4]})
    assert few["p"] == pytest.approx(0.0625)
    assert not few["significant"]
    (same,) = differences({"a": [1.0, 1.5], "b": [1.0, 1.5]})
    assert (same["p"], same["ratio"], same["interval"]) == (1.0, 1.0, [1.0, 1.0])


@pytest.mark.long
def test_the_interval_of_the_ratio_holds_it() -> None:
    """The true ratio is 0.9. At least 85% of 200 intervals must hold it: 95% in theory, but 12 pairs are few."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        b = np.exp(rng.normal(0.5, 0.2, 12))
        (pair,) = differences({"a": 0.9 * b * np.exp(rng.normal(0.0, 0.1, 12)), "b": b})  # type: ignore[dict-item]
        held += pair["interval"][0] <= 0.9 <= pair["interval"][1]
    assert 170 <= held <= 198


def test_a_run_that_found_nothing_is_the_worst() -> None:
    a, b = [1.0 + 0.01 * i for i in range(8)], [np.inf] * 8
    (pair,) = differences({"a": a, "b": b})
    assert (pair["ratio"], pair["interval"]) == (None, None)
    assert pair["significant"]
    (neither,) = differences({"a": b, "b": b})
    assert (neither["p"], neither["ratio"], neither["pairs"]) == (1.0, None, 0)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
    three = differences({name: [1.0 + i for i in range(6)] for name in "abc"} | {"d": [2.0 + i for i in range(6)]})
    assert len(three) == 6
    assert {round(pair["p"], 4) for pair in three if "d" in (pair["a"], pair["b"])} == {round(6 * 2 / 2**6, 4)}
