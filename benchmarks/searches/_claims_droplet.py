"""Droplet Search's stop criterion (Droplet Search paper, section 4.3, Figure 12), and its parallelism and speculation
(section 4.5, Figure 16).

Runs begin at random points that work, one per seed and the same for all settings. (From the origin they hardly differ.)
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from _grounds import (
    SHARED_MACHINE,
    NoisyMeasurer,
    Settings,
    descend,
    document,
    geomean,
    loaded,
    random_start,
    save,
    spread,
    table,
)
from scipy import stats

from stormdrop.search.parts.judge import least_repeats

CONFIDENCES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
WIDTHS = (1, 2, 4, 8, 16)
TESTS: tuple[dict[str, Any], ...] = (
    *({"test": "student", "confidence": confidence} for confidence in CONFIDENCES),
    *({"test": "rank", "confidence": c, "repeats": least_repeats(c)} for c in CONFIDENCES),
    *({"test": "ours", "confidence": confidence} for confidence in CONFIDENCES),
    {"test": "none"},
)


def confidence(settings: Settings) -> None:
    """Prints evaluations and ends by test and confidence, under the recorded noise and that of a shared machine."""
    tasks = itertools.product(settings.sources, (False, True), range(len(TESTS)), range(5 * settings.seeds))
    runs = spread(_descent_with_test, tasks, settings.jobs)
    for shared in (False, True):
        noise = "the noise of a shared machine" if shared else "the recorded noise"
        print(f"\nStop criterion (Figure 12) under {noise}: mean over {len(settings.sources)} spaces")
        rows = []
        for index, options in enumerate(TESTS):
            group = [run for run in runs if run["shared"] == shared and run["at"] == index]
            test = options["test"]
            words = [test, *(f"{options[name]}" for name in ("confidence", "repeats") if name in options)]
            effort = [f"{_mean(group, 'measurements'):.0f}", f"{_minutes(group):.2f}"]
            rows.append([" ".join(words), *_quality(group), *effort])
        table(["test, confidence, repeats", "end", "within 5%", "evaluations", "measurements", "minutes"], rows)
    save("claim_confidence", document(settings, tests=list(TESTS), runs=runs))


def speculation(settings: Settings) -> None:
    """Prints evaluations, batches and wall time by the number of workers, with and without speculation."""
    tasks = itertools.product(settings.sources, ("student", "ours"), (False, True), WIDTHS, range(5 * settings.seeds))
    runs = spread(_descent_with_width, tasks, settings.jobs)
    for test in ("student", "ours"):
        of_test = [run for run in runs if run["test"] == test]
        one_worker = [run for run in of_test if run["width"] == 1 and not run["speculation"]]
        print(f"\nSpeculation and parallelism (Figure 16), test {test}: mean over {len(settings.sources)} spaces")
        rows = []
        for on, width in itertools.product((False, True), WIDTHS):
            group = [run for run in of_test if (run["speculation"], run["width"]) == (on, width)]
            without = [run for run in of_test if (run["speculation"], run["width"]) == (False, width)]
            speedup = f"{_speedup(one_worker, group):.2f}"
            figures = [f"{_mean(group, 'batches'):.1f}", f"{_minutes(group):.2f}", speedup]
            p = f"{_same_ends(without, group):.2f}" if on else ""
            rows.append([f"{'on' if on else 'off'}, {width}", *_quality(group), *figures, p])
        headings = ["speculation, workers", "end", "within 5%", "evaluations", "batches", "minutes", "times faster"]
        table([*headings, "p of ends, on and off"], rows)
    save("claim_speculation", document(settings, runs=runs))


def _descent_with_test(task: tuple[str, bool, int, int]) -> dict[str, Any]:
    source, shared, index, seed = task
    recording, rng = loaded(source), np.random.default_rng([seed, 1])
    measurer = NoisyMeasurer(recording, rng, SHARED_MACHINE) if shared else recording.measurer(rng)
    return {
        "shared": shared,
        "at": index,
        **descend(recording, measurer, seed, random_start(recording, seed), **TESTS[index]),
    }


def _descent_with_width(task: tuple[str, str, bool, int, int]) -> dict[str, Any]:
    source, test, on, width, seed = task
    recording = loaded(source)
    measurer = recording.measurer(np.random.default_rng([seed, 1]))
    run = descend(recording, measurer, seed, random_start(recording, seed), width, test=test, speculation=on)
    return {"test": test, "speculation": on, "width": width, **run}


def _quality(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    ends = _ends(runs)
    close = statistics.fmean(end <= 1.05 for end in ends)
    return [f"{geomean(ends):.3f}", f"{close:.0%}", f"{_mean(runs, 'evaluations'):.1f}"]


def _ends(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    return [math.inf if run["end"] is None else run["end"] for run in runs]


def _mean(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.fmean(run[key] for run in runs)


def _minutes(runs: Sequence[Mapping[str, Any]]) -> float:
    return _mean(runs, "seconds") / 60


def _speedup(one_worker: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> float:
    """The geometric mean of the ratios of seconds over pairs of runs on the same ground from the same seed."""
    return geomean(a["seconds"] / b["seconds"] for a, b in zip(one_worker, runs, strict=True))


def _same_ends(off: Sequence[Mapping[str, Any]], on: Sequence[Mapping[str, Any]]) -> float:
    """p of a signed-rank test on the ends of paired runs; 1 if no pair differs."""
    gaps = [math.log(a) - math.log(b) for a, b in zip(_ends(off), _ends(on), strict=True) if a != b]
    return float(stats.wilcoxon(gaps).pvalue) if gaps else 1.0
