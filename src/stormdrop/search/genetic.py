"""The genetic algorithm of AutoTVM: each generation is measured as a whole and bred from the one before.

Source: AutoTVM's `GATuner` with its defaults, the baseline "GA" of the papers on Droplet Search (section 4), DPAnsor
(section 3.4) and NoSE (section V). The parents are the last generation and the three best before it, picked by
roulette on 1 / seconds, 0 for failures; crossover at a single point between two knobs; then each knob mutates with
probability 0.1. An offspring that is known moves on, one random knob at a time, until it is new: nothing is measured
twice. (So it is in TVM 0.5, which the NoSE paper used. Later versions measure a known offspring again.)

Differences from it, and what it leaves open:

- *A mutated knob* always takes another value; AutoTVM's uniform draw may return the old one.
- *Seconds* are the median of the samples, not their mean.
- *Constraints*: an offspring outside its space moves on like a known one. (TVM 0.5 has no constraints; later versions
  draw again, from other parents. On five recorded spaces of GPU kernels the best of 200 evaluations was 13.6% and
  13.1% above the optimum with the two, 30 seeds, standard error 0.9%: no difference.)
- *Moving on* ends after `_STEPS` steps; then a random point that is new takes the offspring's place. The search
  finishes when there is none.
- *Several sketches* share one population. The first is drawn like random search draws, uniformly from the union of the
  spaces; the first parent is picked among all, the second among those of its sketch. So a sketch's share of the
  offspring is its share of the fitness.
- *Starts* are in the first generation, all of them, also where they are more than a population.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

import numpy as np
from numpy.typing import NDArray

from ..errors import SearchError
from ..space import Space
from ..trial import Candidate, Point, Request, Trial
from .contract import GeneratorSearch, Options, Steps
from .random import draws

_STEPS = 64


@dataclass(frozen=True)
class GeneticOptions(Options):
    """Raises `SearchError` for a value that makes no sense.

    population   candidates per generation
    elite        how many of the best before the last generation may mate beside it
    mutation     probability of a knob to mutate
    repeats      samples per candidate
    """

    population: int = 100
    elite: int = 3
    mutation: float = 0.1
    repeats: int = 3

    def __post_init__(self) -> None:
        if self.population < 1 or not 0 <= self.elite <= self.population or self.repeats < 1:
            raise SearchError("genetic needs population >= 1, elite from 0 to population, and repeats >= 1")
        if not 0 <= self.mutation <= 1:
            raise SearchError(f"genetic's mutation is a probability, from 0 to 1, not {self.mutation}")


class Genetic(GeneratorSearch):
    """See the module."""

    name = "genetic"
    Options = GeneticOptions
    options: GeneticOptions

    def steps(self) -> Steps:
        """A batch per generation."""
        o = self.options
        breeder = Breeder(self.spaces, self.rng, o.mutation)
        elite: dict[Candidate, float] = {}
        genes = breeder.fill(self.knowledge.starts, o.population)
        while genes:
            trials = yield [Request(candidate, o.repeats) for candidate in genes]
            parents = {trial.candidate: fitness(trial) for trial in trials} | elite
            elite = fittest(parents, o.elite)
            genes = breeder.fill(breeder.breed(parents, o.population), o.population)


def fitness(trial: Trial) -> float:
    """The speed that a population is selected by: executions per second; 0 for a failure."""
    return 1 / trial.median if trial.ok else 0.0


def fittest(population: Mapping[Candidate, float], n: int) -> dict[Candidate, float]:
    """The n members of a population with the greatest fitness, of equal ones those that come first."""
    return dict(sorted(population.items(), key=lambda member: -member[1])[:n])


class Breeder:
    """Makes candidates that were never handed out before: offspring of a population, and random ones."""

    def __init__(self, spaces: Sequence[Space], rng: np.random.Generator, mutation: float) -> None:
        """`mutation` is the probability of a knob to mutate."""
        self._spaces = {space.name: space for space in spaces}
        # Where in a point the coordinates of each knob begin; its length at the end.
        self._begins = {s.name: [0, *accumulate(len(knob.sizes) for knob in s.knobs)] for s in spaces}
        self._rng, self._mutation = rng, mutation
        self._known: set[Candidate] = set()
        self._random = draws(spaces, rng, self._known)

    def fill(self, candidates: Iterable[Candidate], n: int) -> list[Candidate]:
        """The candidates, which become known by it, and random new ones until there are n or no more points."""
        chosen = list(dict.fromkeys(candidates))
        self._known.update(chosen)
        return chosen + list(islice(self._random, max(n - len(chosen), 0)))

    def breed(self, population: Mapping[Candidate, float], n: int) -> list[Candidate]:
        """At most n offspring of a population with its fitness: different from each other and from all known."""
        members, weights = list(population), np.array(list(population.values()))
        offspring: dict[Candidate, None] = {}
        for _ in range(n):
            one = self._roulette(weights)
            mates = [i for i, member in enumerate(members) if member.sketch == members[one].sketch and i != one]
            other = mates[self._roulette(weights[mates])] if mates else one
            child = self._child(self._spaces[members[one].sketch], members[one].point, members[other].point, offspring)
            if child is not None:
                offspring[child] = None
        return list(offspring)

    def _roulette(self, weights: NDArray[np.float64]) -> int:
        """An index, with a probability in proportion to its weight; where all are 0 (all failed), any of them."""
        if not weights.any():
            return int(self._rng.integers(len(weights)))
        return int(self._rng.choice(len(weights), p=weights / weights.sum()))

    def _child(self, space: Space, one: Point, other: Point, siblings: Collection[Candidate]) -> Candidate | None:
        """An offspring that is new; None where none was found."""
        knobs, begins = range(len(space.knobs)), self._begins[space.name]
        if not knobs:
            return None  # the one point that there is has been measured: it is a parent
        cut = begins[int(self._rng.integers(len(knobs)))]
        point = one[:cut] + other[cut:]  # single-point crossover
        for knob in knobs:
            if self._rng.random() < self._mutation:  # uniform mutation
                point = self._mutated(space, point, knob)
        for _ in range(_STEPS):
            child = Candidate(space.name, point)
            if child not in self._known and child not in siblings and space.contains(point):
                return child
            point = self._mutated(space, point, int(self._rng.integers(len(knobs))))
        return None

    def _mutated(self, space: Space, point: Point, knob: int) -> Point:
        """The point with another value of one knob, whatever the constraints say."""
        begin, end = self._begins[space.name][knob : knob + 2]
        return point[:begin] + space.knobs[knob].mutate(point[begin:end], self._rng) + point[end:]
