"""Dynamic gradient descent: descents through n-hop neighbourhoods, three measurements at a time.

Source: the AF-DS paper, section 5 and Figure 9. `_descend` is the loop of DGD_Search, `_move` is DGD_Move.

1) A cost model, that of `evolutionary`, is trained with 64 random candidates.
2) The model ranks the candidates within n = 1 hops of the current point. A window of three slides down the ranking and
   is measured. As soon as the best of a window is faster than the current point, the descent moves there.
3) There are two early stops with a threshold of 0.6 each. The ranking ends at candidates whose score is below this
   share of the current point's score. The window stops if its best candidate is below this share of the best
   throughput so far.
4) Without a move, n grows up to 3 hops. The model is trained with what was measured.
5) If no candidate within 3 hops is faster, a descent begins at a new point.

If `knowledge.features` gives Ansor's 164 features per statement, this is Ansor-DS; with the seven features of section
4.1, it is Ansor-AF-DS. With the knobs' encodings, it is the algorithm alone.

What the paper leaves open, or where this differs from it. `preset=paper` begins all descents at random points, and
takes hops, rankings, windows and trainings as printed (`printed`, `growth`), apart from what "also printed" says below:

- *Descents begin* at the five best of the first 64 candidates, as in the authors' code, then at random points, as in
  the figure. The 64 and the random points are drawn from all sketches, each with equal probability. A descent stays
  within the sketch of its origin. So the sketches share the first five descents by merit and the later ones evenly.
  Starts are among the first candidates, and descents begin at them if they are among the best.
- *A hop* is a step of the space's neighbourhood: it steps over points that constraints exclude, two hops may be in the
  same knob, and a tile also has exchange steps (`space/tile.py`). Also if printed, the outermost factor of a tile is
  what remains. The paper counts it as a dimension, so its hop along a tile is two there and one here.
- *Candidates*: the paper ranks all within n hops, which are C(m, n) 2^n at exactly n hops in m dimensions. Here a round
  scores at most `candidates`, a random part if there are more. The default holds all within three hops of 12
  dimensions.
- *The ranking* omits candidates that cannot be moved to: failures, points that are known to be no faster, and those
  that a descent has left. A window does not measure its known candidates again, but they compete: also printed.
- *A window* holds three candidates that pass the threshold, and the last window what remains. The figure measures full
  windows only.
- *The score of the current point* is the model's (the figure's `scores[0]`); its performance is measured. The best
  throughput is the best so far; the figure's line 18 replaces it by that of the last window. Both also printed.
- *Training* after every move would make the time per evaluation grow with the trials. The model is trained before a
  ranking, so also between one n and the next, if the trials have grown by 2%: that is by one window as long as there
  are at most 150 trials. `BoostedTrees` bounds the training set at 4,000.
- *Until a candidate works* there is nothing to train with, and random candidates are measured one by one.
- *The end*: the search finishes when every point was measured. The paper ends by its budget alone, so the search never
  is `converged`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ..space import Space, coordinate_hops
from ..trial import Candidate, Point, Request, Trial
from .contract import GeneratorSearch, Options, Steps, later, limited
from .evolutionary import unmeasured
from .parts.cost_model import CostModel


@dataclass(frozen=True)
class GradientOptions(Options):
    """The options of `Gradient`.

    Args:
        samples: Random candidates that train the first model.
        origins: How many of the best of them begin descents before random points do.
        hops: The hop threshold: the largest n.
        window: Candidates that are measured before the next decision.
        score_threshold: What a candidate's score must reach, as a share of the current point's.
        measure_threshold: What the best throughput of a window must reach, as a share of the best so far.
        candidates: The largest number that is scored per round, which is one n of one point; None for all, as
            in the paper.
        repeats: Samples per candidate.
        printed: Whether hops, rankings and windows are those of section 5 and Figure 9 to the letter.
        growth: The share by which the number of trials grows before the model is trained again.
        mean: Whether seconds are the mean of the samples, as in TVM, not their median.

    Raises:
        SearchError: A value is out of its range.
    """

    samples: int = limited(64, ge=1)
    origins: int = limited(5, ge=0)
    hops: int = limited(3, ge=1)
    window: int = limited(3, ge=1)
    score_threshold: float = limited(0.6, ge=0, le=1)
    measure_threshold: float = limited(0.6, ge=0, le=1)
    candidates: int | None = limited(2048, ge=1)
    repeats: int = limited(3, ge=1)
    printed: bool = later(False)
    growth: float = later(0.02, ge=0, lt=np.inf)
    mean: bool = later(False)


class Gradient(GeneratorSearch):
    """Dynamic gradient descent (AF-DS paper, section 5); the module states the deviations.

    Without `knowledge.features`, its cost model sees the knobs' encodings. The constructor takes the arguments of
    `GeneratorSearch`.
    """

    name = "gradient"
    Options = GradientOptions
    options: GradientOptions

    def set_up(self) -> None:
        self._model = CostModel(self.features, self.rng, self.options.mean)
        self._trained = 0  # the number of trials at the last training
        self._taken = set(self.knowledge.starts)
        self._left: set[Candidate] = set()  # candidates at which a descent was

    def steps(self) -> Steps:
        """A batch of random candidates; then the windows of descents, and random points one by one."""
        o = self.options
        fresh = unmeasured(self.spaces, self.rng, self._taken)
        starts = list(self.knowledge.starts)
        first = starts + list(islice(fresh, max(o.samples - len(starts), 0)))
        yield from self._measure(first)
        throughputs = self._model.measured
        for origin in sorted(first, key=lambda candidate: -throughputs[candidate])[: o.origins]:
            if throughputs[origin] and origin not in self._left:
                yield from self._descend(origin)
        for origin in fresh:
            yield from self._measure([origin])
            if throughputs[origin]:
                yield from self._descend(origin)

    def _descend(self, origin: Candidate) -> Steps:
        """From a candidate that works to one for which no faster candidate within `hops` is seen."""
        current: Candidate | None = origin
        while current is not None:
            self._left.add(current)
            following = None
            for points in self._within_hops(self.by_name[current.sketch], current.point):
                candidates = [Candidate(current.sketch, point) for point in points]
                following = yield from self._move(current, candidates)
                if following is not None:
                    break
            current = following

    def _within_hops(self, space: Space, point: Point) -> Iterator[list[Point]]:
        """The points within 1, 2, ... hops. From two hops on, a random part if there are more than `candidates`."""
        if self.options.printed:
            yield from coordinate_hops(space, point, self.options.hops)
            return
        seen = {point: None}
        rim = [point]
        for _ in range(self.options.hops):
            ring: dict[Point, None] = {}
            for index in self.rng.permutation(len(rim)).tolist():
                ring.update((neighbour, None) for neighbour in space.neighbours(rim[index]) if neighbour not in seen)
                if self.options.candidates is not None and len(ring) >= self.options.candidates:
                    break
            rim = list(ring)
            seen.update(ring)
            yield list(seen)[1:]

    def _move(
        self, current: Candidate, candidates: Sequence[Candidate]
    ) -> Generator[list[Request], list[Trial], Candidate | None]:
        """DGD_Move (Figure 9b).

        Returns:
            The best candidate of the first window in which one is faster than the current point, or None.
        """
        o, throughputs = self.options, self._model.measured
        eligible = [
            candidate
            for candidate in candidates
            if o.printed or (throughputs.get(candidate, np.inf) > throughputs[current] and candidate not in self._left)
        ]
        if o.candidates is not None and len(eligible) > o.candidates:
            picked = self.rng.choice(len(eligible), o.candidates, replace=False).tolist()
            eligible = [eligible[index] for index in picked]
        if not eligible:
            return None
        if len(throughputs) > self._trained and len(throughputs) >= (1 + o.growth) * self._trained:
            self._model.train()
            self._trained = len(throughputs)
        base_score, *scores = self._model.scores([current, *eligible]).tolist()
        score_threshold = o.score_threshold * base_score
        measure_threshold = o.measure_threshold * self._model.best
        order = sorted(range(len(eligible)), key=lambda index: -scores[index])
        ranking = [eligible[index] for index in order if scores[index] >= score_threshold]
        # The figure measures full windows only, and none that holds the last candidate (its line 9, i + wd < size).
        end = min(len(ranking), len(eligible) - 1) - o.window + 1 if o.printed else len(ranking)
        for begin in range(0, end, o.window):
            window = ranking[begin : begin + o.window]
            unknown = [candidate for candidate in window if candidate not in throughputs]
            if unknown:
                yield from self._measure(unknown)
            best = max(window, key=throughputs.__getitem__)
            if throughputs[best] > throughputs[current]:
                return best
            if throughputs[best] < measure_threshold:
                return None
        return None

    def _measure(self, candidates: Sequence[Candidate]) -> Steps:
        self._taken.update(candidates)
        trials = yield [Request(candidate, self.options.repeats) for candidate in candidates]
        self._model.record(trials)
