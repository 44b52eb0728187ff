"""Searches of the papers side by side on recorded spaces, all claims from the same runs:

convergence   Droplet Search paper, sections 4.7 and 4.8, Figures 18 and 19
dpansor       DPAnsor paper, sections 3.1 and 3.2, Figures 10 and 11
nose          NoSE paper, section V, Figures 3 and 5 to 7
gradient      AF-DS paper, section 5.3, Figure 11, and its measure of variability (equation 1, Table 3)

Runs see the recorded noise. Their wall time is the recorded seconds of building and running, and those that the
searches take here: side by side they look slower than they are. Features are the knobs' encodings, so `gradient` and
`evolutionary` are the algorithms of Ansor-DS and Ansor alone.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grounds import OUT, Settings, document, geomean, loaded, save, table

from stormdrop.compare.comparison import compare
from stormdrop.compare.search_spec import parse_searches
from stormdrop.report.costs import statuses, time
from stormdrop.report.curves import by_evaluations, by_seconds
from stormdrop.report.style import save as save_figure
from stormdrop.report.summary import best_after, best_at

PAPER = "droplet:test=student"
SEARCHES = (PAPER, "droplet", "grid", "random", "genetic", "annealing", "nose", "evolutionary", "gradient")
DPANSOR = ("dpansor:N=25", "dpansor:N=100", "dpansor:N=300")
TRIALS = 1000  # as in the AF-DS paper; the DPAnsor paper's Ansor has 10,000 for all kernels of a model
SAME = 1.01  # ends closer than this count as the same
COMPARABLE = 1.05  # the AF-DS paper's word for ends closer than this
Runs = Mapping[tuple[str, str, int], Mapping[str, Any]]
"""By ground, search and seed."""


def searches(asked: Settings) -> None:
    """Runs all searches once and prints what the claims come to."""
    trials = 200 if asked.quick else TRIALS
    grounds = [loaded(source) for source in asked.hard]
    found = compare(
        grounds, parse_searches(",".join((*SEARCHES, *DPANSOR))), seeds=asked.seeds, trials=trials, jobs=asked.jobs
    )
    side = found.to_json()
    runs = {(run["ground"], run["search"], run["seed"]): run for run in side["runs"]}
    optima = {ground["ground"]: ground["optimum"] for ground in side["grounds"]}
    results = {
        "convergence": _convergence(side, runs, optima, trials),
        "dpansor": _dpansor(runs, optima, trials),
        "nose": {
            "over_nose": _nose_curves(runs, optima),
            "seconds": _nose_seconds(runs),
            "errors": _nose_errors(runs, asked.hard),
        },
        "gradient": _gradient(runs, optima, trials),
    }
    save("claim_searches", document(asked, trials=trials, **results, comparison=side))
    for name, draw in (("evaluations", by_evaluations), ("seconds", by_seconds), ("errors", statuses), ("time", time)):
        save_figure(draw(side), OUT / f"claim_searches_{name}.png")


# Droplet Search: Figures 18 and 19


def _convergence(side: Mapping[str, Any], runs: Runs, optima: Mapping[str, float], trials: int) -> list[dict[str, Any]]:
    print(f"\nConvergence (Figure 19): time over the optimum, geometric mean over {len(optima)} spaces and all seeds")
    marks = [mark for mark in (10, 25, 50, 100, 200, 500) if mark < trials] + [trials]
    rows = []
    for search in SEARCHES:
        own = [run for run in runs.values() if run["search"] == search]
        reached = [geomean(_finite(best_at(run, optima[run["ground"]], mark) for run in own)) for mark in marks]
        ends = [run["evaluations"] for run in own if run["converged"]]
        row = [f"{each:.3f}" for each in reached]
        rows.append([search, *row, f"{statistics.fmean(ends):.0f}" if ends else "-"])
    table(["", *(f"at {mark}" for mark in marks), "converged after"], rows)

    print(
        "\nSamples to converge (Figure 18): droplet's end against the others' at as many evaluations, and at their end"
    )
    found = []
    for droplet, other in itertools.product((PAPER, "droplet"), SEARCHES[2:]):
        same, whole, seconds, worse = [], [], [], []
        for ground, optimum in optima.items():
            for seed in _seeds(runs):
                ours, theirs = runs[ground, droplet, seed], runs[ground, other, seed]
                end = float(best_at(ours, optimum, trials))
                same.append(float(best_at(theirs, optimum, ours["evaluations"])) / end)
                whole.append(float(best_at(theirs, optimum, trials)) / end)
                worse.append(whole[-1] * SAME < 1)
                seconds.append(theirs["seconds"] / ours["seconds"])
        found.append(
            {
                "droplet": droplet,
                "other": other,
                "time_at_equal_evaluations": geomean(_finite(same)),
                "time_at_its_end": geomean(whole),
                "droplet_worse": statistics.fmean(worse),
                "seconds": geomean(seconds),
            }
        )
    rows = [
        [
            f"{each['other']} / {each['droplet']}",
            f"{each['time_at_equal_evaluations']:.3f}",
            f"{each['time_at_its_end']:.3f}",
            f"{each['droplet_worse']:.0%}",
            f"{each['seconds']:.1f}",
        ]
        for each in found
    ]
    table(["", "time, as many", f"time, {trials}", "droplet >1% worse", "tuning seconds"], rows)
    return found


# DPAnsor: Figures 10 and 11


def _dpansor(runs: Runs, optima: Mapping[str, float], trials: int) -> list[dict[str, Any]]:
    print(f"\nN trials of evolution and then droplet (Figures 10 and 11), against {trials} trials of evolution")
    found: list[dict[str, Any]] = []
    for search in DPANSOR:
        ends, seconds, evaluations = [], [], []
        for ground, optimum in optima.items():
            for seed in _seeds(runs):
                ours, theirs = runs[ground, search, seed], runs[ground, "evolutionary", seed]
                ends.append(float(best_at(theirs, optimum, trials) / best_at(ours, optimum, trials)))
                seconds.append(theirs["seconds"] / ours["seconds"])
                evaluations.append(ours["evaluations"])
        found.append(
            {
                "search": search,
                "evaluations": statistics.fmean(evaluations),
                "time": geomean(ends),
                "better": statistics.fmean(end > SAME for end in ends),
                "worse": statistics.fmean(end * SAME < 1 for end in ends),
                "seconds": geomean(seconds),
            }
        )
    rows = [
        [
            each["search"],
            f"{each['evaluations']:.0f}",
            f"{each['time']:.3f}",
            f"{each['better']:.0%}",
            f"{each['worse']:.0%}",
            f"{each['seconds']:.1f}",
        ]
        for each in found
    ]
    table(["", "evaluations", "evolution's time / its", "better", "worse", "tuning seconds"], rows)
    return found


# NoSE: Figures 3 and 5 to 7


def _nose_curves(runs: Runs, optima: Mapping[str, float]) -> dict[str, dict[str, float]]:
    print("\nNoSE in wall time (Figure 5): kernel time of others over NoSE's, at shares of the wall time of GA's run")
    shares = (0.05, 0.1, 0.2, 0.5, 1.0)
    curves: dict[str, dict[str, float]] = {}
    for other in ("genetic", "annealing", "random"):
        for share in shares:
            pairs = []
            for ground, optimum in optima.items():
                at = share * statistics.fmean(runs[ground, "genetic", seed]["seconds"] for seed in _seeds(runs))
                for seed in _seeds(runs):
                    nose, theirs = (best_after(runs[ground, s, seed], optimum, at) for s in ("nose", other))
                    pairs.append(theirs / nose)
            curves.setdefault(other, {})[f"{share:.0%}"] = geomean(_finite(pairs))
    rows = [[f"{other} / nose", *(f"{ratio:.3f}" for ratio in curve.values())] for other, curve in curves.items()]
    table(["", *(f"{share:.0%}" for share in shares)], rows)
    return curves


def _nose_seconds(runs: Runs) -> dict[str, dict[str, float]]:
    print("\nWhere wall time goes (Figure 6), and what the search would take of it at 0.1 s per evaluation")
    parts, rows = {}, []
    for search in ("nose", "genetic", "annealing"):
        own = [run for run in runs.values() if run["search"] == search]
        spent = Counter[str]()
        for run in own:
            spent.update(run["phases"])
        each = spent["search"] / sum(run["evaluations"] for run in own)
        parts[search] = {**spent, "search_seconds_per_evaluation": each}
        total = sum(spent.values())
        shared = [f"{spent[part] / total:.2%}" for part in ("search", "build", "run", "check")]
        rows.append([search, *shared, f"{1e3 * each:.2f}", f"{each / (each + 0.1):.1%}"])
    table(["", "search", "build", "run", "check", "search ms each", "at 0.1 s"], rows)
    return parts


def _nose_errors(runs: Runs, sources: Sequence[str]) -> dict[str, Any]:
    print("\nErrors (Figures 3 and 7): shares of evaluations, and of the seconds of measuring, that failed")
    errors, rows = {}, []
    for recording in map(loaded, sources):
        failed = {c: known for c, known in recording.recorded.items() if not known.seconds}
        if not failed:
            continue
        whole = sum(known.phases.total for known in recording.recorded.values())
        lost = sum(known.phases.total for known in failed.values())
        row = [f"{len(failed) / len(recording.recorded):.1%}", f"{lost / whole:.1%}"]
        counted = {}
        for search in ("nose", "genetic", "annealing", "random"):
            counts, seconds = Counter[str](), Counter[str]()
            for seed in _seeds(runs):
                counts.update(runs[recording.name, search, seed]["statuses"])
                seconds.update(runs[recording.name, search, seed]["status_seconds"])
            counted[search] = {"evaluations": dict(counts), "seconds": dict(seconds)}
            row += [f"{1 - each['ok'] / sum(each.values()):.1%}" for each in (counts, seconds)]
        errors[recording.name] = counted
        rows.append([recording.name, *row])
    searches = ("all points", "nose", "genetic", "annealing", "random")
    table(["", *(f"{search}{what}" for search in searches for what in ("", " s"))], rows)
    return errors


# DS: Figure 11 and Table 3


def _gradient(runs: Runs, optima: Mapping[str, float], trials: int) -> list[dict[str, Any]]:
    early = trials // 5  # in place of the paper's two minutes; before 64 trials both are random
    print(f"\nDS against Ansor's evolution (Figure 11): evolution's time over DS's; means of {len(_seeds(runs))} seeds")

    def reached(search: str, ground: str, mark: int) -> list[float]:
        return [float(best_at(runs[ground, search, seed], optima[ground], mark)) for seed in _seeds(runs)]

    def ratio(ground: str, evolution_at: int, ds_at: int) -> float:
        evolution = statistics.fmean(reached("evolutionary", ground, evolution_at))
        return evolution / statistics.fmean(reached("gradient", ground, ds_at))

    compared = {f"at {early}": (early, early), f"{trials} / {early}": (trials, early), f"at {trials}": (trials, trials)}
    found: list[dict[str, Any]] = []
    for ground in optima:
        ratios = {words: ratio(ground, *at) for words, at in compared.items()}
        variability = {s: _variability(reached(s, ground, trials)) for s in ("gradient", "evolutionary")}
        found.append({"ground": ground, "ratios": ratios, "variability": variability})
    rows = [
        [
            each["ground"],
            *(f"{ratio:.3f}" for ratio in each["ratios"].values()),
            *(f"{share:.1%}" for share in each["variability"].values()),
        ]
        for each in found
    ]
    table(["", *compared, "variability DS", "evolution"], rows)
    for words in compared:
        own = [each["ratios"][words] for each in found]
        ahead = sum(each > COMPARABLE for each in own)
        comparable = sum(1 / COMPARABLE <= each <= COMPARABLE for each in own)
        print(f"{words}: DS more than 5% better on {ahead}, comparable on {comparable} of {len(found)} spaces")
    return found


def _variability(ends: Iterable[float]) -> float:
    """Equation 1: (max - min) / max of the performance, which is 1 / time."""
    speeds = [1 / end for end in ends]
    return (max(speeds) - min(speeds)) / max(speeds)


def _seeds(runs: Runs) -> Sequence[int]:
    return sorted({seed for _, _, seed in runs})


def _finite(values: Iterable[Any]) -> list[float]:
    """What is infinite because nothing had worked yet is left out."""
    return [float(value) for value in values if math.isfinite(value)]
