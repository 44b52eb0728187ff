"""Grid search: every point of every space in order, one space after the other in turn.

Source: the baseline "Grid" of section 4 of the Droplet Search paper, which is AutoTVM's `GridSearchTuner`. AutoTVM's
order, in which the first knob varies fastest, is `order="autotvm"`; the default is the lexicographic one, in which the
last knob does. AutoTVM has one space; that several spaces take turns is ours. Points that the constraints exclude are
not requested. (TVM 0.5 has no constraints, and such points fail.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from ..space import NoneFound, Space, first_fastest
from ..trial import Candidate, Point
from .contract import GeneratorSearch, Options, Steps, later, limited

ORDERS = ("lexicographic", "autotvm")


@dataclass(frozen=True)
class GridOptions(Options):
    """The options of `Grid`.

    Args:
        repeats: Samples per candidate.
        order: "lexicographic" or "autotvm".

    Raises:
        SearchError: `repeats` is less than 1, or the order is unknown.
    """

    repeats: int = limited(3, ge=1)
    order: str = later("lexicographic", among=ORDERS)


class Grid(GeneratorSearch):
    """Requests the starts, then one point of each space in turn. It finishes when every point was requested.

    In a space it ends earlier if 500,000 combinations in a row are excluded by constraints.

    The constructor takes the arguments of `GeneratorSearch`.
    """

    name = "grid"
    Options = GridOptions
    options: GridOptions

    def steps(self) -> Steps:
        """Batches of the caller's width."""
        yield from self.in_batches(self._candidates(), self.options.repeats)

    def _candidates(self) -> Iterator[Candidate]:
        starts = self.knowledge.starts
        yield from starts
        in_order = Space.points if self.options.order == "lexicographic" else first_fastest
        points = {space.name: _to_a_gap(in_order(space)) for space in self.spaces}
        while points:
            for sketch in list(points):
                candidates = (Candidate(sketch, point) for point in points[sketch])
                candidate = next((candidate for candidate in candidates if candidate not in starts), None)
                if candidate is None:
                    del points[sketch]
                else:
                    yield candidate


def _to_a_gap(points: Iterator[Point]) -> Iterator[Point]:
    """The points until too many combinations in a row are excluded. Raises `NoneFound` if that are the first ones."""
    yield next(points)
    with suppress(NoneFound):  # the search has found what it can, and its trials count
        yield from points
