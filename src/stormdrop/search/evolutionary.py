"""Ansor's evolutionary search: candidates are bred under a cost model, and the best of them are measured in batches.

Sources: the DPAnsor paper, section 2.1, and the AF-DS paper, section 3.2 and Figure 5. If they give no number, it is
the default of TVM's auto-scheduler, which both papers ran. A round:

1) The population is 2,048 random candidates of all sketches, and the best that were measured, at most 0.2 x 2,048.
2) Four generations of 2,048 each are bred. A parent is picked by roulette on the model's score (a negative score counts
   as 0). It mutates with probability 0.85, else it is crossed with another parent of its sketch.
3) A batch of 64 is measured. 5% of it (rounded down: 3) are new random candidates. The others are those with the best
   scores among all unmeasured candidates of the evolution.
4) The model, boosted trees, is trained anew with all measured candidates.

In `preset=paper`, a mutation is one of Ansor's four (Figure 6 of the DPAnsor paper, `space.decisions`), a parent that
does not mutate is copied as in TVM, and a round measures min(64, K / L) candidates (section 3). The kernels of a neural
network share one cost model if it sees Ansor's 164 features (`common`; Ansor, OSDI 2020, section 5.2). A kernel whose
turn comes later then breeds its first batch, too, under what the model has learnt from the others.

With the knobs' encodings as features, this is the algorithm alone. If `knowledge.features` gives Ansor's 164 features
per statement, it is Ansor; with the seven features of section 4.1 of the AF-DS paper, it is Ansor-AF (`tune-op
--features`).

What the papers leave open, or where this differs from them:

- *The first batch*, and every batch until a candidate works, is random, because there is nothing to train a model
  with. TVM breeds it by random scores. Starts come first in it.
- *A gene* is a knob. A mutation changes one knob (`moves="any"`; "ansor" are Figure 6's); a crossover takes each knob
  from either parent. An offspring outside of its space is replaced by a mutation of the first parent. TVM has no
  crossover and copies the parent instead (`crossover=False`).
- *Failures* have a throughput of 0, so they have no weight in training (see `surrogate.boosted`). They are no parents.
- *Several sketches* are sampled with equal probability each, as in TVM, and compete in one population.
- *Small spaces*: if all spaces together have at most as many points as the population, all unmeasured points are
  scored (`enumerate`). If they fit into one batch, they are measured without a model.
- *K and L*, the trials and the kernels of a network, come from `knowledge.network` with `common`. As options they
  count before it; `dpansor` sets K.
- *A resumed search with a common model* learns from all recorded trials at once, and then goes on. It may ask for other
  candidates than the interrupted one would have, because that one knew other kernels' trials in another order.
- *The training set* is bounded by `BoostedTrees` at 4,000 candidates, or 30,000 if the model is common; TVM's grows
  with every trial.
- *The end*: the search finishes when every point was measured. Ansor ends by its budget alone, so the search never is
  `converged`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, islice, pairwise

import numpy as np

from ..space import Space, mutated_as_ansor
from ..trial import Candidate, Point, Request, Trial
from .common_model import CommonCostModel
from .contract import GeneratorSearch, Options, Steps, later, limited
from .parts.cost_model import CostModel
from .random import draws

MOVES = ("any", "ansor")


@dataclass(frozen=True)
class EvolutionaryOptions(Options):
    """The options of `Evolutionary`.

    Args:
        batch: Candidates measured per round.
        epsilon: The share of a batch that is random.
        population: Candidates per generation. A round scores at most (generations + 1 + measured) times as many.
        generations: The number of generations that are bred from the first population.
        mutation: The probability that a parent mutates. A parent that does not mutate is crossed.
        measured: The largest number of measured candidates in the first population, as a share of `population`.
        repeats: Samples per candidate.
        moves: "any" or "ansor": what a mutation is.
        crossover: Whether a parent that does not mutate is crossed; else it is copied.
        enumerate: Whether all points of small spaces are scored, in place of an evolution.
        K: The trials of all kernels together, if a round is to be no larger than K / L. None for no such bound, or
            for those of the network if `common`.
        L: The number of kernels that share them; None for those of the network.
        mean: Whether seconds are the mean of the samples, as in TVM, not their median.
        common: Whether the kernels of a network share their cost model and, by K / L, their trials.

    Raises:
        SearchError: A value is out of its range.
    """

    batch: int = limited(64, ge=1)
    epsilon: float = limited(0.05, ge=0, le=1)
    population: int = limited(2048, ge=1)
    generations: int = limited(4, ge=0)
    mutation: float = limited(0.85, ge=0, le=1)
    measured: float = limited(0.2, ge=0, le=1)
    repeats: int = limited(3, ge=1)
    moves: str = later("any", among=MOVES)
    crossover: bool = later(True)
    enumerate: bool = later(True)
    K: int | None = later(None, ge=1)
    L: int | None = later(None, ge=1)
    mean: bool = later(False)
    common: bool = later(False)


class Evolutionary(GeneratorSearch):
    """Ansor's evolutionary search (DPAnsor paper, section 2.1); the module states the deviations.

    Without `knowledge.features`, its cost model sees the knobs' encodings. The constructor takes the arguments of
    `GeneratorSearch`.
    """

    name = "evolutionary"
    Options = EvolutionaryOptions
    can_ask_ahead = True
    options: EvolutionaryOptions

    @property
    def round(self) -> int:
        """The candidates of a round: `batch`, or K / L if that is less, and at least one."""
        o, network = self.options, self.knowledge.network
        trials = network.trials if o.K is None and o.common else o.K
        kernels = network.kernels if o.L is None else o.L
        return o.batch if trials is None else max(1, min(o.batch, trials // kernels))

    @property
    def turn(self) -> int | None:
        """A round, with `common`: Ansor gives rounds to kernels."""
        return self.round if self.options.common else None

    def steps(self) -> Steps:
        """One batch per round."""
        o, size = self.options, self.round
        taken = set(self.knowledge.starts)
        fresh = unmeasured(self.spaces, self.rng, taken)
        model = self._model
        if self._common is not None:  # an interrupted run that is resumed has trials already: they are all learnt from
            taken.update(model.measured)
            self._early.clear()
        batch = [start for start in self.knowledge.starts if start not in model.measured]
        while True:
            room = size - int(o.epsilon * size) - len(batch)
            if model.trainable and room > 0:
                bred = self._promising(model, room, taken)
                taken.update(bred)
                batch += bred
            batch += islice(fresh, max(0, size - len(batch)))
            if not batch:
                return
            trials = yield [Request(candidate, o.repeats) for candidate in batch]
            model.record(trials)
            batch = []

    @property
    def _common(self) -> CommonCostModel | None:
        return self.knowledge.network.cost_model if self.options.common else None

    @cached_property
    def _model(self) -> CostModel:
        return CostModel(self.features, self.rng, self.options.mean, self._common)

    def note(self, trials: Sequence[Trial]) -> None:
        """Lets the other kernels learn at once, and not when this one has its next turn."""
        if self._common is not None:
            self._model.record(trials)

    def _promising(self, model: CostModel, n: int, taken: Set[Candidate]) -> list[Candidate]:
        """At most n candidates that are not `taken`: those with the best scores that the evolution meets."""
        o = self.options
        scores: dict[Candidate, float] = {}
        if o.enumerate and sum(space.bound for space in self.spaces) <= o.population:
            every = [Candidate(space.name, point) for space in self.spaces for point in space.points()]
            rest = [candidate for candidate in every if candidate not in taken]
            if len(rest) <= n:
                return rest
            model.train()
            _score(model, rest, scores)
        else:
            model.train()
            fittest = heapq.nlargest(int(o.measured * o.population), model.measured, key=model.measured.__getitem__)
            population = self._sampled(o.population) + fittest
            _score(model, population, scores)
            for _ in range(o.generations):
                fitness_values = [0 if member in model.failed else scores[member] for member in population]
                population = self._bred(population, fitness_values)
                _score(model, population, scores)
        return heapq.nlargest(n, (c for c in scores if c not in taken), key=scores.__getitem__)

    def _sampled(self, n: int) -> list[Candidate]:
        """`n` random candidates. Measured ones and repetitions may be among them."""
        spaces = [self.spaces[index] for index in self.rng.integers(len(self.spaces), size=n).tolist()]
        return [Candidate(space.name, space.sample(self.rng)) for space in spaces]

    def _bred(self, population: Sequence[Candidate], fitness_values: Sequence[float]) -> list[Candidate]:
        """The next generation."""
        weights = np.maximum(fitness_values, 0.0)
        shares = weights / weights.sum() if weights.any() else None
        picked = self.rng.choice(len(population), self.options.population, p=shares).tolist()
        parents = [population[index] for index in picked]
        parents_of: dict[str, list[Candidate]] = {}  # by sketch
        for parent in parents:
            parents_of.setdefault(parent.sketch, []).append(parent)
        offspring = []
        for parent, mutates in zip(parents, self.rng.random(len(parents)) < self.options.mutation, strict=True):
            space = self.by_name[parent.sketch]
            point = None
            if self.options.moves == "ansor" and mutates:
                point = mutated_as_ansor(space, parent.point, self.rng)
            elif not mutates and not self.options.crossover:
                point = parent.point
            elif not mutates:
                # All parents were picked by roulette, so a uniform draw among them is a roulette pick, too.
                mates = parents_of[parent.sketch]
                point = crossed(space, parent.point, mates[int(self.rng.integers(len(mates)))].point, self.rng)
            offspring.append(Candidate(space.name, space.mutate(parent.point, self.rng) if point is None else point))
        return offspring


def unmeasured(spaces: Sequence[Space], rng: np.random.Generator, taken: set[Candidate]) -> Iterator[Candidate]:
    """Random candidates that are not in `taken`, until there are none left.

    Each sketch that has any left is drawn with the same probability, and then one of its points uniformly. Every
    candidate that is yielded is added to `taken`.
    """
    remaining = [draws([space], rng, taken) for space in spaces]
    while remaining:
        index = int(rng.integers(len(remaining)))
        candidate = next(remaining[index], None)
        if candidate is None:
            del remaining[index]
        else:
            yield candidate


def crossed(space: Space, first: Point, second: Point, rng: np.random.Generator) -> Point | None:
    """A point that has each knob from either of two points, or None if it is outside of the space."""
    ends = accumulate((len(knob.sizes) for knob in space.knobs), initial=0)
    parents = [(first, second)[index] for index in rng.integers(2, size=len(space.knobs)).tolist()]
    parts = (parent[begin:end] for parent, (begin, end) in zip(parents, pairwise(ends), strict=True))
    point: Point = tuple(chain.from_iterable(parts))
    return point if space.contains(point) else None


def _score(model: CostModel, candidates: Sequence[Candidate], scores: dict[Candidate, float]) -> None:
    """Adds to `scores` those of the candidates that it lacks."""
    new = [candidate for candidate in dict.fromkeys(candidates) if candidate not in scores]
    scores.update(zip(new, model.scores(new).tolist(), strict=True))
