"""Droplet Search on analytic landscapes: does it end at the optimum, and after how many evaluations, with which test?

    python benchmarks/searches/analytic.py [--quick]

Section 4.4 of the Droplet Search paper: descents from the origin of each landscape of `stormdrop.space.analytic`, in
batches of 8. A descent reaches the optimum if the point where it ends has the lowest cost (some landscapes have several
such points). A gap is the true cost of the end above the lowest cost, in percent of the lowest cost. The costs of TLI
are negative, so its gaps are plain differences.

Almost without noise (1e-6, because a test needs some) all tests should agree. With as much noise as a machine has, a
test stops at steps that it cannot prove, which is its purpose; the gap says what that costs. A request is for three
samples, the default of droplet, or for four with the rank test, which could never accept a step with fewer.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from _grounds import OUT, describe_machine, save, table

from stormdrop.report.plots import style
from stormdrop.search import create
from stormdrop.search.parts.droplet_options import TESTS, DropletOptions
from stormdrop.search.parts.judge import least_repeats
from stormdrop.space.analytic import Landscape, landscapes
from stormdrop.testing import drive, objective_of
from stormdrop.trial import Candidate
from stormdrop.tuning.request import BATCH

DIFFERENCE = "tli"
"""The landscape whose costs have no meaningful ratios."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--noise", default="0.000001,0.01", help="standard deviations of the log of a sample (%(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=20, help="descents with each noise (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="2 seeds, to try it: takes seconds")
    arguments = parser.parse_args()
    seeds = 2 if arguments.quick else arguments.seeds
    levels = [float(level) for level in arguments.noise.split(",")]
    machine = describe_machine("numpy", "scipy")

    known = landscapes()
    results = [
        summarise(landscape, test, noise, [descend(landscape, test, noise, seed) for seed in range(seeds)])
        for noise in levels
        for landscape in known.values()
        for test in TESTS
    ]
    for noise in levels:
        print(f"\nnoise {noise:g}: share of {seeds} descents that end at the optimum; mean evaluations; mean gap")
        summaries = [summary for summary in results if summary["noise"] == noise]
        table(
            ["", "points", *(f"{test}: {head}" for test in TESTS for head in ("", "evaluations", "gap"))],
            _rows(summaries),
        )
    print(save("analytic", {"machine": machine, "seeds": seeds, "batch": BATCH, "descents": results}))
    print(_draw(results, list(known), levels))


def descend(landscape: Landscape, test: str, noise: float, seed: int) -> dict[str, Any]:
    """One descent from the origin: how far above the lowest cost it ends, and how much it measured."""
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


def summarise(landscape: Landscape, test: str, noise: float, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The means over the descents on one landscape with one test and one noise."""
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
    for summary in results:
        row = rows.setdefault(summary["landscape"], [summary["landscape"], str(summary["points"])])
        gap = f"{summary['gap']:.3f}" if summary["landscape"] == DIFFERENCE else f"{summary['gap']:.1%}"
        row += [f"{summary['reached']:.0%}", f"{summary['evaluations']:.0f}", gap]
    return list(rows.values())


def _draw(results: Sequence[dict[str, Any]], names: Sequence[str], levels: Sequence[float]) -> str:
    """Draws bars of evaluations; they are pale if fewer than half of the descents end at the optimum."""
    figure, axes = style.panels(
        [f"noise {noise:g}: evaluations, pale if most descents miss the optimum" for noise in levels]
    )
    for axis, noise in zip(axes, levels, strict=True):
        for index, test in enumerate(TESTS):
            summaries = [summary for summary in results if summary["noise"] == noise and summary["test"] == test]
            positions = np.arange(len(names)) + 0.2 * (index - (len(TESTS) - 1) / 2)
            heights = [summary["evaluations"] for summary in summaries]
            bars = axis.bar(positions, heights, 0.19, color=style.COLOURS[index], label=test)
            for bar, summary in zip(bars, summaries, strict=True):
                bar.set_alpha(1.0 if summary["reached"] >= 0.5 else 0.3)
        axis.set_xticks(range(len(names)), names, rotation=45, ha="right")
        axis.set_yscale("log")
    style.legend(figure, axes[0])
    OUT.mkdir(exist_ok=True)
    style.save(figure, OUT / "analytic.png")
    return str(OUT / "analytic.png")


if __name__ == "__main__":
    main()
