"""The searches of the papers side by side on recorded spaces. All claims are checked on the same runs:

convergence   Droplet Search paper, sections 4.7 and 4.8, Figures 18 and 19
dpansor       DPAnsor paper, sections 3.1 and 3.2, Figures 10 and 11
nose          NoSE paper, section V, Figures 3 and 5 to 7
gradient      AF-DS paper, section 5.3, Figure 11, and its measure of variability (equation 1, Table 3)

Runs see the recorded noise. Their wall time is the recorded seconds of building and running plus the seconds that the
searches take here. (They look slower than they are, because runs go on side by side.) Features are the encodings of the
knobs, so `gradient` and `evolutionary` are only the algorithms of Ansor-DS and Ansor.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from _grounds import OUT, Settings, document, geomean, loaded, save, table

from stormdrop.compare.comparison import compare
from stormdrop.compare.search_spec import parse_searches
from stormdrop.measure.replay import Recording
from stormdrop.report.plots.costs import statuses, time
from stormdrop.report.plots.curves import by_evaluations, by_seconds
from stormdrop.report.plots.style import save as save_figure
from stormdrop.report.summary import best_after, best_at

PAPER = "droplet:test=student"
SEARCHES = (PAPER, "droplet", "grid", "random", "genetic", "annealing", "nose", "evolutionary", "gradient")
DPANSOR = ("dpansor:N=25", "dpansor:N=100", "dpansor:N=300")
TRIALS = 1000  # as in the AF-DS paper; the DPAnsor paper's Ansor has 10,000 for all kernels of a model
SAME = 1.01  # ends that are closer than this count as the same
COMPARABLE = 1.05  # the AF-DS paper's word for ends closer than this
Runs = Mapping[tuple[str, str, int], Mapping[str, Any]]
"""The runs of a document by ground, search and seed."""


def searches(settings: Settings) -> None:
    """Runs all searches once, prints how the claims come out, and saves the figures."""
    trials = 200 if settings.quick else TRIALS
    grounds = [loaded(source) for source in settings.hard]
    comparison = compare(
        grounds,
        parse_searches(",".join((*SEARCHES, *DPANSOR))),
        seeds=settings.seeds,
        trials=trials,
        jobs=settings.jobs,
    )
    compared = comparison.to_json()
    runs = {(run["ground"], run["search"], run["seed"]): run for run in compared["runs"]}
    optima = {ground["ground"]: ground["optimum"] for ground in compared["grounds"]}
    results = {
        "convergence": _convergence(runs, optima, trials),
        "dpansor": _dpansor(runs, optima, trials),
        "nose": {
            "over_nose": _nose_curves(runs, optima),
            "seconds": nose_seconds(runs, ("nose", "genetic", "annealing")),
            "errors": nose_errors(runs, grounds, ("nose", "genetic", "annealing", "random")),
        },
        "gradient": _gradient(runs, optima, trials),
    }
    save("claim_searches", document(settings, trials=trials, **results, comparison=compared))
    for name, draw in (("evaluations", by_evaluations), ("seconds", by_seconds), ("errors", statuses), ("time", time)):
        save_figure(draw(compared), OUT / f"claim_searches_{name}.png")


# Droplet Search: Figures 18 and 19


def _convergence(runs: Runs, optima: Mapping[str, float], trials: int) -> list[dict[str, Any]]:
    print(f"\nConvergence (Figure 19): time over the optimum, geometric mean over {len(optima)} spaces and all seeds")
    marks = [mark for mark in (10, 25, 50, 100, 200, 500) if mark < trials] + [trials]
    rows = []
    for search in SEARCHES:
        group = [run for run in runs.values() if run["search"] == search]
        reached = [geomean(_finite(best_at(run, optima[run["ground"]], mark) for run in group)) for mark in marks]
        ends = [run["evaluations"] for run in group if run["converged"]]
        row = [f"{ratio:.3f}" for ratio in reached]
        rows.append([search, *row, f"{statistics.fmean(ends):.0f}" if ends else "-"])
    table(["", *(f"at {mark}" for mark in marks), "converged after"], rows)

    print(
        "\nSamples to converge (Figure 18): droplet's end against the others' at as many evaluations, and at their end"
    )
    pairs = []
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
        pairs.append(
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
            f"{pair['other']} / {pair['droplet']}",
            f"{pair['time_at_equal_evaluations']:.3f}",
            f"{pair['time_at_its_end']:.3f}",
            f"{pair['droplet_worse']:.0%}",
            f"{pair['seconds']:.1f}",
        ]
        for pair in pairs
    ]
    table(["", "time, as many", f"time, {trials}", "droplet >1% worse", "tuning seconds"], rows)
    return pairs


# DPAnsor: Figures 10 and 11


def _dpansor(runs: Runs, optima: Mapping[str, float], trials: int) -> list[dict[str, Any]]:
    print(f"\nN trials of evolution and then droplet (Figures 10 and 11), against {trials} trials of evolution")
    figures: list[dict[str, Any]] = []
    for search in DPANSOR:
        ends, seconds, evaluations = [], [], []
        for ground, optimum in optima.items():
            for seed in _seeds(runs):
                ours, theirs = runs[ground, search, seed], runs[ground, "evolutionary", seed]
                ends.append(float(best_at(theirs, optimum, trials) / best_at(ours, optimum, trials)))
                seconds.append(theirs["seconds"] / ours["seconds"])
                evaluations.append(ours["evaluations"])
        figures.append(
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
            figure["search"],
            f"{figure['evaluations']:.0f}",
            f"{figure['time']:.3f}",
            f"{figure['better']:.0%}",
            f"{figure['worse']:.0%}",
            f"{figure['seconds']:.1f}",
        ]
        for figure in figures
    ]
    table(["", "evaluations", "evolution's time / its", "better", "worse", "tuning seconds"], rows)
    return figures


# NoSE: Figures 3 and 5 to 7


def _nose_curves(runs: Runs, optima: Mapping[str, float]) -> dict[str, dict[str, float]]:
    print("\nNoSE in wall time (Figure 5): kernel time of others over NoSE's, at shares of the wall time of GA's run")
    shares = (0.05, 0.1, 0.2, 0.5, 1.0)
    curves: dict[str, dict[str, float]] = {}
    for other in ("genetic", "annealing", "random"):
        for share in shares:
            pairs = []
            for ground, optimum in optima.items():
                moment = share * statistics.fmean(runs[ground, "genetic", seed]["seconds"] for seed in _seeds(runs))
                for seed in _seeds(runs):
                    nose, theirs = (best_after(runs[ground, s, seed], optimum, moment) for s in ("nose", other))
                    pairs.append(theirs / nose)
            curves.setdefault(other, {})[f"{share:.0%}"] = geomean(_finite(pairs))
    rows = [[f"{other} / nose", *(f"{ratio:.3f}" for ratio in curve.values())] for other, curve in curves.items()]
    table(["", *(f"{share:.0%}" for share in shares)], rows)
    return curves


def nose_seconds(runs: Runs, searches: Sequence[str]) -> dict[str, dict[str, float]]:
    """Prints where the wall time of these searches goes, and returns the seconds by search and part."""
    print("\nWhere wall time goes (Figure 6), and what the search would take of it at 0.1 s per evaluation")
    parts, rows = {}, []
    for search in searches:
        group = [run for run in runs.values() if run["search"] == search]
        spent = Counter[str]()
        for run in group:
            spent.update(run["phases"])
        per_evaluation = spent["search"] / sum(run["evaluations"] for run in group)
        parts[search] = {**spent, "search_seconds_per_evaluation": per_evaluation}
        total = sum(spent.values())
        shared = [f"{spent[part] / total:.2%}" for part in ("search", "build", "run", "check")]
        rows.append([search, *shared, f"{1e3 * per_evaluation:.2f}", f"{per_evaluation / (per_evaluation + 0.1):.1%}"])
    table(["", "search", "build", "run", "check", "search ms each", "at 0.1 s"], rows)
    return parts


def nose_errors(runs: Runs, grounds: Sequence[Recording], searches: Sequence[str]) -> dict[str, Any]:
    """Prints which shares of the searches' evaluations failed, and returns evaluations and seconds by kind of error."""
    print("\nErrors (Figures 3 and 7): shares of evaluations, and of the seconds of measuring, that failed")
    errors, rows = {}, []
    for recording in grounds:
        failed = {c: known for c, known in recording.recorded.items() if not known.seconds}
        if not failed:
            continue
        whole = sum(known.phases.total for known in recording.recorded.values())
        lost = sum(known.phases.total for known in failed.values())
        row = [f"{len(failed) / len(recording.recorded):.1%}", f"{lost / whole:.1%}"]
        counted = {}
        for search in searches:
            counts, seconds = Counter[str](), Counter[str]()
            for seed in _seeds(runs):
                counts.update(runs[recording.name, search, seed]["statuses"])
                seconds.update(runs[recording.name, search, seed]["status_seconds"])
            counted[search] = {"evaluations": dict(counts), "seconds": dict(seconds)}
            row += [f"{1 - by_status['ok'] / sum(by_status.values()):.1%}" for by_status in (counts, seconds)]
        errors[recording.name] = counted
        rows.append([recording.name, *row])
    table(["", *(f"{search}{what}" for search in ("all points", *searches) for what in ("", " s"))], rows)
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
    figures: list[dict[str, Any]] = []
    for ground in optima:
        ratios = {words: ratio(ground, *marks) for words, marks in compared.items()}
        variability = {s: _variability(reached(s, ground, trials)) for s in ("gradient", "evolutionary")}
        figures.append({"ground": ground, "ratios": ratios, "variability": variability})
    rows = [
        [
            figure["ground"],
            *(f"{ratio:.3f}" for ratio in figure["ratios"].values()),
            *(f"{share:.1%}" for share in figure["variability"].values()),
        ]
        for figure in figures
    ]
    table(["", *compared, "variability DS", "evolution"], rows)
    for words in compared:
        all_ratios = [figure["ratios"][words] for figure in figures]
        ahead = sum(value > COMPARABLE for value in all_ratios)
        comparable = sum(1 / COMPARABLE <= value <= COMPARABLE for value in all_ratios)
        print(f"{words}: DS more than 5% better on {ahead}, comparable on {comparable} of {len(figures)} spaces")
    return figures


def _variability(ends: Iterable[float]) -> float:
    """Equation 1: (max - min) / max of the performance, which is 1 / time."""
    speeds = [1 / end for end in ends]
    return (max(speeds) - min(speeds)) / max(speeds)


def _seeds(runs: Runs) -> Sequence[int]:
    return sorted({seed for _, _, seed in runs})


def _finite(values: Iterable[Any]) -> list[float]:
    """The values without the infinite ones, at which no candidate had worked yet."""
    return [float(value) for value in values if math.isfinite(value)]
