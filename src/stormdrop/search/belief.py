"""What storm believes about one sketch, and what it would measure next by that.

Every point that was looked at has a number, and with it a row of levels. Where there are few points, all of them are
looked at; else some are drawn, and more of them with every batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from ..space import Space
from ..surrogate.gaussian import GaussianProcess, Prediction
from ..surrogate.levels import Levels
from ..trial import Candidate, Point
from .contract import Prior

BEST = 5
"""How many of the best points have their neighbours looked at."""

_LISTED = 100_000  # a space of so many combinations at most is listed as a whole
_DRAWN, _MORE, _MOST = 1_000, 20, 20_000  # of larger ones: points drawn at first, per batch, as long as there are fewer

Floats = NDArray[np.float64]


class Belief:
    """A Gaussian process over the points of a space, and proposals by it."""

    def __init__(
        self, space: Space, rng: np.random.Generator, look: int, floor: float, length: float, alignments: bool
    ) -> None:
        """`look`: random points that a batch is chosen from; the others as in `GaussianProcess` and `Levels`."""
        self.space = space
        self._rng, self._look_at = rng, look
        self._levels = Levels(space, alignments)
        self._scale = np.maximum(np.array(self._levels.sizes) - 1, 1)
        self._model = GaussianProcess(self._levels.sizes, floor, length)
        self._points: list[Point] = []
        self._number: dict[Point, int] = {}
        self._rows = np.empty((0, len(self._levels.sizes)), dtype=np.intp)  # longer than `_points`, so that it can grow
        self._open = np.empty(0, dtype=bool)  # whether a point of this number is there and was not asked for
        self._around: dict[int, list[int]] = {}
        self._known = np.empty(0, dtype=np.intp)  # numbers of what the model is fitted to
        self._values = np.empty(0)
        self._asked: list[int] = []
        self._distance = np.empty(0)  # of the first points to the first so many that were asked
        self._measured_to = 0
        self._looked_at = np.empty(0, dtype=np.intp)  # what the proposals of a batch are chosen from
        self._seen: Prediction | None = None
        self._all = space.bound <= _LISTED
        points = list(space.points()) if self._all else [space.sample(rng) for _ in range(_DRAWN)]
        # In no order: where points are equally far, the first is taken, and it should not always be the same.
        self._look_up(points[i] for i in rng.permutation(len(points)).tolist())

    @property
    def asked(self) -> int:
        """How many points were asked for."""
        return len(self._asked)

    def mark(self, points: Iterable[Point]) -> None:
        """Points that are asked for."""
        for number in self._look_up(points):
            if self._open[number]:
                self._open[number] = False
                self._asked.append(number)

    def farthest(self, count: int, prior: Prior | None = None) -> list[Point]:
        """Points far from one another and from all that were asked for; with a prior, of the better half by it."""
        open_ = np.flatnonzero(self._open)
        if prior is not None and len(open_) > 2 * count:
            expected = prior([Candidate(self.space.name, self._points[number]) for number in open_])
            open_ = np.sort(open_[np.argsort(expected, kind="stable")[: len(open_) // 2]])
        distance, places = self._distances()[open_], self._rows[open_] / self._scale
        chosen: list[Point] = []
        for _ in range(min(count, len(open_))):
            farthest = int(np.argmax(distance))
            chosen.append(self._points[open_[farthest]])
            distance = np.minimum(distance, np.abs(places - places[farthest]).sum(axis=1))
        return chosen

    def update(self, observed: Mapping[Point, tuple[float, int]], learn: bool) -> None:
        """Take in what is remembered: per point a value and how often it was measured."""
        if not self._all and len(self._points) < _MOST:
            self._look_up(self.space.sample(self._rng) for _ in range(_MORE))
        self._known = np.array(self._look_up(observed), dtype=np.intp)
        self._values, groups = np.array(list(observed.values()), dtype=np.float64).reshape(-1, 2).T
        self._seen = None
        if len(self._known):
            self._model.fit(self._rows[self._known], self._values, groups, learn)

    def believe(self, point: Point) -> None:
        """Take a proposal as asked for, and as if it had come out as expected."""
        self.mark([point])
        if len(self._known):
            self._model.believe(self._rows[[self._number[point]]], [self._seen] if self._seen else [])

    def best(self) -> list[tuple[float, Candidate]]:
        """The few that are believed to be the best of the known ones, with their expected values."""
        if not len(self._known):
            return []
        mean = self._model.predict(self._rows[self._known]).mean
        order = np.argsort(mean, kind="stable")[:BEST]
        return [(float(mean[at]), Candidate(self.space.name, self._points[self._known[at]])) for at in order]

    def propose(self) -> tuple[Point, float] | None:
        """The point of the greatest expected improvement, with the logarithm of that; None where none is left.

        The best of all sketches has the value 0.
        """
        if self._seen is None:
            self._looked_at = self._look()
            self._seen = self._model.predict(self._rows[self._looked_at])
        open_ = np.flatnonzero(self._open[self._looked_at])
        if not len(open_):
            return None
        gains = _gains(self._seen)[open_]
        number, gain = int(self._looked_at[open_[np.argmax(gains)]]), float(gains.max())
        while near := self._neighbours(number):
            gains = _gains(self._model.predict(self._rows[near]))
            if gains.max() <= gain:
                break
            number, gain = near[int(np.argmax(gains))], float(gains.max())
        return self._points[number], gain

    def _look(self) -> NDArray[np.intp]:
        """Numbers of some points that were not asked for, and of the neighbours of the best few."""
        open_ = np.flatnonzero(self._open)
        if len(open_) > self._look_at:
            open_ = self._rng.choice(open_, self._look_at, replace=False)
        best = np.argsort(self._values, kind="stable")[:BEST]
        near = [number for at in best for number in self._neighbours(int(self._known[at]))]
        return np.unique(np.concatenate([open_, np.array(near, dtype=np.intp)]))

    def _neighbours(self, number: int) -> list[int]:
        """Those that were not asked for."""
        if number not in self._around:
            self._around[number] = self._look_up(self.space.neighbours(self._points[number]))
        return [each for each in self._around[number] if self._open[each]]

    def _distances(self) -> Floats:
        """Of each point to the nearest that was asked for, in columns; what is known of it is kept."""
        places = self._rows[: len(self._points)] / self._scale
        known = len(self._distance)
        distance = np.concatenate([self._distance, np.full(len(places) - known, np.inf)])
        for at, number in enumerate(self._asked):
            begin = known if at < self._measured_to else 0
            if begin < len(places):
                away = np.abs(places[begin:] - places[number]).sum(axis=1)
                distance[begin:] = np.minimum(distance[begin:], away)
        self._distance, self._measured_to = distance, len(self._asked)
        return distance

    def _look_up(self, points: Iterable[Point]) -> list[int]:
        """The numbers of points; those that are new get one."""
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
    """The logarithm of E[max(goal - value, 0)] for normal values; by its asymptote where that underflows."""
    z = (goal - mean) / deviation
    near = np.maximum(z, -5.0)
    exact = np.log(np.exp(-0.5 * near**2) / math.sqrt(2 * math.pi) + near * ndtr(near))
    tail = -0.5 * z**2 - 0.5 * math.log(2 * math.pi) - 2 * np.log(np.maximum(-z, 1.0))
    improvement: Floats = np.where(z < -5.0, tail, exact) + np.log(deviation)
    return improvement
