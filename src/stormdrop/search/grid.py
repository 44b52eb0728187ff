"""Grid search: every point of every space, in lexicographic order, the spaces taking turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import SearchError
from ..trial import Candidate
from .contract import GeneratorSearch, Options, Steps


@dataclass(frozen=True)
class GridOptions(Options):
    """`repeats`: samples per candidate."""

    repeats: int = 3

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise SearchError(f"repeats must be at least 1, not {self.repeats}")


class Grid(GeneratorSearch):
    """The candidates that it was given to start from, then a point of each space in turn, until all are exhausted."""

    name = "grid"
    Options = GridOptions
    options: GridOptions

    def steps(self) -> Steps:
        """Batches of the driver's width."""
        yield from self.in_batches(self._candidates(), self.options.repeats)

    def _candidates(self) -> Iterator[Candidate]:
        starts = self.knowledge.starts
        yield from starts
        walks = {space.name: space.points() for space in self.spaces}
        while walks:
            for name in list(walks):
                ahead = (Candidate(name, point) for point in walks[name])
                candidate = next((c for c in ahead if c not in starts), None)
                if candidate is None:
                    del walks[name]
                else:
                    yield candidate
