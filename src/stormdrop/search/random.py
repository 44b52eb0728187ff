"""Random search: points drawn uniformly from the union of all spaces, none twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import SearchError
from ..space import Space
from ..trial import Candidate
from .contract import GeneratorSearch, Options, Steps

# Up to this many points all are listed and shuffled; beyond, points are drawn and known ones drawn again.
_LISTED = 20_000
_REDRAWS = 100


@dataclass(frozen=True)
class RandomOptions(Options):
    """`repeats`: samples per candidate."""

    repeats: int = 3

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise SearchError(f"repeats must be at least 1, not {self.repeats}")


class Random(GeneratorSearch):
    """The candidates that it was given to start from, then `draws`. Finishes when every point has been asked."""

    name = "random"
    Options = RandomOptions
    options: RandomOptions

    def steps(self) -> Steps:
        """Batches of the driver's width."""
        yield from self.in_batches(self._candidates(), self.options.repeats)

    def _candidates(self) -> Iterator[Candidate]:
        starts = self.knowledge.starts
        yield from starts
        yield from draws(self.spaces, self.rng, set(starts))


def draws(spaces: Sequence[Space], rng: np.random.Generator, taken: set[Candidate]) -> Iterator[Candidate]:
    """Candidates drawn uniformly from the union of the spaces; ends when every point is in `taken`.

    Passes over what is in `taken`, to which it adds what it yields; the caller may add to it meanwhile. A space is
    drawn with a probability in proportion to its size; of one that is too large to count on the way, its `bound`.
    """
    if sum(space.bound for space in spaces) > _LISTED:
        weights = [_weight(space) for space in spaces]
        shares = [weight / sum(weights) for weight in weights]
        while True:
            for _ in range(_REDRAWS):
                space = spaces[int(rng.choice(len(shares), p=shares))]
                candidate = Candidate(space.name, space.sample(rng))
                if candidate not in taken:
                    break
            else:
                break
            taken.add(candidate)
            yield candidate
    rest = [Candidate(space.name, point) for space in spaces for point in space.points()]
    rest = [candidate for candidate in rest if candidate not in taken]
    for i in rng.permutation(len(rest)).tolist():
        if rest[i] not in taken:
            taken.add(rest[i])
            yield rest[i]


def _weight(space: Space) -> int:
    return space.size if space.bound <= 1_000_000 else space.bound
