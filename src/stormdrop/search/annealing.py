"""Simulated annealing over boosted trees plans the next 64 measurements: AutoTVM's `XGBTuner`.

Source: the baseline "XGB" of the papers on Droplet Search (section 4), DPAnsor (section 3.4) and NoSE (section V-D:
with AutoTVM's defaults). The defaults here are AutoTVM's. The loss is that of TVM 0.5, as in NoSE; tutorials of later
versions use "regression". The end after 50 steps without a better plan is that of later versions; in TVM 0.5 it was
after 30. A round:

1) The trees are trained anew on all measured candidates (`surrogate.boosted`). A failure has a throughput of 0.
2) 128 Markov chains move over the model. Each step changes one knob to another random value. A worse point is accepted
   with probability exp(difference / temperature), where the temperature falls linearly from 1 to 0 over 500 steps. All
   chains stop if no new candidate was among the 64 best for 50 steps. The next round continues from their last points.
3) The 64 best unmeasured candidates that the chains met are measured, except that the last 5% (rounded down: 3) are
   replaced by random ones.

The first batch is random, and so is every batch until a candidate works. What the papers leave open, or where this
differs from AutoTVM:

- *Features* are the knobs' encodings unless others are given. AutoTVM's default describes loops.
- *Several sketches*: a chain stays in the sketch in which it starts. Chains start at points drawn from the union of
  all spaces.
- *Starts* are measured first, and the first chains begin there.
- *The objective* "pack-sum" is Ansor's.
- *The end*: the search finishes when every point was measured. It never is `converged`.

A round scores up to 64,000 points. They are kept as arrays of integers, because to change and encode them one by one
takes five times as long. With the knobs' encodings, a request costs 2 to 5 ms of one core in the spaces of kernels,
also after 1,000 trials. It costs up to 20 ms if a list of points leaves 1% of the combinations.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, islice, pairwise
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import SearchError, hint
from ..space import Space
from ..surrogate import Features
from ..surrogate.boosted import BoostedTrees, TreeObjective
from ..trial import Candidate, Point, Request
from .contract import GeneratorSearch, Options, Steps, later
from .genetic import fitness
from .random import draws, exhausted

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

OBJECTIVES: tuple[str, ...] = get_args(TreeObjective)

_CACHED = 100_000  # candidates whose features (other than encodings) are cached, as in AutoTVM
_TRIES = (1, 2, 4, 8, 16)  # mutations that are tried at once for each point, until one is inside of the space


@dataclass(frozen=True)
class AnnealingOptions(Options):
    """The options of `Annealing`.

    Args:
        objective: The objective of the trees: "rank", "regression" or "pack-sum".
        plan_size: Candidates measured per round.
        epsilon: The share of them that is random.
        diversity_filter_ratio: If set, this number times `plan_size` candidates are planned, and the most diverse of
            them are measured.
        chains: The number of chains.
        iterations: The largest number of steps of a round.
        early_stop: The number of steps without a better plan after which a round ends.
        temperature: The temperature at the first step, in units of the model's score.
        repeats: Samples per candidate.
        mean: Whether the seconds are the mean of the samples, as in AutoTVM, not their median.

    Raises:
        SearchError: The objective is unknown, or a value is out of its range.
    """

    objective: str = "rank"
    plan_size: int = 64
    epsilon: float = 0.05
    diversity_filter_ratio: float | None = None
    chains: int = 128
    iterations: int = 500
    early_stop: int = 50
    temperature: float = 1.0
    repeats: int = 3
    mean: bool = later(False)

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise SearchError(f"annealing has no objective {self.objective!r}; {hint(self.objective, OBJECTIVES)}")
        if min(self.plan_size, self.chains, self.iterations, self.early_stop, self.repeats) < 1:
            raise SearchError("annealing needs plan_size, chains, iterations, early_stop and repeats >= 1")
        if not 0 <= self.epsilon <= 1:
            raise SearchError(f"annealing's epsilon is a share, from 0 to 1, not {self.epsilon}")
        if self.diversity_filter_ratio is not None and not 1 <= self.diversity_filter_ratio < math.inf:
            raise SearchError(
                f"annealing's diversity_filter_ratio must be at least 1, not {self.diversity_filter_ratio}"
            )
        if not 0 < self.temperature < math.inf:
            raise SearchError(f"annealing's temperature must be positive, not {self.temperature}")


class Annealing(GeneratorSearch):
    """AutoTVM's simulated annealing over boosted trees; the module states the deviations.

    Without `knowledge.features`, its model sees the knobs' encodings. The constructor takes the arguments of
    `GeneratorSearch`.
    """

    name = "annealing"
    Options = AnnealingOptions
    options: AnnealingOptions

    def steps(self) -> Steps:
        """One batch per round."""
        o = self.options
        starts = list(self.knowledge.starts)
        taken = set(starts)
        fresh = draws(self.spaces, self.rng, taken)
        batch = [*starts, *islice(fresh, max(o.plan_size - len(starts), 0))]
        chain_starts = [*starts, *islice(draws(self.spaces, self.rng, set(starts)), o.chains)]
        chains = _Chains(self.spaces, chain_starts[: o.chains], self.knowledge.features)
        model = BoostedTrees(self.rng, objective=cast(TreeObjective, o.objective))
        features: list[Array] = []
        throughputs: list[float] = []
        while batch:
            trials = yield [Request(candidate, o.repeats) for candidate in batch]
            if exhausted(self.spaces, taken):
                return
            features += self.features(batch)
            throughputs += [fitness(trial, o.mean) for trial in trials]
            plan: list[Candidate] = []
            if any(throughputs):
                model.fit(features, np.array(throughputs))
                plan = self._plan(model, chains, taken)
            taken.update(plan)
            batch = [*plan, *islice(fresh, o.plan_size - len(plan))]

    def _plan(self, model: BoostedTrees, chains: _Chains, taken: Set[Candidate]) -> list[Candidate]:
        """The best candidates that the chains meet, the best first: at most those of a batch that are not random."""
        o = self.options
        best = _Best(math.ceil(o.plan_size * (o.diversity_filter_ratio or 1)), taken)
        scores = model.predict(chains.features(chains.rows))
        best.offer(scores, chains.rows, chains)
        stop = o.early_stop
        for step in range(o.iterations):
            if step == stop:
                break
            rows = chains.propose(self.rng)
            proposed = model.predict(chains.features(rows))
            temperature = o.temperature * (1 - step / (o.iterations + 1))
            accepted = self.rng.random(len(scores)) < np.exp(np.minimum(proposed - scores, 0) / temperature)
            chains.move(accepted, rows)
            scores = np.where(accepted, proposed, scores)
            if best.offer(proposed, rows, chains):
                stop = step + o.early_stop
        plan = best.ranked()
        if o.diversity_filter_ratio is not None:
            plan = self._diverse(plan, o.plan_size)
        return plan[: o.plan_size - int(o.epsilon * o.plan_size)]

    def _diverse(self, candidates: Sequence[Candidate], n: int) -> list[Candidate]:
        """AutoTVM's `submodular_pick`: repeatedly the candidate with the most knob values that no picked one has."""
        values: dict[Candidate, set[tuple[object, ...]]] = {}
        for candidate in candidates:
            config = self.by_name[candidate.sketch].config(candidate.point)
            values[candidate] = {(candidate.sketch, *item) for item in config.items()}
        covered: set[tuple[object, ...]] = set()
        picked: list[Candidate] = []
        while values and len(picked) < n:
            picked.append(max(values, key=lambda candidate: len(values[candidate] - covered)))
            covered |= values.pop(picked[-1])
        return picked


class _Best:
    """The n candidates with the highest scores among all that are offered and not `taken`."""

    def __init__(self, n: int, taken: Set[Candidate]) -> None:
        self._n = n
        self._taken = taken
        self._heap: list[tuple[float, Candidate]] = []  # a heap whose first entry is the worst
        self._seen: set[Candidate] = set()

    def offer(self, scores: Array, rows: list[Rows], chains: _Chains) -> bool:
        """Consider the chains' `rows` with these scores. Returns whether any of them is among the best now."""
        better = False
        floor = self._heap[0][0] if len(self._heap) == self._n else -math.inf
        for index in np.flatnonzero(scores > floor).tolist():
            candidate = chains.candidate(index, rows)
            if candidate in self._taken or candidate in self._seen:
                continue
            entry = float(scores[index]), candidate
            if len(self._heap) < self._n:
                heapq.heappush(self._heap, entry)
            elif heapq.heappushpop(self._heap, entry) is entry:
                continue
            self._seen.add(candidate)
            better = True
        return better

    def ranked(self) -> list[Candidate]:
        """The n best candidates, the best first."""
        return [candidate for _, candidate in sorted(self._heap, reverse=True)]


class _Chains:
    """The Markov chains. `rows` holds their points: one array of shape `(chains, knobs)` per space, see `_Table`.

    Args:
        spaces: The spaces of the candidates.
        candidates: Where the chains start, one chain per candidate.
        features: What a model sees of a candidate; if None, the knobs' encodings.
    """

    def __init__(self, spaces: Sequence[Space], candidates: Sequence[Candidate], features: Features | None) -> None:
        self._tables = [_Table(space) for space in spaces]
        self.rows = [
            table.rows([candidate.point for candidate in candidates if candidate.sketch == table.name])
            for table in self._tables
        ]
        # Of each chain the index of its space and its row there.
        self._places = [(space, row) for space, rows in enumerate(self.rows) for row in range(len(rows))]
        self._features = None if features is None else lru_cache(_CACHED)(lambda candidate: features([candidate])[0])

    def propose(self, rng: np.random.Generator) -> list[Rows]:
        """A random step of each chain."""
        return [table.mutated(rows, rng) for table, rows in zip(self._tables, self.rows, strict=True)]

    def move(self, accepted: NDArray[np.bool_], rows: list[Rows]) -> None:
        """Make the accepted steps to `rows`; `accepted` is a mask of shape `(chains,)` for all spaces."""
        masks = np.split(accepted, np.cumsum([len(rows_of_space) for rows_of_space in self.rows])[:-1])
        self.rows = [np.where(mask[:, None], new, old) for mask, new, old in zip(masks, rows, self.rows, strict=True)]

    def candidate(self, index: int, rows: list[Rows]) -> Candidate:
        """The candidate of a chain."""
        space, row = self._places[index]
        return Candidate(self._tables[space].name, self._tables[space].point(rows[space][row].tolist()))

    def features(self, rows: list[Rows]) -> list[Array]:
        """One array of shape `(rows, d)` per chain."""
        if self._features is not None:
            return [self._features(self.candidate(index, rows)) for index in range(len(self._places))]
        return list(self._encodings(rows)[:, None, :])

    def _encodings(self, rows: list[Rows]) -> Array:
        """The features of `knob_encodings` for all chains at once: shape `(chains, d)`."""
        blocks = [table.encodings(rows_of_space) for table, rows_of_space in zip(self._tables, rows, strict=True)]
        if len(blocks) == 1:
            return blocks[0]
        wide = np.zeros((len(self._places), len(blocks) + sum(block.shape[1] for block in blocks)))
        top, left = 0, len(blocks)
        for space, block in enumerate(blocks):
            bottom, right = top + block.shape[0], left + block.shape[1]
            wide[top:bottom, space] = 1.0
            wide[top:bottom, left:right] = block
            top, left = bottom, right
        return wide


class _Table:
    """A space as integers: a row is a point, a column is a knob, an entry is the rank of the knob's value."""

    def __init__(self, space: Space) -> None:
        self.name = space.name
        self._space = space
        self._coords = [list(knob) for knob in space.knobs]
        self._ranks = [{coords: rank for rank, coords in enumerate(listed)} for listed in self._coords]
        self._values = [[knob.value(coords) for coords in knob] for knob in space.knobs]
        self._codes = [np.array([knob.encode(coords) for coords in knob]) for knob in space.knobs]
        self._counts = np.array([knob.count for knob in space.knobs])
        self._free = np.flatnonzero(self._counts > 1)  # the knobs that have another value
        position = {knob.name: index for index, knob in enumerate(space.knobs)}
        self._tests = [
            (constraint.predicate, [position[name] for name in constraint.knobs]) for constraint in space.constraints
        ]
        ends = accumulate((len(knob.sizes) for knob in space.knobs), initial=0)
        self._slices = [slice(begin, end) for begin, end in pairwise(ends)]  # of each knob in a point

    def rows(self, points: Sequence[Point]) -> Rows:
        """The rows of points, shape `(n, knobs)`."""
        rows = [
            [ranks[point[place]] for ranks, place in zip(self._ranks, self._slices, strict=True)] for point in points
        ]
        return np.array(rows, np.intp).reshape(len(points), len(self._slices))

    def point(self, row: list[int]) -> Point:
        """The point of a row."""
        return tuple(chain.from_iterable(coords[rank] for coords, rank in zip(self._coords, row, strict=True)))

    def encodings(self, rows: Rows) -> Array:
        """What `Space.encodings` returns for the points of the rows, shape `(n, d)`."""
        codes = [code[column] for code, column in zip(self._codes, rows.T, strict=True)]
        return np.hstack([np.zeros((len(rows), 0)), *codes])

    def mutated(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """For each row another one that differs in one knob; the knob and its new value are drawn uniformly.

        This is `Space.mutate` for many rows, with another order of draws. The space itself mutates the rows for which
        all draws were outside.
        """
        mutated: Rows = rows.copy()
        todo = np.arange(len(rows))
        for tries in _TRIES if len(self._free) else ():
            sources = np.repeat(todo, tries)
            changed = self._free[rng.integers(len(self._free), size=len(sources))]
            counts = self._counts[changed]
            drawn, index = rows[sources], np.arange(len(sources))
            drawn[index, changed] = (drawn[index, changed] + rng.integers(1, counts)) % counts
            inside = self._inside(drawn, changed)
            mutated[sources[inside]] = drawn[inside]
            todo = np.setdiff1d(todo, sources[inside])
            if not len(todo):
                break
        for row in todo.tolist():
            mutated[row] = self.rows([self._space.mutate(self.point(rows[row].tolist()), rng)])[0]
        return mutated

    def _inside(self, rows: Rows, changed: Rows) -> NDArray[np.bool_]:
        """Which rows are inside of the space, if all were before one knob of each row (`changed`) was changed."""
        inside = np.ones(len(rows), bool)
        for predicate, used in self._tests:
            due = np.flatnonzero(inside & (changed[:, None] == used).any(axis=1))
            columns = [map(self._values[knob].__getitem__, rows[due, knob].tolist()) for knob in used]
            inside[due] = list(map(predicate, *columns))
        return inside
