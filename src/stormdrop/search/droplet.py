"""Droplet Search: coordinate descent from the canonical schedule, until no neighbour is statistically faster.

Source: the Droplet Search paper, section 3 and Figure 4; the names in `_descend` are the figure's. What the
paper leaves open, or where the default differs from the paper:

- *Which test.* `test="student"` is the paper's (section 3.3), "rank" is that of its footnote, "none" compares means.
  The default, "ours", measures the incumbent again beside its challengers (`judge.SharedBatches`).
- *The first batch* is the origin together with its neighbours, without speculation, because there is no direction yet.
- *Speculation* fills a batch up to the caller's width n (the figure's num_threads) from the neighbourhood of v_s, the
  point that the last move reaches if it is continued (section 3.4). Speculation makes moves possible that change
  several knobs. Such a move is continued in the first of these knobs in which it can be.
- *Known points* are never requested again as new ones, but they remain targets: a neighbour that an earlier batch
  measured by speculation competes with the neighbours of this batch. Former incumbents do not.
- *Failures* are never moved to. If the origin fails, the search continues from its best neighbour. If all neighbours
  fail, it continues from the first random point that works, of at most `restarts`. If none works, the search gives the
  sketch up.
- *Several starts* are measured together, before anything else. The best start of a sketch replaces its origin.
- *Several sketches* are descended one after the other, each from its origin. A sketch is dropped after its first
  batch if its best candidate takes more than `drop` times as long as the best so far. The end of a later descent
  replaces the best so far only if the test finds it faster.
"""

from __future__ import annotations

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
    """The options of `Droplet`.

    Args:
        test: The test that decides a move: "ours", "student", "rank" or "none".
        confidence: The one-sided confidence of a move.
        repeats: Samples per request.
        speculation: Whether batches are filled up to the caller's width.
        max_iterations: The largest number of iterations per sketch; None if there is no limit.
        contests: How often a decision may ask for more samples of two known candidates; for "ours" only.
        restarts: The number of random points to try if the origin and all its neighbours fail.
        drop: A sketch is dropped if its best candidate is so many times slower than the best so far.

    Raises:
        SearchError: A value is out of its range, or the rank test could never accept with so few samples.
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
    """Droplet Search (Droplet Search paper, section 3); the module states the deviations.

    At its end, `best` is the candidate that it reached, or None if no candidate works. The constructor takes the
    arguments of `GeneratorSearch`.
    """

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
        for origin in [*working, *starts, *(Candidate(space.name, space.origin) for space in self.spaces)]:
            first.setdefault(origin.sketch, origin)
        return list(first.values())

    def _descend(self, origin: Candidate) -> Generator[list[Request], list[Trial], tuple[Candidate | None, bool]]:
        """The figure's `search`.

        Returns:
            The candidate at which the descent ended, None if the sketch was dropped or given up; and whether it came
            to its end, which it did not if it reached `max_iterations` or if its incumbent failed.
        """
        space = self.by_name[origin.sketch]
        candidate = yield from self._first_batch(space, origin)
        if candidate is None:
            return None, True
        previous: Candidate | None = None
        left: set[Candidate] = set()
        iteration = 0
        while True:
            iteration += 1
            around = self._neighbours(space, candidate)
            neighborhood = [neighbour for neighbour in around if not self._judge.known(neighbour)]
            if previous is not None and self.options.speculation:
                room = self.width - len(neighborhood) - (1 if self._judge.brackets else 0)
                neighborhood += self._speculate(space, previous, candidate, {*neighborhood, candidate})[: max(room, 0)]
            if neighborhood:
                yield from self._measure(neighborhood, candidate)
            targets = dict.fromkeys([*neighborhood, *around])
            pool = [target for target in targets if self._judge.ok(target) and target not in left]
            if self._judge.ok(candidate):
                new_candidate = yield from self._judge.decide(pool, candidate)
            else:
                # The incumbent failed when it was measured again, so anything that works is better.
                new_candidate = min(pool, key=self._judge.estimate, default=None)
            if new_candidate is None:
                return (candidate, True) if self._judge.ok(candidate) else (None, False)
            if iteration == self.options.max_iterations:
                return new_candidate, False
            left.add(candidate)
            previous, candidate = candidate, new_candidate

    def _first_batch(self, space: Space, origin: Candidate) -> Generator[list[Request], list[Trial], Candidate | None]:
        """Measure the origin and its neighbours.

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
        """Measure random points, one batch at a time, until some of a batch work. Returns those."""
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
        v_s = space.beyond(previous.point, candidate.point)
        if v_s is None:
            return []
        around = self._neighbours(space, Candidate(space.name, v_s))
        return [neighbour for neighbour in around if not self._judge.known(neighbour) and neighbour not in taken]

    def _measure(
        self, batch: Sequence[Candidate], anchor: Candidate | None
    ) -> Generator[list[Request], list[Trial], None]:
        """Measure and record a batch. If the judge wants it, the batch opens and closes with the anchor."""
        if self._judge.brackets and anchor is not None:
            batch = [anchor, *(candidate for candidate in batch if candidate != anchor)]
        trials = yield [Request(candidate, self.options.repeats) for candidate in batch]
        # The second request of the anchor depends on the first one: if the anchor failed, it may have cost a timeout.
        if self._judge.brackets and anchor is not None and trials[0].ok:
            trials += yield [Request(anchor, self.options.repeats)]
        self._judge.record(trials, anchor)

    @staticmethod
    def _neighbours(space: Space, candidate: Candidate) -> list[Candidate]:
        return [Candidate(space.name, point) for point in space.neighbours(candidate.point)]

    def _working_best(self) -> Candidate | None:
        """The best so far, or None if it failed when it was measured again beside a later sketch."""
        return self.best if self.best is not None and self._judge.ok(self.best) else None
