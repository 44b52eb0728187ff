"""Droplet Search on analytic landscapes: does it end at the optimum, and after how many evaluations, by each test?

    python benchmarks/searches/analytic.py [--quick]

Section 4.4 of the Droplet Search paper: descents from the origin of each landscape of `stormdrop.space.analytic`, in
batches of 8. An end counts as the optimum where its cost is the least one: some landscapes have equal optima. Gaps are
of true costs, in percent of the least one; of TLI, whose costs are negative, they are differences.

Without noise (1e-6, for a test needs some) all tests should agree. With noise of the machine's order they stop at
steps that they cannot prove, which is what they are for; the gap says what that costs. Requests are of three samples,
droplet's default, but of four for the rank test, which could never accept with fewer.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from grounds import OUT, save, table
from recorded import place

from stormdrop.report import style
from stormdrop.search import create
from stormdrop.search.droplet import TESTS, DropletOptions
from stormdrop.search.judge import least_repeats
from stormdrop.space.analytic import Landscape, landscapes
from stormdrop.testing import drive, objective_of
from stormdrop.trial import Candidate
from stormdrop.tuning.request import BATCH

DIFFERENCE = "tli"
"""The landscape whose costs have no meaningful ratios."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--noise", default="0.000001,0.01", help="of a sample: deviations of log times (%(default)s)")
    parser.add_argument("--seeds", type=int, default=20, help="runs under each noise (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="2 seeds, to try it: seconds")
    asked = parser.parse_args()
    seeds = 2 if asked.quick else asked.seeds
    levels = [float(level) for level in asked.noise.split(",")]
    where = place("numpy", "scipy")

    known = landscapes()
    results = [
        summary(landscape, test, noise, [descend(landscape, test, noise, seed) for seed in range(seeds)])
        for noise in levels
        for landscape in known.values()
        for test in TESTS
    ]
    for noise in levels:
        print(f"\nnoise {noise:g}: of {seeds} descents those that end at the optimum; evaluations; mean gap")
        own = [each for each in results if each["noise"] == noise]
        table(["", "points", *(f"{test}: {head}" for test in TESTS for head in ("", "evaluations", "gap"))], _rows(own))
    print(save("analytic", {"machine": where, "seeds": seeds, "batch": BATCH, "descents": results}))
    print(_draw(results, list(known), levels))


def descend(landscape: Landscape, test: str, noise: float, seed: int) -> dict[str, Any]:
    """One descent from the origin: how far it ends above the least cost, and what it measured."""
    defaults = DropletOptions()
    repeats = least_repeats(defaults.confidence) if test == "rank" else defaults.repeats
    search = create("droplet", [landscape.space], np.random.default_rng(seed), test=test, repeats=repeats)
    trials = drive(search, objective_of(landscape.seconds, within=noise, seed=seed), BATCH)
    least = landscape.cost(landscape.optimum)
    end = search.best or Candidate(landscape.space.name, landscape.space.origin)
    above = landscape.cost(end) - least
    return {
        "reached": above == 0.0,
        "gap": above if landscape.name == DIFFERENCE else above / least,
        "evaluations": len({trial.candidate for trial in trials}),
        "measurements": len(trials),
        "converged": search.converged,
        "end": landscape.space.config(end.point),
    }


def summary(landscape: Landscape, test: str, noise: float, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The descents of one landscape, test and noise together."""
    return {
        "landscape": landscape.name,
        "points": landscape.space.size,
        "optimum": landscape.space.config(landscape.optimum.point),
        "least": landscape.cost(landscape.optimum),
        "test": test,
        "noise": noise,
        **{
            key: statistics.fmean(run[key] for run in runs) for key in ("reached", "gap", "evaluations", "measurements")
        },
        "runs": list(runs),
    }


def _rows(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows: dict[str, list[str]] = {}
    for each in results:
        row = rows.setdefault(each["landscape"], [each["landscape"], str(each["points"])])
        gap = f"{each['gap']:.3f}" if each["landscape"] == DIFFERENCE else f"{each['gap']:.1%}"
        row += [f"{each['reached']:.0%}", f"{each['evaluations']:.0f}", gap]
    return list(rows.values())


def _draw(results: Sequence[dict[str, Any]], names: Sequence[str], levels: Sequence[float]) -> str:
    """Evaluations, paler where fewer than half of the descents end at the optimum."""
    figure, axes = style.panels([f"noise {noise:g}: evaluations, pale where the optimum is missed" for noise in levels])
    for axis, noise in zip(axes, levels, strict=True):
        for at, test in enumerate(TESTS):
            own = [each for each in results if each["noise"] == noise and each["test"] == test]
            places = np.arange(len(names)) + 0.2 * (at - (len(TESTS) - 1) / 2)
            drawn = axis.bar(places, [each["evaluations"] for each in own], 0.19, color=style.COLOURS[at], label=test)
            for bar, each in zip(drawn, own, strict=True):
                bar.set_alpha(1.0 if each["reached"] >= 0.5 else 0.3)
        axis.set_xticks(range(len(names)), names, rotation=45, ha="right")
        axis.set_yscale("log")
    style.legend(figure, axes[0])
    OUT.mkdir(exist_ok=True)
    style.save(figure, OUT / "analytic.png")
    return str(OUT / "analytic.png")


if __name__ == "__main__":
    main()
