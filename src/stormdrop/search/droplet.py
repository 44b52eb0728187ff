"""Droplet Search: coordinate descent from the canonical schedule, until no neighbour is statistically faster.

Source: the Droplet Search paper, section 3 and Figure 4; the names in `_descend` are the figure's. What the
paper leaves open, or where the default differs from it:

- *Which test.* `test="student"` is the paper's (section 3.3), "rank" its footnote's, "none" compares means.
  The default, "ours", re-measures the incumbent beside its challengers (`judge.SharedBatches`).
- *The first batch* is the origin together with its neighbours, without speculation: there is no direction yet.
- *Speculation* fills a batch up to the driver's width n (the figure's num_threads) from the neighbourhood of
  v_s, the point after the last move continued (section 3.4). A move to a point that differs in several knobs,
  which speculation makes possible, is continued in the first knob that can be.
- *Known points* are never asked again as new ones, but stay targets: a neighbour that an earlier batch measured
  by speculation competes with those of this batch. Former incumbents do not.
- *Failures* are never moved to. If the origin fails, the search goes on from its best neighbour; if all fail,
  from the first random point that works, out of at most `restarts`; if none does, the sketch is given up.
- *Several starts* are measured together, before anything else; the best of a sketch replaces its origin.
- *Several sketches* are descended one after the other, each from its origin. A sketch is dropped after its first
  batch if the best of it takes more than `drop` times the time of the best so far. The end of a later sketch
  replaces the best so far only if the test finds it faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import SearchError, hint
from ..space import Space
from ..trial import Candidate, Request, Trial
from .contract import AnyOptions, GeneratorSearch, Knowledge, Options, Steps
from .judge import Judge, judge, least_repeats

TESTS = ("ours", "student", "rank", "none")


@dataclass(frozen=True)
class DropletOptions(Options):
    """Raises `SearchError` for a value that makes no sense.

    test            "ours", "student", "rank" or "none"
    confidence      of a move, one-sided
    repeats         samples per request
    speculation     whether batches are filled up to the driver's width
    max_iterations  per sketch; None is no limit
    contests        "ours" only: how often a decision may ask for more samples
    restarts        random points to try where the origin and all its neighbours fail
    drop            times slower than the best so far, at which a sketch is dropped
    """

    test: str = "ours"
    confidence: float = 0.95
    repeats: int = 3
    speculation: bool = True
    max_iterations: int | None = None
    contests: int = 8
    restarts: int = 64
    drop: float = 2.0

    def __post_init__(self) -> None:
        if self.test not in TESTS:
            raise SearchError(f"droplet has no test {self.test!r}; {hint(self.test, TESTS)}")
        if not 0.5 <= self.confidence < 1:
            raise SearchError(f"droplet's confidence must be at least 0.5 and below 1, not {self.confidence}")
        if self.repeats < 1 or self.contests < 0 or self.restarts < 0 or not 1 <= self.drop < math.inf:
            raise SearchError("droplet needs repeats >= 1, contests >= 0, restarts >= 0 and drop >= 1")
        if self.max_iterations is not None and self.max_iterations < 1:
            raise SearchError(f"droplet's max_iterations must be at least 1, not {self.max_iterations}")
        if self.test == "rank" and self.repeats < (least := least_repeats(self.confidence)):
            raise SearchError(
                f"droplet's rank test can never accept with {self.repeats} samples at confidence {self.confidence}; "
                f"use repeats={least} or more"
            )


class Droplet(GeneratorSearch):
    """See the module. After the search, `best` is the candidate that it ended at, None if nothing works."""

    name = "droplet"
    Options = DropletOptions
    asks_again = True
    options: DropletOptions

    def __init__(
        self,
        spaces: Sequence[Space],
        rng: np.random.Generator,
        options: AnyOptions | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:
        super().__init__(spaces, rng, options, knowledge)
        o = self.options
        self._judge: Judge = judge(o.test, o.confidence, o.repeats, o.contests)

    def steps(self) -> Steps:
        """One descent per sketch; the best of their ends."""
        starts = list(self.knowledge.starts)
        if len(starts) > 1:
            yield from self._measure(starts, starts[0])
        converged = True
        for origin in self._origins(starts):
            end, by_itself = yield from self._descend(origin)
            converged = converged and by_itself
            if end is None:
                continue
            rival = self._working_best()
            if rival is None or (yield from self._judge.decide([end], rival)) == end:
                self.best = end
        self.converged = converged and self.best is not None

    def _origins(self, starts: Sequence[Candidate]) -> list[Candidate]:
        """One per sketch: its best start, else its origin; sketches with starts first."""
        working = sorted((start for start in starts if self._judge.ok(start)), key=self._judge.estimate)
        first: dict[str, Candidate] = {}
        for origin in [*working, *starts, *(Candidate(space.name, space.origin) for space in self.spaces)]:
            first.setdefault(origin.sketch, origin)
        return list(first.values())

    def _descend(self, origin: Candidate) -> Generator[list[Request], list[Trial], tuple[Candidate | None, bool]]:
        """The figure's `search`. Returns where it ended (None if dropped or given up), and whether by itself."""
        space = self.by_name[origin.sketch]
        candidate = yield from self._first_batch(space, origin)
        if candidate is None:
            return None, True
        previous: Candidate | None = None
        left: set[Candidate] = set()
        for iteration in itertools.count(1):
            around = self._neighbours(space, candidate)
            neighborhood = [c for c in around if not self._judge.known(c)]
            if previous is not None and self.options.speculation:
                room = self.width - len(neighborhood) - (1 if self._judge.brackets else 0)
                neighborhood += self._speculate(space, previous, candidate, {*neighborhood, candidate})[: max(room, 0)]
            if neighborhood:
                yield from self._measure(neighborhood, candidate)
            pool = [c for c in dict.fromkeys([*neighborhood, *around]) if self._judge.ok(c) and c not in left]
            if self._judge.ok(candidate):
                new_candidate = yield from self._judge.decide(pool, candidate)
            else:
                # It failed when it was measured again: anything that works is better.
                new_candidate = min(pool, key=self._judge.estimate, default=None)
            if new_candidate is None:
                return (candidate, True) if self._judge.ok(candidate) else (None, False)
            if iteration == self.options.max_iterations:
                return new_candidate, False
            left.add(candidate)
            previous, candidate = candidate, new_candidate
        raise AssertionError("an endless loop ended")

    def _first_batch(self, space: Space, origin: Candidate) -> Generator[list[Request], list[Trial], Candidate | None]:
        """Measure the origin and its neighbours. Returns where the descent starts, None where it should not."""
        batch = [origin, *self._neighbours(space, origin)]
        new = [candidate for candidate in batch if not self._judge.known(candidate)]
        failed = self._judge.known(origin) and not self._judge.ok(origin)
        if self._judge.brackets and origin not in new and not failed:
            new = [origin, *new]  # one of several starts: it has not been measured beside its neighbours
        if new:
            yield from self._measure(new, self._working_best() or (None if failed else origin))
        working = [candidate for candidate in batch if self._judge.ok(candidate)]
        if not working:
            working = yield from self._restart(space)
        if not working:
            return None
        best = min(working, key=self._judge.estimate)
        rival = self._working_best()
        if rival and self._judge.estimate(best) > self.options.drop * self._judge.estimate(rival):
            return None
        return origin if origin in working else best

    def _restart(self, space: Space) -> Generator[list[Request], list[Trial], list[Candidate]]:
        """Random points, a batch at a time, until some work."""
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
        """The unvisited neighbourhood of v_s (section 3.4)."""
        v_s = space.beyond(previous.point, candidate.point)
        if v_s is None:
            return []
        around = self._neighbours(space, Candidate(space.name, v_s))
        return [c for c in around if not self._judge.known(c) and c not in taken]

    def _measure(
        self, batch: Sequence[Candidate], anchor: Candidate | None
    ) -> Generator[list[Request], list[Trial], None]:
        """Measure and record one batch: `batch`, between two measurements of the anchor where the judge wants them."""
        if self._judge.brackets and anchor is not None:
            batch = [anchor, *(candidate for candidate in batch if candidate != anchor)]
        trials = yield [Request(candidate, self.options.repeats) for candidate in batch]
        # Not asked together with the others: a candidate that just failed may have cost a timeout.
        if self._judge.brackets and anchor is not None and trials[0].ok:
            trials += yield [Request(anchor, self.options.repeats)]
        self._judge.record(trials, anchor)

    @staticmethod
    def _neighbours(space: Space, candidate: Candidate) -> list[Candidate]:
        return [Candidate(space.name, point) for point in space.neighbours(candidate.point)]

    def _working_best(self) -> Candidate | None:
        """The best so far, unless it failed when it was measured again beside a later sketch."""
        return self.best if self.best is not None and self._judge.ok(self.best) else None
