"""The genetic algorithm of AutoTVM: each generation is measured as a whole and bred from the one before.

Source: AutoTVM's `GATuner` with its defaults, the baseline "GA" of the papers on Droplet Search (section 4), DPAnsor
(section 3.4) and NoSE (section V). The parents are the last generation and the three best candidates before it. They
are picked by roulette on 1 / seconds, which is 0 for failures. Two parents are crossed at a single point between two
knobs; then each knob mutates with probability 0.1. An offspring that is already known is mutated further, one random
knob at a time, until it is new, so nothing is measured twice. (This is TVM 0.5, which the NoSE paper used. Later
versions measure a known offspring again.)

Differences from AutoTVM, and what it leaves open:

- *A mutated knob* always takes another value; AutoTVM's uniform draw may return the old one (`redraw`).
- *Seconds* are the median of the samples, not their mean (`mean`).
- *Constraints*: an offspring outside of its space is mutated further like a known one. (TVM 0.5 has no constraints;
  later versions draw again, from other parents. On five recorded spaces of GPU kernels the best of 200 evaluations
  was 13.6% above the optimum with the first way and 13.1% with the second, with 30 seeds and a standard error of 0.9%:
  no difference.)
- *Further mutation* ends after `_STEPS` steps. Then a new random point takes the offspring's place. The search
  finishes when no point is left.
- *Several sketches* share one population. The first generation is drawn like in random search, uniformly from the
  union of the spaces. The first parent is picked among all, the second among those of the same sketch. So a sketch's
  share of the offspring is its share of the fitness.
- *Starts* are all in the first generation, even if they are more than a population.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

import numpy as np
from numpy.typing import NDArray

from ..errors import SearchError
from ..space import Space
from ..trial import Candidate, Point, Request, Trial
from .contract import GeneratorSearch, Options, Steps, later, limited
from .random import draws, exhausted

_STEPS = 64


@dataclass(frozen=True)
class GeneticOptions(Options):
    """The options of `Genetic`.

    Args:
        population: Candidates per generation.
        elite: How many of the best candidates before the last generation are parents beside it.
        mutation: The probability that a knob mutates.
        repeats: Samples per candidate.
        redraw: Whether a mutated knob may draw the value that it has.
        mean: Whether the fitness is the mean of the samples, not their median.

    Raises:
        SearchError: A value is out of its range.
    """

    population: int = limited(100, ge=1)
    elite: int = limited(3, ge=0)
    mutation: float = limited(0.1, ge=0, le=1)
    repeats: int = limited(3, ge=1)
    redraw: bool = later(False)
    mean: bool = later(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elite > self.population:
            raise SearchError(f"genetic's elite must be at most its population, not {self.elite}")


class Genetic(GeneratorSearch):
    """AutoTVM's genetic algorithm; the module states the deviations.

    It finishes when every point was measured, and never is `converged`. The constructor takes the arguments of
    `GeneratorSearch`.
    """

    name = "genetic"
    Options = GeneticOptions
    can_ask_ahead = True
    options: GeneticOptions

    def steps(self) -> Steps:
        """One batch per generation."""
        o = self.options
        breeder = Breeder(self.spaces, self.rng, o.mutation, o.redraw)
        elite: dict[Candidate, float] = {}
        generation = breeder.fill(self.knowledge.starts, o.population)
        while generation:
            trials = yield [Request(candidate, o.repeats) for candidate in generation]
            parents = {trial.candidate: fitness(trial, o.mean) for trial in trials} | elite
            elite = fittest(parents, o.elite)
            generation = breeder.fill(breeder.breed(parents, o.population), o.population)


def fitness(trial: Trial, mean: bool = False) -> float:
    """The speed by which a population is selected: executions per second, 0 for a failure.

    Args:
        trial: What was measured.
        mean: Whether the seconds are the mean of the samples, as in TVM, and not their median.
    """
    if not trial.ok:
        return 0.0
    return 1 / (statistics.fmean(trial.measurement.seconds) if mean else trial.median)


def fittest(population: Mapping[Candidate, float], n: int) -> dict[Candidate, float]:
    """The n members of a population with the greatest fitness; the first ones of equal members."""
    return dict(sorted(population.items(), key=lambda member: -member[1])[:n])


class Breeder:
    """Makes candidates that are new: offspring of a population, and random ones.

    Args:
        spaces: The spaces of the candidates.
        rng: The source of all randomness.
        mutation: The probability that a knob mutates.
        redraw: Whether such a mutation may draw the value that the knob has.
    """

    def __init__(
        self, spaces: Sequence[Space], rng: np.random.Generator, mutation: float, redraw: bool = False
    ) -> None:
        self._spaces = {space.name: space for space in spaces}
        # By sketch the index in a point at which each knob's coordinates begin, then the length of a point.
        self._begins = {space.name: [0, *accumulate(len(knob.sizes) for knob in space.knobs)] for space in spaces}
        self._rng, self._mutation, self._redraw = rng, mutation, redraw
        self._known: set[Candidate] = set()
        self._random = draws(spaces, rng, self._known)

    def fill(self, candidates: Iterable[Candidate], n: int) -> list[Candidate]:
        """The candidates, and new random ones until there are n or no point is left. All of them are known then."""
        chosen = list(dict.fromkeys(candidates))
        self._known.update(chosen)
        return chosen + list(islice(self._random, max(n - len(chosen), 0)))

    def breed(self, population: Mapping[Candidate, float], n: int) -> list[Candidate]:
        """Offspring of a population.

        Args:
            population: The members with their fitness. Without members there are no offspring.
            n: The largest number of offspring.

        Returns:
            At most n candidates that differ from each other and from all known ones.
        """
        if not population or exhausted(list(self._spaces.values()), self._known):
            return []
        members, weights = list(population), np.array(list(population.values()))
        offspring: dict[Candidate, None] = {}
        for _ in range(n):
            first = self._roulette(weights)
            sketch = members[first].sketch
            mates = [index for index, member in enumerate(members) if member.sketch == sketch and index != first]
            second = mates[self._roulette(weights[mates])] if mates else first
            child = self._child(self._spaces[sketch], members[first].point, members[second].point, offspring)
            if child is not None:
                offspring[child] = None
        return list(offspring)

    def _roulette(self, weights: NDArray[np.float64]) -> int:
        """An index with a probability proportional to its weight; any index if all weights are 0 (all failed)."""
        if not weights.any():
            return int(self._rng.integers(len(weights)))
        return int(self._rng.choice(len(weights), p=weights / weights.sum()))

    def _child(self, space: Space, first: Point, second: Point, siblings: Collection[Candidate]) -> Candidate | None:
        """A new offspring of two parents, or None if none was found."""
        knobs, begins = range(len(space.knobs)), self._begins[space.name]
        if not knobs:
            return None  # the space's only point is a parent, so it was measured already
        cut = begins[int(self._rng.integers(len(knobs)))]
        point = first[:cut] + second[cut:]  # single-point crossover
        for knob in knobs:
            if self._rng.random() < self._mutation:  # uniform mutation
                point = self._mutated(space, point, knob, self._redraw)
        for _ in range(_STEPS):
            child = Candidate(space.name, point)
            if child not in self._known and child not in siblings and space.contains(point):
                return child
            point = self._mutated(space, point, int(self._rng.integers(len(knobs))))
        return None

    def _mutated(self, space: Space, point: Point, knob: int, redraw: bool = False) -> Point:
        """The point with another value of one knob, or any with `redraw`; the constraints are not considered."""
        begin, end = self._begins[space.name][knob : knob + 2]
        drawn = space.knobs[knob].sample(self._rng) if redraw else space.knobs[knob].mutate(point[begin:end], self._rng)
        return point[:begin] + drawn + point[end:]
