"""A construction in the manner of ROLLER: tiles that fit the hardware, built by a model, and ten of them measured.

Source: ROLLER (Zhu et al., OSDI 2022), as section 7 of the AF-DS paper describes it, which compares with its best 50
candidates (section 6.1); ROLLER's own default is its best ten. It is a comparator, and no part of stormdrop's tuning.

1) The construction begins at the lowest point of each space, where nothing is tiled.
2) Each step enlarges one parameter to the next value that is *aligned*: a power of two, as banks and transactions of
   memory come in them, or a multiple of the machine's unit (`Knowledge.unit`: the lanes of a vector, the threads of a
   warp). Values that are no numbers are all aligned. The constraints of the space stand for the limits of the memory.
3) Of all points that a step reaches, those with the least expected time go on, `width` at a time. It ends when nothing
   can be enlarged.
4) The points with the least expected time of all that were met are measured, the best first.

Nothing is measured before step 4. The expected times are the caller's prior. What differs from ROLLER:

- *The performance model* is that of our sketches, not one of micro measurements. Without a prior, as on recordings, the
  construction takes the larger tile for the better one, which is its rule of data reuse alone.
- *The step that counts* is the one with the least expected time, not the one that reuses the most data per byte.
- *The shapes* are not padded to aligned ones: a space has its own values, and its first value is always allowed.
- *Failures*: if all candidates fail, it goes on with the next ones until one works. ROLLER ends.
- *Starts*, if the caller gives any, are measured first and count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ..space import Categorical, Knob, Ordinal, Space, lowest
from ..trial import Candidate, Point, Request
from .contract import GeneratorSearch, Options, Steps, limited
from .random import draws

_CELLS = 2_000_000  # coordinates of all points that a construction meets; with more coordinates, it ends earlier


@dataclass(frozen=True)
class RollerOptions(Options):
    """The options of `Roller`.

    Args:
        measured: Candidates that are measured.
        width: Points of each space that a step of the construction goes on with.
        repeats: Samples per candidate.

    Raises:
        SearchError: A value is less than 1.
    """

    measured: int = limited(10, ge=1)
    width: int = limited(10, ge=1)
    repeats: int = limited(3, ge=1)


class Roller(GeneratorSearch):
    """Construction without measuring, in the manner of ROLLER; the module states the differences.

    It finishes when its candidates are measured and one has worked, or when no point is left. It never is `converged`.
    The constructor takes the arguments of `GeneratorSearch`.
    """

    name = "roller"
    Options = RollerOptions
    needs_prior = True
    options: RollerOptions

    def steps(self) -> Steps:
        """Batches of the caller's width."""
        ranked = self._ranked()
        wanted, works = self.options.measured, False
        while wanted > 0 or not works:
            batch = list(islice(ranked, min(self.width, wanted) if wanted > 0 else self.width))
            if not batch:
                return
            trials = yield [Request(candidate, self.options.repeats) for candidate in batch]
            wanted -= len(batch)
            works = works or any(trial.ok for trial in trials)

    def _ranked(self) -> Iterator[Candidate]:
        """The starts; then what was constructed, the best first; then random points."""
        taken = set(self.knowledge.starts)
        yield from self.knowledge.starts
        constructed = [candidate for space in self.spaces for candidate in self._constructed(space)]
        costs = self._expected(constructed)
        for index in np.lexsort((costs[:, 1], costs[:, 0])).tolist():
            if constructed[index] not in taken:
                taken.add(constructed[index])
                yield constructed[index]
        yield from draws(self.spaces, self.rng, taken)

    def _constructed(self, space: Space) -> list[Candidate]:
        """All points that the construction meets in a space."""
        enlarged = _Aligned(space, self.knowledge.unit)
        rim = [lowest(space)]
        met = dict.fromkeys(rim)
        most = max(self.options.measured, _CELLS // max(1, len(rim[0])))
        while rim and len(met) < most:
            reached = dict.fromkeys(further for point in rim for further in enlarged(point) if further not in met)
            met.update(reached)
            candidates = [Candidate(space.name, point) for point in reached]
            costs = self._expected(candidates)
            order = np.lexsort((costs[:, 1], costs[:, 0]))[: self.options.width].tolist()
            rim = [candidates[index].point for index in order]
        return [Candidate(space.name, point) for point in met]

    def _expected(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """By what candidates are ordered: shape (n, 2), whether the prior does not know them, and a cost."""
        prior = np.full(len(candidates), np.nan)
        if self.knowledge.prior is not None and candidates:
            prior = self.knowledge.prior(candidates)
        sizes = np.array([-float(sum(candidate.point)) for candidate in candidates])
        unknown = ~np.isfinite(prior)
        return np.stack([unknown.astype(np.float64), np.where(unknown, sizes, prior)], axis=1)


class _Aligned:
    """The steps of the construction in one space.

    Args:
        space: The space.
        unit: The lanes of a vector or the threads of a warp; None if that is not known.
    """

    def __init__(self, space: Space, unit: int | None) -> None:
        self._space = space
        self._unit = unit
        self._axes = [(knob, position) for knob in space.knobs for position in range(len(knob.sizes))]
        # Of a knob with one coordinate, which may be long, the coordinates with aligned values.
        self._listed: dict[Knob, list[int]] = {
            knob: [index for index in range(knob.sizes[0]) if self._aligned(knob.value((index,)), 0)]
            for knob in space.knobs
            if len(knob.sizes) == 1 and isinstance(knob, Ordinal | Categorical)
        }

    def __call__(self, point: Point) -> Iterator[Point]:
        """The points with one coordinate enlarged to the next aligned value."""
        for axis, (knob, position) in enumerate(self._axes):
            begin = axis - position
            end = begin + len(knob.sizes)
            for index in self._above(point[axis], knob, position):
                further = (*point[:axis], index, *point[axis + 1 :])
                if self._space.contains(further) and self._aligned(knob.value(further[begin:end]), position):
                    yield further
                    break

    def _above(self, index: int, knob: Knob, position: int) -> Iterable[int]:
        """The coordinates above one, without those that are known to have no aligned value."""
        if knob not in self._listed:
            return range(index + 1, knob.sizes[position])
        aligned = self._listed[knob]
        return islice(aligned, bisect_right(aligned, index), None)

    def _aligned(self, value: object, position: int) -> bool:
        # The first factor of a tile is what remains, so coordinate 0 is its second factor.
        number = value[position + 1] if isinstance(value, tuple) else value
        if not isinstance(number, int) or number < 1:
            return True
        return number & (number - 1) == 0 or (self._unit is not None and number % self._unit == 0)
