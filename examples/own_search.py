"""A search of your own: `python examples/own_search.py` (a second).

A search proposes candidates and learns from their times; it never sees a kernel or a clock. So it can be tried on a
formula, without a machine. This one goes to the fastest neighbour until none is faster. In a file of
`src/stormdrop/search/`, or as a plug-in, `--search` takes its name (docs/how-to/add-a-search.md).
"""

from __future__ import annotations

import numpy as np

import stormdrop as sd
from stormdrop.search import GeneratorSearch, Steps
from stormdrop.testing.searches import drive, objective_of
from stormdrop.trial import Candidate, Request


class Downhill(GeneratorSearch):
    """The fastest neighbour, again and again, from the origin of the first space."""

    name = "downhill"

    def steps(self) -> Steps:
        space = self.spaces[0]
        position, seconds = space.origin, float("inf")
        batch = [position]
        while batch:
            trials = yield [Request(Candidate(space.name, point), 1) for point in batch]
            fastest = min((trial for trial in trials if trial.ok), key=lambda trial: trial.median, default=None)
            if fastest is None or fastest.median >= seconds:
                break
            position, seconds = fastest.candidate.point, fastest.median
            batch = list(space.neighbours(position))
        self.converged = True


def main() -> None:
    sizes = [2**power for power in range(10)]
    space = sd.Space("tiles", [sd.Ordinal("rows", sizes), sd.Ordinal("columns", sizes)])

    def seconds(candidate: Candidate) -> float:
        """The fastest tile has 16 rows (point 4) and 64 columns (point 6)."""
        rows, columns = candidate.point
        return 1e-3 * (1 + (rows - 4) ** 2 + (columns - 6) ** 2)

    trials = drive(Downhill([space], np.random.default_rng(0)), objective_of(seconds))
    best = min(trials, key=lambda trial: trial.median)
    print(f"{len(trials)} of {space.size} candidates measured, the fastest: {space.config(best.candidate.point)}")


if __name__ == "__main__":
    main()
