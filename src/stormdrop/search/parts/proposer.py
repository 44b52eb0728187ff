"""Proposals of storm for one sketch: expected improvement under a Gaussian process.

Source: ours. The parts are known from Bayesian optimisation: expected improvement as the acquisition function, and the
"Kriging believer" of Ginsbourger, Le Riche and Carraro for batches.

Every point that is considered has a number, and with it a row of levels (`surrogate/levels.py`). In a small space all
points are considered. In a larger one some are drawn at first, and more of them with every batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from ...space import Space
from ...surrogate.gaussian import GaussianProcess, Prediction
from ...surrogate.levels import Levels
from ...trial import Candidate, Point
from ..contract import Prior

BEST = 5
"""The number of best points whose neighbours are considered, and which may be measured again."""

_LISTED = 100_000  # a space with at most this number of combinations is listed as a whole
# In a larger space: the points drawn at first, those drawn per batch, and the number at which drawing ends.
_DRAWN, _DRAWN_PER_BATCH, _MOST = 1_000, 20, 20_000
# The same with very many columns, as columns of all points together: those of the points drawn at first, of the
# neighbours of a point, and those at which points are forgotten that were not requested.
_DRAWN_CELLS, _NEAR_CELLS, _FORGOTTEN_CELLS = 200_000, 30_000, 20_000_000
_NEAR = 1_000  # neighbours of a point that are considered; some random ones if there are more

Floats = NDArray[np.float64]


class Proposer:
    """A Gaussian process over the points of one space, and the points that it proposes to measure.

    Args:
        space: The sketch's space.
        rng: The source of all randomness.
        look: The number of random points from which the proposals of a batch are chosen.
        floor: See `GaussianProcess`.
        length: See `GaussianProcess`.
        alignments: See `Levels`.

    Attributes:
        columns: The number of columns by which the model sees points, at least 1.
    """

    def __init__(
        self, space: Space, rng: np.random.Generator, look: int, floor: float, length: float, alignments: bool
    ) -> None:
        self.space = space
        self._rng, self._look = rng, look
        self._levels = Levels(space, alignments)
        self._scale = np.maximum(np.array(self._levels.sizes) - 1, 1)
        self._model = GaussianProcess(self._levels.sizes, floor, length, large=self._levels.merged)
        self._points: list[Point] = []
        self._number: dict[Point, int] = {}
        self._rows = np.empty((0, len(self._levels.sizes)), dtype=np.intp)  # longer than `_points`, so that it can grow
        self._open = np.empty(0, dtype=bool)  # by number: whether the point exists and was not requested yet
        self._neighbours: dict[int, list[int]] = {}
        self._known = np.empty(0, dtype=np.intp)  # the numbers of the points to which the model is fitted
        self._values = np.empty(0)
        self._requested: list[int] = []
        # Distances of the first points to the nearest of the first `_distances_to` requested ones.
        self._distances = np.empty(0)
        self._distances_to = 0
        self._considered = np.empty(0, dtype=np.intp)  # the numbers from which the proposals of a batch are chosen
        self._prediction: Prediction | None = None  # of `_considered`
        self._all = space.bound <= _LISTED
        self.columns = max(1, len(self._levels.sizes))
        drawn = max(1, min(_DRAWN, _DRAWN_CELLS // self.columns))
        points = list(space.points()) if self._all else [space.sample(rng) for _ in range(drawn)]
        # Of points that are equally far the first is taken. They are shuffled, so that it is not always the same.
        self._numbers(points[index] for index in rng.permutation(len(points)).tolist())

    @property
    def requested(self) -> int:
        """How many points were requested."""
        return len(self._requested)

    def mark(self, points: Iterable[Point]) -> None:
        """Marks points as requested."""
        for number in self._numbers(points):
            if self._open[number]:
                self._open[number] = False
                self._requested.append(number)

    def farthest(self, count: int, prior: Prior | None = None, share: float = 0.5) -> list[Point]:
        """Points that are far from one another and from all requested points.

        Args:
            count: The largest number of points.
            prior: If given, only the points with the best estimates are considered.
            share: How many of the points that is.
        """
        open_numbers = np.flatnonzero(self._open)
        if prior is not None and len(open_numbers) > 2 * count:
            kept = max(count, int(share * len(open_numbers)))
            expected = prior([Candidate(self.space.name, self._points[number]) for number in open_numbers])
            open_numbers = np.sort(open_numbers[np.argsort(expected, kind="stable")[:kept]])
        distances, scaled = self._distances_to_requested()[open_numbers], self._rows[open_numbers] / self._scale
        chosen: list[Point] = []
        for _ in range(min(count, len(open_numbers))):
            farthest = int(np.argmax(distances))
            chosen.append(self._points[open_numbers[farthest]])
            distances = np.minimum(distances, np.abs(scaled - scaled[farthest]).sum(axis=1))
        return chosen

    def update(self, observed: Mapping[Point, tuple[float, int]], learn: bool) -> None:
        """Fits the model.

        Args:
            observed: For each remembered point its value and how often it was measured.
            learn: Whether the model's parameters are learned again.
        """
        if len(self._points) * self.columns > _FORGOTTEN_CELLS and not self._all:
            self._forget()
        if not self._all and len(self._points) < _MOST:
            self._numbers(self.space.sample(self._rng) for _ in range(_DRAWN_PER_BATCH))
        self._known = np.array(self._numbers(observed), dtype=np.intp)
        self._values, groups = np.array(list(observed.values()), dtype=np.float64).reshape(-1, 2).T
        self._prediction = None
        if len(self._known):
            self._model.fit(self._rows[self._known], self._values, groups, learn)

    def believe(self, point: Point) -> None:
        """Marks a proposal as requested, and updates the model as if its expected value had been observed."""
        self.mark([point])
        if len(self._known):
            self._model.believe(self._rows[[self._number[point]]], [self._prediction] if self._prediction else [])

    def best(self) -> list[tuple[float, Candidate]]:
        """The measured candidates with the least expected values, at most `BEST`, each with that value."""
        if not len(self._known):
            return []
        mean = self._model.predict(self._rows[self._known]).mean
        order = np.argsort(mean, kind="stable")[:BEST]
        return [(float(mean[index]), Candidate(self.space.name, self._points[self._known[index]])) for index in order]

    def propose(self) -> tuple[Point, float] | None:
        """The point with the greatest expected improvement over the best of all sketches, whose value is 0.

        Returns:
            The point with the logarithm of its expected improvement, or None if no point is left.
        """
        if self._prediction is None:
            self._considered = self._drawn_and_near()
            self._prediction = self._model.predict(self._rows[self._considered])
        open_indices = np.flatnonzero(self._open[self._considered])
        if not len(open_indices):
            return None
        gains = _gains(self._prediction)[open_indices]
        number, gain = int(self._considered[open_indices[np.argmax(gains)]]), float(gains.max())
        while neighbours := self._open_neighbours(number):
            gains = _gains(self._model.predict(self._rows[neighbours]))
            if gains.max() <= gain:
                break
            number, gain = neighbours[int(np.argmax(gains))], float(gains.max())
        return self._points[number], gain

    def _drawn_and_near(self) -> NDArray[np.intp]:
        """The numbers of random points that were not requested, and of such neighbours of the best few."""
        drawn = np.flatnonzero(self._open)
        if len(drawn) > self._look:
            drawn = self._rng.choice(drawn, self._look, replace=False)
        best = np.argsort(self._values, kind="stable")[:BEST]
        near = [number for index in best for number in self._open_neighbours(int(self._known[index]))]
        return np.unique(np.concatenate([drawn, np.array(near, dtype=np.intp)]))

    def _open_neighbours(self, number: int) -> list[int]:
        """The numbers of a point's neighbours that were not requested."""
        if number not in self._neighbours:
            near = self.space.neighbours(self._points[number])
            most = min(_NEAR, max(1, _NEAR_CELLS // self.columns))
            if len(near) > most:
                near = [near[index] for index in sorted(self._rng.choice(len(near), most, replace=False).tolist())]
            self._neighbours[number] = self._numbers(near)
        return [neighbour for neighbour in self._neighbours[number] if self._open[neighbour]]

    def _forget(self) -> None:
        """Forgets all points but the requested ones and some random others."""
        requested = [self._points[number] for number in self._requested]
        some = np.flatnonzero(self._open)
        some = self._rng.choice(some, min(len(some), _DRAWN, _DRAWN_CELLS // self.columns), replace=False)
        kept = [self._points[number] for number in some.tolist()]
        self._points, self._number, self._neighbours = [], {}, {}
        self._rows, self._open = self._rows[:0], self._open[:0]
        self._requested, self._distances, self._distances_to = [], np.empty(0), 0
        self._numbers(kept)
        self.mark(requested)

    def _distances_to_requested(self) -> Floats:
        """The distance of each point to the nearest requested one, in units of a column. Known distances are reused."""
        scaled = self._rows[: len(self._points)] / self._scale
        known = len(self._distances)
        distances = np.concatenate([self._distances, np.full(len(scaled) - known, np.inf)])
        # Points that are new are compared with all requested ones, the others with those that were requested since.
        earlier, later = self._requested[: self._distances_to], self._requested[self._distances_to :]
        compared = [(number, known) for number in earlier] if known < len(scaled) else []
        for number, begin in [*compared, *((number, 0) for number in later)]:
            distances_to_this = np.abs(scaled[begin:] - scaled[number]).sum(axis=1)
            distances[begin:] = np.minimum(distances[begin:], distances_to_this)
        self._distances, self._distances_to = distances, len(self._requested)
        return distances

    def _numbers(self, points: Iterable[Point]) -> list[int]:
        """The numbers of points. New points get one."""
        points = list(points)
        new = [point for point in dict.fromkeys(points) if point not in self._number]
        begin, end = len(self._points), len(self._points) + len(new)
        self._number.update(zip(new, range(begin, end), strict=True))
        self._points += new
        if end > len(self._open):
            grown = max(end, 2 * len(self._open))
            self._rows = np.resize(self._rows, (grown, self._rows.shape[1]))
            self._open = np.append(self._open, np.zeros(grown - len(self._open), dtype=bool))
        if new:
            self._rows[begin:end], self._open[begin:end] = self._levels(new), True
        return [self._number[point] for point in points]


def _gains(prediction: Prediction) -> Floats:
    return log_expected_improvement(prediction.mean, prediction.deviation, 0.0)


def log_expected_improvement(mean: Floats, deviation: Floats, goal: float) -> Floats:
    """The logarithm of E[max(goal - value, 0)] for normal values.

    Args:
        mean: The means, shape `(m,)`.
        deviation: The standard deviations, shape `(m,)`.
        goal: The value that is to be undercut.

    Returns:
        Shape `(m,)`. More than five deviations away from the goal, where the exact formula underflows, its asymptote.
    """
    from scipy.special import ndtr  # imported late: it takes 0.3 s, and every command imports this module

    z = (goal - mean) / deviation
    clipped = np.maximum(z, -5.0)
    exact = np.log(np.exp(-0.5 * clipped**2) / math.sqrt(2 * math.pi) + clipped * ndtr(clipped))
    tail = -0.5 * z**2 - 0.5 * math.log(2 * math.pi) - 2 * np.log(np.maximum(-z, 1.0))
    improvement: Floats = np.where(z < -5.0, tail, exact) + np.log(deviation)
    return improvement
