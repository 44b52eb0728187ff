"""Simulated annealing over boosted trees plans what is measured next, 64 candidates at a time: AutoTVM's XGBTuner.

Source: the baseline "XGB" of the Droplet Search, DPAnsor and NoSE papers (section V-D of the last: with AutoTVM's
defaults). Defaults here are AutoTVM's; the loss is that of TVM 0.5, as in NoSE, while tutorials of later versions take
"regression"; 50 steps without a better plan are those of later versions, in TVM 0.5 they were 30. A round:

1) The trees are trained anew on all measured candidates (`surrogate.boosted`), a failure having a throughput of 0.
2) 128 chains walk over the model, each step changing one knob to another value at random. A worse point is accepted
   with probability exp(difference / temperature), where the temperature falls linearly from 1 to 0 over 500 steps.
   All stop when for 50 steps no new candidate was among the 64 best. The next round goes on from where they are.
3) The 64 best unmeasured candidates that the chains came by are measured, but for the last 5% (rounded down: 3), in
   whose place random ones are.

The first batch is random, and so is every one until a candidate works. What the papers leave open, or where this
differs from AutoTVM:

- *Features* are the knobs' encodings unless others are given. AutoTVM's default describes loops.
- *Several sketches*: a chain stays in the sketch it starts in; chains start at points drawn from the union of all.
- *Starts* are measured first, and the first chains begin there.
- *The objective* "pack-sum" is Ansor's.
- *The end*: when every point was measured. The search never is `converged`.

A round scores up to 64,000 points. They are kept as arrays of integers: changing and encoding them one by one takes
five times as long. With the knobs' encodings a request costs 2 to 5 ms of one core in the spaces of kernels, also after
1,000 trials, and up to 20 ms where a list of points leaves 1% of the combinations.
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
from .contract import GeneratorSearch, Options, Steps
from .genetic import fitness
from .random import draws

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

OBJECTIVES: tuple[str, ...] = get_args(TreeObjective)

_CACHED = 100_000  # candidates whose given features are kept, as in AutoTVM
_TRIES = (1, 2, 4, 8, 16)  # at another value for a knob, side by side, until one is inside


@dataclass(frozen=True)
class AnnealingOptions(Options):
    """Raises `SearchError` for a value that makes no sense.

    objective               of the trees: "rank", "regression" or "pack-sum"
    plan_size               candidates measured per round
    epsilon                 share of them that is random
    diversity_filter_ratio  if set, this times as many candidates are planned, and the most diverse of them measured
    chains                  that walk side by side
    iterations              steps of a round, at most
    early_stop              steps without a better plan after which a round ends
    temperature             at the first step, in units of the model's score
    repeats                 samples per candidate
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
    """See the module."""

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
        beginnings = [*starts, *islice(draws(self.spaces, self.rng, set(starts)), o.chains)]
        chains = _Chains(self.spaces, beginnings[: o.chains], self.knowledge.features)
        model = BoostedTrees(self.rng, objective=cast(TreeObjective, o.objective))
        features: list[Array] = []
        speeds: list[float] = []
        while batch:
            trials = yield [Request(candidate, o.repeats) for candidate in batch]
            features += self.features(batch)
            speeds += map(fitness, trials)
            plan: list[Candidate] = []
            if any(speeds):
                model.fit(features, np.array(speeds))
                plan = self._plan(model, chains, taken)
            taken.update(plan)
            batch = [*plan, *islice(fresh, o.plan_size - len(plan))]

    def _plan(self, model: BoostedTrees, chains: _Chains, taken: Set[Candidate]) -> list[Candidate]:
        """What the chains find best on the model, the best first, at most the share of a batch that is not random."""
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
        """AutoTVM's `submodular_pick`: again and again the candidate with the most values that none before it had."""
        values = {c: {(c.sketch, *item) for item in self.by_name[c.sketch].config(c.point).items()} for c in candidates}
        had: set[tuple[object, ...]] = set()
        picked: list[Candidate] = []
        while values and len(picked) < n:
            picked.append(max(values, key=lambda candidate: len(values[candidate] - had)))
            had |= values.pop(picked[-1])
        return picked


class _Best:
    """The n candidates with the highest scores of all that are offered and not `taken`."""

    def __init__(self, n: int, taken: Set[Candidate]) -> None:
        self._n = n
        self._taken = taken
        self._heap: list[tuple[float, Candidate]] = []  # the worst first
        self._seen: set[Candidate] = set()

    def offer(self, scores: Array, rows: list[Rows], chains: _Chains) -> bool:
        """Take the chains' `rows` with these scores into account; whether any of them is among the best now."""
        better = False
        floor = self._heap[0][0] if len(self._heap) == self._n else -math.inf
        for i in np.flatnonzero(scores > floor).tolist():
            entry = float(scores[i]), chains.candidate(i, rows)
            if entry[1] in self._taken or entry[1] in self._seen:
                continue
            if len(self._heap) < self._n:
                heapq.heappush(self._heap, entry)
            elif heapq.heappushpop(self._heap, entry) is entry:
                continue
            self._seen.add(entry[1])
            better = True
        return better

    def ranked(self) -> list[Candidate]:
        """They, the best first."""
        return [candidate for _, candidate in sorted(self._heap, reverse=True)]


class _Chains:
    """Where the chains are: `rows` holds an array of shape `(chains, knobs)` per space, see `_Table`."""

    def __init__(self, spaces: Sequence[Space], candidates: Sequence[Candidate], features: Features | None) -> None:
        """A chain at each candidate. What a model sees of them is `features`, else the knobs' encodings."""
        self._tables = [_Table(space) for space in spaces]
        self.rows = [table.rows([c.point for c in candidates if c.sketch == table.name]) for table in self._tables]
        self._places = [(t, i) for t, rows in enumerate(self.rows) for i in range(len(rows))]
        self._given = None if features is None else lru_cache(_CACHED)(lambda candidate: features([candidate])[0])

    def propose(self, rng: np.random.Generator) -> list[Rows]:
        """A step of each chain."""
        return [table.mutated(rows, rng) for table, rows in zip(self._tables, self.rows, strict=True)]

    def move(self, accepted: NDArray[np.bool_], rows: list[Rows]) -> None:
        """Make the steps to `rows` that are accepted; `accepted` has shape `(chains,)`, for all spaces."""
        masks = np.split(accepted, np.cumsum([len(own) for own in self.rows])[:-1])
        self.rows = [np.where(m[:, None], new, old) for m, new, old in zip(masks, rows, self.rows, strict=True)]

    def candidate(self, i: int, rows: list[Rows]) -> Candidate:
        """The candidate of chain i."""
        t, at = self._places[i]
        return Candidate(self._tables[t].name, self._tables[t].point(rows[t][at].tolist()))

    def features(self, rows: list[Rows]) -> list[Array]:
        """An array `(rows, d)` per chain."""
        if self._given is not None:
            return [self._given(self.candidate(i, rows)) for i in range(len(self._places))]
        return list(self._encodings(rows)[:, None, :])

    def _encodings(self, rows: list[Rows]) -> Array:
        """As `knob_encodings`, all at once: shape `(chains, d)`."""
        codes = [table.encodings(own) for table, own in zip(self._tables, rows, strict=True)]
        if len(codes) == 1:
            return codes[0]
        wide = np.zeros((len(self._places), len(codes) + sum(own.shape[1] for own in codes)))
        row, column = 0, len(codes)
        for t, own in enumerate(codes):
            below, right = row + own.shape[0], column + own.shape[1]
            wide[row:below, t] = 1.0
            wide[row:below, column:right] = own
            row, column = below, right
        return wide


class _Table:
    """A space in integers: a row is a point, a column a knob, an entry the place of its value among the knob's."""

    def __init__(self, space: Space) -> None:
        self.name = space.name
        self._space = space
        self._coords = [list(knob) for knob in space.knobs]
        self._places = [{coords: place for place, coords in enumerate(listed)} for listed in self._coords]
        self._values = [[knob.value(coords) for coords in knob] for knob in space.knobs]
        self._codes = [np.array([knob.encode(coords) for coords in knob]) for knob in space.knobs]
        self._counts = np.array([knob.count for knob in space.knobs])
        self._free = np.flatnonzero(self._counts > 1)
        position = {knob.name: k for k, knob in enumerate(space.knobs)}
        self._tests = [(c.predicate, [position[name] for name in c.knobs]) for c in space.constraints]
        self._slices = [slice(a, b) for a, b in pairwise(accumulate((len(k.sizes) for k in space.knobs), initial=0))]

    def rows(self, points: Sequence[Point]) -> Rows:
        """The rows of points, shape `(n, knobs)`."""
        rows = [[places[p[at]] for places, at in zip(self._places, self._slices, strict=True)] for p in points]
        return np.array(rows, np.intp).reshape(len(points), len(self._slices))

    def point(self, row: list[int]) -> Point:
        """The point of a row."""
        return tuple(chain.from_iterable(coords[place] for coords, place in zip(self._coords, row, strict=True)))

    def encodings(self, rows: Rows) -> Array:
        """As `Space.encode`, shape `(n, d)`."""
        codes = [code[column] for code, column in zip(self._codes, rows.T, strict=True)]
        return np.hstack([np.zeros((len(rows), 0)), *codes])

    def mutated(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """For each row another that differs in one knob, drawn uniformly of both: `Space.mutate` but for its order.

        The space itself mutates the rows for which many draws were outside.
        """
        moved: Rows = rows.copy()
        todo = np.arange(len(rows))
        for tries in _TRIES if len(self._free) else ():
            of = np.repeat(todo, tries)
            changed = self._free[rng.integers(len(self._free), size=len(of))]
            counts = self._counts[changed]
            drawn, each = rows[of], np.arange(len(of))
            drawn[each, changed] = (drawn[each, changed] + rng.integers(1, counts)) % counts
            inside = self._inside(drawn, changed)
            moved[of[inside]] = drawn[inside]
            todo = np.setdiff1d(todo, of[inside])
            if not len(todo):
                break
        for i in todo.tolist():
            moved[i] = self.rows([self._space.mutate(self.point(rows[i].tolist()), rng)])[0]
        return moved

    def _inside(self, rows: Rows, changed: Rows) -> NDArray[np.bool_]:
        """Which of the rows are inside, if all were before these knobs, one of each row, were changed."""
        inside = np.ones(len(rows), bool)
        for predicate, used in self._tests:
            due = np.flatnonzero(inside & (changed[:, None] == used).any(axis=1))
            columns = [map(self._values[k].__getitem__, rows[due, k].tolist()) for k in used]
            inside[due] = list(map(predicate, *columns))
        return inside
