"""Random search: points drawn uniformly from the union of all spaces, none of them twice.

Source: the baseline "Random" of section 4 of the Droplet Search paper, which is AutoTVM's `RandomTuner`. AutoTVM has
one space; to draw from the union of several is ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..space import Space
from ..trial import Candidate
from .contract import GeneratorSearch, Options, Steps, limited

# Up to this many points are listed and shuffled. If there are more, points are drawn, and known ones drawn again.
_LISTED = 20_000
_REDRAWS = 100
_MOST_LISTED = 1_000_000  # points that are listed if nothing new is drawn


@dataclass(frozen=True)
class RandomOptions(Options):
    """The options of `Random`.

    Args:
        repeats: Samples per candidate.

    Raises:
        SearchError: `repeats` is less than 1.
    """

    repeats: int = limited(3, ge=1)


class Random(GeneratorSearch):
    """Requests the starts, then what `draws` yields. It finishes when every point was requested.

    The constructor takes the arguments of `GeneratorSearch`.
    """

    name = "random"
    Options = RandomOptions
    can_ask_ahead = True
    options: RandomOptions

    def steps(self) -> Steps:
        """Batches of the caller's width."""
        yield from self.in_batches(self._candidates(), self.options.repeats)

    def _candidates(self) -> Iterator[Candidate]:
        starts = self.knowledge.starts
        yield from starts
        yield from draws(self.spaces, self.rng, set(starts))


def draws(spaces: Sequence[Space], rng: np.random.Generator, taken: set[Candidate]) -> Iterator[Candidate]:
    """Candidates drawn uniformly from the union of the spaces, until every point is in `taken`.

    A space is drawn with a probability proportional to its size, or to its `bound` if it is too large to be counted.
    If there are too many combinations to list those that are left, it ends as soon as 100 draws in a row are taken.

    Args:
        spaces: The spaces to draw from.
        rng: The source of all randomness.
        taken: Candidates that are not drawn. Every candidate that is yielded is added, and the caller may add more
            between two draws.
    """
    if sum(space.bound for space in spaces) > _LISTED:
        weights = [_weight(space) for space in spaces] if len(spaces) > 1 else [1]
        shares = [weight / sum(weights) for weight in weights]
        while True:
            for _ in range(_REDRAWS):
                space = spaces[int(rng.choice(len(spaces), p=shares))]
                candidate = Candidate(space.name, space.sample(rng))
                if candidate not in taken:
                    break
            else:
                break
            taken.add(candidate)
            yield candidate
    rest: list[Candidate] = []
    for space in spaces:
        every = (Candidate(space.name, point) for point in space.listed(_MOST_LISTED) or [])
        rest += [candidate for candidate in every if candidate not in taken]
    for index in rng.permutation(len(rest)).tolist():
        if rest[index] not in taken:
            taken.add(rest[index])
            yield rest[index]


def exhausted(spaces: Sequence[Space], taken: Collection[Candidate]) -> bool:
    """Whether all points are in `taken`, if there are few enough points for `draws` to list them; else False.

    With it, a search need not look for new points where there are none.

    Args:
        spaces: The spaces of the candidates.
        taken: Distinct candidates, all of them inside of the spaces.
    """
    few = sum(space.bound for space in spaces) <= _LISTED
    return few and len(taken) >= sum(space.size for space in spaces)


def _weight(space: Space) -> int:
    return space.size if space.bound <= 1_000_000 else space.bound
