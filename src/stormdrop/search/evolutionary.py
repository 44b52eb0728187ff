"""Ansor's evolutionary search: candidates are bred under a cost model, and the best of them are measured in batches.

Sources: the DPAnsor paper, section 2.1, and the AF-DS paper, section 3.2 and Figure 5. If they give no number, it is
the default of TVM's auto-scheduler, which both papers ran. A round:

1) The population is 2,048 random candidates of all sketches, and the best that were measured, at most 0.2 x 2,048.
2) Four generations of 2,048 each are bred. A parent is picked by roulette on the model's score (a negative score counts
   as 0). It mutates with probability 0.85, else it is crossed with another parent of its sketch.
3) A batch of 64 is measured. 5% of it (rounded down: 3) are new random candidates. The others are those with the best
   scores among all unmeasured candidates of the evolution.
4) The model, boosted trees, is trained anew with all measured candidates.

With the knobs' encodings as features, this is the algorithm alone. If `knowledge.features` gives Ansor's 164 features
per statement, it is Ansor; with the seven features of section 4.1 of the AF-DS paper, it is Ansor-AF (`tune-op
--features`).

What the papers leave open, or where this differs from them:

- *The first batch*, and every batch until a candidate works, is random, because there is nothing to train a model
  with. TVM breeds it by random scores. Starts come first in it.
- *A gene* is a knob. A mutation changes one knob; a crossover takes each knob from either parent. An offspring outside
  of its space is replaced by a mutation of the first parent. TVM has no crossover and copies the parent instead.
- *Failures* have a throughput of 0, so they have no weight in training (see `surrogate.boosted`). They are no parents.
- *Several sketches* are sampled with equal probability each, as in TVM, and compete in one population.
- *Small spaces*: if all spaces together have at most as many points as the population, all unmeasured points are
  scored. If they fit into one batch, they are measured without a model.
- *The training set* is bounded by `BoostedTrees` at 4,000 candidates; TVM's grows with every trial.
- *The end*: the search finishes when every point was measured. Ansor ends by its budget alone, so the search never is
  `converged`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

import numpy as np
from numpy.typing import NDArray

from ..errors import SearchError
from ..space import Space
from ..surrogate import Features
from ..surrogate.boosted import BoostedTrees
from ..trial import Candidate, Point, Request, Trial
from .contract import GeneratorSearch, Options, Steps
from .genetic import fitness
from .random import draws


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

    Raises:
        SearchError: A value is out of its range.
    """

    batch: int = 64
    epsilon: float = 0.05
    population: int = 2048
    generations: int = 4
    mutation: float = 0.85
    measured: float = 0.2
    repeats: int = 3

    def __post_init__(self) -> None:
        if min(self.batch, self.population, self.repeats) < 1 or self.generations < 0:
            raise SearchError("evolutionary needs batch >= 1, population >= 1, generations >= 0 and repeats >= 1")
        for name in ("epsilon", "mutation", "measured"):
            if not 0 <= getattr(self, name) <= 1:
                raise SearchError(f"evolutionary's {name} must be from 0 to 1, not {getattr(self, name)}")


class Evolutionary(GeneratorSearch):
    """Ansor's evolutionary search (DPAnsor paper, section 2.1); the module states the deviations.

    Without `knowledge.features`, its cost model sees the knobs' encodings. The constructor takes the arguments of
    `GeneratorSearch`.
    """

    name = "evolutionary"
    Options = EvolutionaryOptions
    options: EvolutionaryOptions

    def steps(self) -> Steps:
        """One batch per round."""
        o = self.options
        taken = set(self.knowledge.starts)
        fresh = unmeasured(self.spaces, self.rng, taken)
        model = CostModel(self.features, self.rng)
        starts = list(self.knowledge.starts)
        batch = starts + list(islice(fresh, max(o.batch - len(starts), 0)))
        while batch:
            trials = yield [Request(candidate, o.repeats) for candidate in batch]
            model.record(trials)
            batch = []
            if model.best:
                batch = self._promising(model, o.batch - int(o.epsilon * o.batch))
                taken.update(batch)
            batch += islice(fresh, o.batch - len(batch))

    def _promising(self, model: CostModel, n: int) -> list[Candidate]:
        """At most n unmeasured candidates: those with the best scores that the evolution meets."""
        o = self.options
        scores: dict[Candidate, float] = {}
        if sum(space.bound for space in self.spaces) <= o.population:
            every = [Candidate(space.name, point) for space in self.spaces for point in space.points()]
            rest = [candidate for candidate in every if candidate not in model.measured]
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
        unmeasured_candidates = (candidate for candidate in scores if candidate not in model.measured)
        return heapq.nlargest(n, unmeasured_candidates, key=scores.__getitem__)

    def _sampled(self, n: int) -> list[Candidate]:
        """n random candidates. Measured ones and repetitions may be among them."""
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
            if not mutates:
                # All parents were picked by roulette, so a uniform draw among them is a roulette pick, too.
                mates = parents_of[parent.sketch]
                point = crossed(space, parent.point, mates[int(self.rng.integers(len(mates)))].point, self.rng)
            offspring.append(Candidate(space.name, space.mutate(parent.point, self.rng) if point is None else point))
        return offspring


class CostModel:
    """Ansor's cost model together with its training set. Features are computed once per candidate.

    Args:
        features: What the model sees of a candidate.
        rng: The source of all randomness.

    Attributes:
        measured: The throughput of each measured candidate in executions per second, 0 for a failure.
        failed: The candidates that failed.
        best: The best throughput so far.
    """

    def __init__(self, features: Features, rng: np.random.Generator) -> None:
        self.measured: dict[Candidate, float] = {}
        self.failed: set[Candidate] = set()
        self.best = 0.0
        self._features = features
        self._rows: dict[Candidate, NDArray[np.float64]] = {}
        self._trees = BoostedTrees(rng, objective="pack-sum")

    def record(self, trials: Sequence[Trial]) -> None:
        """Add trials to the training set. The scores do not change before the next `train`."""
        for trial in trials:
            self.measured[trial.candidate] = throughput = fitness(trial)
            self.best = max(self.best, throughput)
            if not trial.ok:
                self.failed.add(trial.candidate)

    def train(self) -> None:
        """Train anew with all measured candidates. At least one of them must have worked."""
        rows = self._rows_of(list(self.measured))
        # Only the rows of measured candidates are sure to be needed again. The others are dropped, so that memory grows
        # with the trials and not with the scored candidates.
        self._rows = dict(zip(self.measured, rows, strict=True))
        self._trees.fit(rows, np.array(list(self.measured.values())))

    def scores(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Estimated throughputs as shares of the best measured one, shape `(n,)`."""
        return self._trees.predict(self._rows_of(candidates))

    def _rows_of(self, candidates: Sequence[Candidate]) -> list[NDArray[np.float64]]:
        """The features of candidates, computed if they are not known yet."""
        missing = [candidate for candidate in dict.fromkeys(candidates) if candidate not in self._rows]
        if missing:
            self._rows.update(zip(missing, self._features(missing), strict=True))
        return [self._rows[candidate] for candidate in candidates]


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
    point: Point = ()
    for parent, (begin, end) in zip(parents, pairwise(ends), strict=True):
        point += parent[begin:end]
    return point if space.contains(point) else None


def _score(model: CostModel, candidates: Sequence[Candidate], scores: dict[Candidate, float]) -> None:
    """Add to `scores` those of the candidates that it lacks."""
    new = [candidate for candidate in dict.fromkeys(candidates) if candidate not in scores]
    scores.update(zip(new, model.scores(new).tolist(), strict=True))
