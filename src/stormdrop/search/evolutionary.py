"""Ansor's evolutionary search: candidates are bred under a cost model, and the best of them measured, batch by batch.

Sources: the DPAnsor paper, section 2.1, and the AF-DS paper, section 3.2 and Figure 5; where they give no number, the
defaults of TVM's auto-scheduler, which both papers ran. A round:

1) A population of 2,048 random candidates of all sketches, and the best that were measured: at most 0.2 x 2,048.
2) Four generations of 2,048 each. A parent is picked by roulette on the model's score, negative ones taken as 0, and
   mutates with probability 0.85; else it is crossed with another parent of its sketch.
3) Of a batch of 64, 5% (rounded down: 3) are new random candidates, the others those with the best scores that the
   whole evolution came by and that were not measured.
4) The model, boosted trees, is trained anew with all measured candidates.

With the knobs' encodings as features this is the algorithm alone; with `knowledge.features` giving Ansor's 164 per
statement it is Ansor, with the seven of section 4.1 of the AF-DS paper Ansor-AF (`tune-op --features`).

What the papers leave open, or where this differs from them:

- *The first batch*, and every one until a candidate works, is random: there is nothing to train a model with. TVM
  breeds it by random scores. Starts come first in it.
- *A gene* is a knob. A mutation changes one; a crossover takes each from either parent. An offspring outside its space
  is replaced by a mutation of the first parent. TVM has no crossover and copies the parent instead.
- *Failures* have a throughput of 0, so no weight in training (see `surrogate.boosted`), and are no parents.
- *Several sketches* are sampled with equal probability each, as in TVM, and compete in one population.
- *Small grounds*: where all spaces together have at most as many points as the population, all are scored
  that were not measured, and without a model where they are one batch.
- *Training set*: `BoostedTrees` bounds it, at 4,000 candidates; TVM's grows with every trial.
- *The end*: when every point was measured. Ansor ends by its budget alone, so the search never is `converged`.
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
    """Raises `SearchError` for a value that makes no sense.

    batch         candidates measured per round
    epsilon       share of a batch that is random
    population    of a generation; a round scores at most (generations + 1 + measured) times as many candidates
    generations   bred from the first population
    mutation      probability to mutate; what does not is crossed
    measured      the best measured candidates in the first population, at most, as a share of it
    repeats       samples per candidate
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
    """See the module."""

    name = "evolutionary"
    Options = EvolutionaryOptions
    options: EvolutionaryOptions

    def steps(self) -> Steps:
        """A batch per round."""
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
        """At most n candidates that were not measured, those with the best scores of what evolution comes by."""
        o = self.options
        scores: dict[Candidate, float] = {}
        if sum(space.bound for space in self.spaces) <= o.population:
            points = [Candidate(space.name, point) for space in self.spaces for point in space.points()]
            rest = [candidate for candidate in points if candidate not in model.measured]
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
                population = self._bred(population, [0 if c in model.failed else scores[c] for c in population])
                _score(model, population, scores)
        return heapq.nlargest(n, (c for c in scores if c not in model.measured), key=scores.__getitem__)

    def _sampled(self, n: int) -> list[Candidate]:
        """n random candidates, measured ones and repetitions among them."""
        picked = [self.spaces[at] for at in self.rng.integers(len(self.spaces), size=n).tolist()]
        return [Candidate(space.name, space.sample(self.rng)) for space in picked]

    def _bred(self, population: Sequence[Candidate], scores: Sequence[float]) -> list[Candidate]:
        """The next generation."""
        weights = np.maximum(scores, 0.0)
        shares = weights / weights.sum() if weights.any() else None
        parents = [population[i] for i in self.rng.choice(len(population), self.options.population, p=shares).tolist()]
        mates: dict[str, list[Candidate]] = {}
        for parent in parents:
            mates.setdefault(parent.sketch, []).append(parent)
        offspring = []
        for parent, mutates in zip(parents, self.rng.random(len(parents)) < self.options.mutation, strict=True):
            space = self.by_name[parent.sketch]
            point = None
            if not mutates:
                kin = mates[parent.sketch]
                # the parents were picked by roulette, so any of them is a mate picked by roulette
                point = crossed(space, parent.point, kin[int(self.rng.integers(len(kin)))].point, self.rng)
            offspring.append(Candidate(space.name, space.mutate(parent.point, self.rng) if point is None else point))
        return offspring


class CostModel:
    """Ansor's cost model together with what it was trained on; features are computed once per candidate."""

    def __init__(self, features: Features, rng: np.random.Generator) -> None:
        self.measured: dict[Candidate, float] = {}
        """Throughputs in executions per second, 0 for failures."""
        self.failed: set[Candidate] = set()
        self.best = 0.0
        self._features = features
        self._rows: dict[Candidate, NDArray[np.float64]] = {}
        self._trees = BoostedTrees(rng, objective="pack-sum")

    def record(self, trials: Sequence[Trial]) -> None:
        """Add what was measured; the scores stay as they are until it is trained."""
        for trial in trials:
            self.measured[trial.candidate] = speed = fitness(trial)
            self.best = max(self.best, speed)
            if not trial.ok:
                self.failed.add(trial.candidate)

    def train(self) -> None:
        """Train anew with all that was measured, of which at least one must have worked."""
        rows = self._looked_up(list(self.measured))
        # Only these are sure to be needed again: memory grows with the trials and not with the scored candidates.
        self._rows = dict(zip(self.measured, rows, strict=True))
        self._trees.fit(rows, np.array(list(self.measured.values())))

    def scores(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Estimated throughputs as shares of the best that was measured, shape `(n,)`."""
        return self._trees.predict(self._looked_up(candidates))

    def _looked_up(self, candidates: Sequence[Candidate]) -> list[NDArray[np.float64]]:
        missing = [candidate for candidate in dict.fromkeys(candidates) if candidate not in self._rows]
        if missing:
            self._rows.update(zip(missing, self._features(missing), strict=True))
        return [self._rows[candidate] for candidate in candidates]


def unmeasured(spaces: Sequence[Space], rng: np.random.Generator, taken: set[Candidate]) -> Iterator[Candidate]:
    """Random candidates that are not in `taken`, to which it adds them; ends when there are none left.

    Draws a sketch with equal probability among those that have any left, and a point of it uniformly.
    """
    live = [draws([space], rng, taken) for space in spaces]
    while live:
        at = int(rng.integers(len(live)))
        candidate = next(live[at], None)
        if candidate is None:
            del live[at]
        else:
            yield candidate


def crossed(space: Space, one: Point, other: Point, rng: np.random.Generator) -> Point | None:
    """A point that has each knob from either of two, None where that is outside the space."""
    ends = accumulate((len(knob.sizes) for knob in space.knobs), initial=0)
    sources = [(one, other)[i] for i in rng.integers(2, size=len(space.knobs)).tolist()]
    point = tuple(x for source, (a, b) in zip(sources, pairwise(ends), strict=True) for x in source[a:b])
    return point if space.contains(point) else None


def _score(model: CostModel, candidates: Sequence[Candidate], scores: dict[Candidate, float]) -> None:
    """Add the scores of those that have none yet."""
    new = [candidate for candidate in dict.fromkeys(candidates) if candidate not in scores]
    scores.update(zip(new, model.scores(new).tolist(), strict=True))
