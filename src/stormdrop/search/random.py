"""Random search: points drawn uniformly from the union of all spaces, none twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    """Draws each space with a probability in proportion to its size, and a point of it uniformly.

    Exhaustive: it finishes when every point of every space has been asked. The size of a space that is too
    large to count on the way is taken as its `bound`, the product of its knobs' counts.
    """

    name = "random"
    Options = RandomOptions
    options: RandomOptions

    def steps(self) -> Steps:
        """Batches of the driver's width."""
        yield from self.in_batches(self._candidates(), self.options.repeats)

    def _candidates(self) -> Iterator[Candidate]:
        seen: set[Candidate] = set()
        if sum(space.bound for space in self.spaces) > _LISTED:
            weights = [_weight(space) for space in self.spaces]
            shares = [weight / sum(weights) for weight in weights]
            while True:
                for _ in range(_REDRAWS):
                    space = self.spaces[int(self.rng.choice(len(shares), p=shares))]
                    candidate = Candidate(space.name, space.sample(self.rng))
                    if candidate not in seen:
                        break
                else:
                    break
                seen.add(candidate)
                yield candidate
        rest = [Candidate(s.name, p) for s in self.spaces for p in s.points() if Candidate(s.name, p) not in seen]
        for i in self.rng.permutation(len(rest)).tolist():
            yield rest[i]


def _weight(space: Space) -> int:
    return space.size if space.bound <= 1_000_000 else space.bound
