"""Droplet Search: coordinate descent from the canonical schedule, until no neighbour is statistically faster.

Source: the Droplet Search paper, section 3 and Figure 4; the names in `_descend` are the figure's. What the
paper leaves open, or where the default differs from the paper:

- *Which test.* `test="student"` is the paper's (section 3.3), "rank" is that of its footnote, "none" compares means.
  The default, "ours", measures the incumbent again beside its challengers (`judge.SharedBatches`). The paper does not
  say whether its test has one side or two (`sides`). A move needs one side only, which is the default.
- *The neighbourhood* is that of `Space.neighbours`: tiles also exchange factors between their levels, and from a
  category every other one is a step away. `neighbourhood="coordinates"` is Definition 3.2.
- *The origin* is the space's default schedule, which a cost model may have chosen. `origin="lowest"` is the paper's
  unoptimised kernel (Definition 2.5), as far as the space has it. Starts that the caller gives replace either.
- *The first batch* is the origin together with its neighbours, without speculation, because there is no direction yet.
- *Speculation* fills a batch up to the caller's width n (the figure's num_threads) from the neighbourhood of v_s, the
  point that the last move reaches if it is continued (section 3.4). The paper adds the whole neighbourhood to a batch
  that has room left: `whole_set`. Speculation makes moves possible that change
  several knobs. Such a move is continued in the first of these knobs in which it can be.
- *Known points* are never requested again as new ones, but they remain targets: a neighbour that an earlier batch
  measured by speculation competes with the neighbours of this batch. Former incumbents do not. In the figure only the
  points of the batch compete (line 11): `revisit=False`.
- *Failures* are never moved to. If the origin fails, the search continues from its best neighbour. If all neighbours
  fail, it continues from the first random point that works, of at most `restarts`. If none works, the search gives the
  sketch up.
- *Several starts* are measured together, before anything else. The best start of a sketch replaces its origin.
- *Several sketches* are descended one after the other, each from its origin. A sketch is dropped after its first
  batch if its best candidate takes more than `drop` times as long as the best so far. The end of a later descent
  replaces the best so far only if the test finds it faster.

Two extensions are off by default. The paper leaves the first open for future work (section 4.5): with `candidates`
above 1, the neighbourhoods of the next best points of the last batch are measured together with that of the best one.
With `prune`, a cost model leaves out that share of the new points which it expects to be slow: the caller's prior, or
else boosted trees over what was measured. `preset=paper` sets what the paper prints; see `presets.py`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial

import numpy as np

from ..space import Space, coordinate_beyond, coordinate_neighbours, lowest
from ..trial import Candidate, Point, Request, Trial
from .contract import GeneratorSearch, Steps
from .parts.cost_model import CostModel
from .parts.droplet_options import DropletOptions
from .parts.judge import Judge, judge


class Droplet(GeneratorSearch):
    """Droplet Search (Droplet Search paper, section 3); the module states the deviations.

    At its end, `best` is the candidate that it reached, or None if no candidate works. The constructor takes the
    arguments of `GeneratorSearch`.
    """

    name = "droplet"
    Options = DropletOptions
    asks_again = True
    options: DropletOptions

    def set_up(self) -> None:
        o = self.options
        self._judge: Judge = judge(o.test, o.confidence, o.repeats, o.contests, o.sides)
        self._model = CostModel(self.features, self.rng) if o.prune else None

    def steps(self) -> Steps:
        """One descent per sketch. The best of their ends is the search's best."""
        starts = list(self.knowledge.starts)
        if len(starts) > 1:
            yield from self._measure(starts, starts[0])
        all_converged = True
        for origin in self._origins(starts):
            end, converged = yield from self._descend(origin)
            all_converged = all_converged and converged
            if end is None:
                continue
            best_so_far = self._working_best()
            if best_so_far is None or (yield from self._judge.decide([end], best_so_far)) == end:
                self.best = end
        self.converged = all_converged and self.best is not None

    def _origins(self, starts: Sequence[Candidate]) -> list[Candidate]:
        """One candidate per sketch: its best start, else its origin. Sketches with starts come first."""
        working = sorted((start for start in starts if self._judge.ok(start)), key=self._judge.estimate)
        first: dict[str, Candidate] = {}
        for origin in [*working, *starts, *map(self._origin, self.spaces)]:
            first.setdefault(origin.sketch, origin)
        return list(first.values())

    def _descend(self, origin: Candidate) -> Generator[list[Request], list[Trial], tuple[Candidate | None, bool]]:
        """The figure's `search`.

        Returns:
            The candidate at which the descent ended, None if the sketch was dropped or given up; and whether it came
            to its end, which it did not if it reached `max_iterations` or if its incumbent failed.
        """
        o, space = self.options, self.by_name[origin.sketch]
        first = [neighbour for neighbour in self._neighbours(space, origin) if not self._judge.known(neighbour)]
        candidate = yield from self._first_batch(space, origin)
        if candidate is None:
            return None, True
        batch = first if candidate == origin and not o.revisit else []
        previous: Candidate | None = None
        others: list[Candidate] = []  # whose neighbourhoods are measured beside the candidate's
        left: set[Candidate] = set()
        iteration = 0
        while True:
            iteration += 1
            front = [candidate, *others]
            around = dict.fromkeys(neighbour for member in front for neighbour in self._neighbours(space, member))
            neighborhood = [neighbour for neighbour in around if not self._judge.known(neighbour)]
            room = self.width - len(neighborhood) - (1 if self._judge.brackets else 0)
            if previous is not None and o.speculation and room > 0:
                speculative = self._speculate(space, previous, candidate, {*neighborhood, candidate})
                neighborhood += speculative if o.whole_set else speculative[:room]
            neighborhood = self._promising(neighborhood)
            if neighborhood:
                yield from self._measure(neighborhood, candidate)
            targets = dict.fromkeys([*batch, *neighborhood, *(around if o.revisit else ())])
            batch = []
            left.add(candidate)
            pool = [target for target in targets if self._judge.ok(target) and target not in left]
            if self._judge.ok(candidate):
                new_candidate = yield from self._judge.decide(pool, candidate)
            else:
                # The incumbent failed when it was measured again, so anything that works is better.
                new_candidate = min(pool, key=self._judge.estimate, default=None)
            if new_candidate is None:
                return (candidate, True) if self._judge.ok(candidate) else (None, False)
            if iteration == o.max_iterations:
                return new_candidate, False
            others = self._next_best([target for target in pool if target != new_candidate], candidate)
            previous, candidate = candidate, new_candidate

    def _next_best(self, pool: Sequence[Candidate], incumbent: Candidate) -> list[Candidate]:
        """The best candidates that seem faster than the former incumbent, at most `candidates` - 1."""
        working = [candidate for candidate in pool if self._judge.ok(candidate)]
        if self._judge.ok(incumbent):
            limit = self._judge.estimate(incumbent)
            working = [candidate for candidate in working if self._judge.estimate(candidate) < limit]
        return sorted(working, key=self._judge.estimate)[: self.options.candidates - 1]

    def _promising(self, candidates: list[Candidate]) -> list[Candidate]:
        """The candidates without those that the cost model leaves out."""
        kept = len(candidates) - int(self.options.prune * len(candidates))
        if self._model is None or kept == len(candidates):
            return candidates
        expected = self.knowledge.prior(candidates) if self.knowledge.prior else None
        if expected is None or not np.isfinite(expected).all():
            if not self._model.best:
                return candidates  # nothing has worked yet, so there is nothing to train a model with
            self._model.train()
            expected = -self._model.scores(candidates)
        order = np.argsort(expected, kind="stable")[:kept]
        return [candidates[index] for index in sorted(order.tolist())]

    def _first_batch(self, space: Space, origin: Candidate) -> Generator[list[Request], list[Trial], Candidate | None]:
        """Measures the origin and its neighbours.

        Returns:
            The candidate from which the descent starts, or None if the sketch is dropped or given up.
        """
        batch = [origin, *self._neighbours(space, origin)]
        new = [candidate for candidate in batch if not self._judge.known(candidate)]
        failed = self._judge.known(origin) and not self._judge.ok(origin)
        if self._judge.brackets and origin not in new and not failed:
            new = [origin, *new]  # it is one of several starts, and was not measured beside its neighbours yet
        if new:
            yield from self._measure(new, self._working_best() or (None if failed else origin))
        working = [candidate for candidate in batch if self._judge.ok(candidate)]
        if not working:
            working = yield from self._restart(space)
        if not working:
            return None
        best = min(working, key=self._judge.estimate)
        best_so_far = self._working_best()
        if best_so_far and self._judge.estimate(best) > self.options.drop * self._judge.estimate(best_so_far):
            return None
        return origin if origin in working else best

    def _restart(self, space: Space) -> Generator[list[Request], list[Trial], list[Candidate]]:
        """Measures random points, one batch at a time, until some of a batch work. Returns those."""
        tried = 0
        while tried < self.options.restarts:
            batch: dict[Candidate, None] = {}
            for _ in range(20 * self.width):
                candidate = Candidate(space.name, space.sample(self.rng))
                if not self._judge.known(candidate):
                    batch[candidate] = None
                if len(batch) == min(self.width, self.options.restarts - tried):
                    break
            if not batch:
                return []
            tried += len(batch)
            yield from self._measure(list(batch), None)
            working = [candidate for candidate in batch if self._judge.ok(candidate)]
            if working:
                return working
        return []

    def _speculate(
        self, space: Space, previous: Candidate, candidate: Candidate, taken: set[Candidate]
    ) -> list[Candidate]:
        """The neighbourhood of v_s without known candidates and those in `taken` (section 3.4)."""
        beyond = space.beyond if self.options.neighbourhood == "all" else partial(coordinate_beyond, space)
        v_s: Point | None = beyond(previous.point, candidate.point)
        if v_s is None:
            return []
        around = self._neighbours(space, Candidate(space.name, v_s))
        return [neighbour for neighbour in around if not self._judge.known(neighbour) and neighbour not in taken]

    def _measure(
        self, batch: Sequence[Candidate], anchor: Candidate | None
    ) -> Generator[list[Request], list[Trial], None]:
        """Measures and records a batch. If the judge wants it, the batch opens and closes with the anchor."""
        if self._judge.brackets and anchor is not None:
            batch = [anchor, *(candidate for candidate in batch if candidate != anchor)]
        trials = yield [Request(candidate, self.options.repeats) for candidate in batch]
        # The second request of the anchor depends on the first one: if the anchor failed, it may have cost a timeout.
        if self._judge.brackets and anchor is not None and trials[0].ok:
            trials += yield [Request(anchor, self.options.repeats)]
        self._judge.record(trials, anchor)
        if self._model is not None:
            self._model.record(trials)

    def _neighbours(self, space: Space, candidate: Candidate) -> list[Candidate]:
        around = space.neighbours if self.options.neighbourhood == "all" else partial(coordinate_neighbours, space)
        return [Candidate(space.name, point) for point in around(candidate.point)]

    def _origin(self, space: Space) -> Candidate:
        return Candidate(space.name, space.origin if self.options.origin == "default" else lowest(space))

    def _working_best(self) -> Candidate | None:
        """The best so far, or None if it failed when it was measured again beside a later sketch."""
        return self.best if self.best is not None and self._judge.ok(self.best) else None
