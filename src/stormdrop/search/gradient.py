"""Dynamic gradient descent: walks downhill through n-hop neighbourhoods, three measurements at a time.

Source: the AF-DS paper, section 5 and Figure 9; `_walk` is the loop of DGD_Search, `_move` is DGD_Move.

1) A cost model, that of `evolutionary`, is trained with 64 random candidates.
2) From the current point, the candidates within n = 1 hops are ranked by the model. A window of three slides down the
   ranking and is measured. As soon as the best of a window is faster than the current point, the walk moves there.
3) Two early stops, of 0.6 both: the ranking ends at candidates whose score is below that share of the current point's
   score; the window stops sliding when the best in it is below that share of the best throughput so far.
4) Without a move, n grows up to 3 hops. The model is trained with what was measured.
5) Where no candidate within 3 hops is faster, a walk begins at a new point.

With `knowledge.features` giving Ansor's 164 per statement it is Ansor-DS, with the seven of section 4.1 Ansor-AF-DS;
with the knobs' encodings it is the algorithm alone.

What the paper leaves open, or where this differs from it:

- *Where walks begin*: at the five best of the first 64, as in the authors' code, then at random points, as in the
  figure. The 64 and the random points are drawn from all sketches, each with equal probability; a walk stays within
  the sketch of its origin. So the sketches share the first five walks by merit and the later ones evenly. Starts are
  among the first candidates and begin walks where they are among the best.
- *A hop* is a step of the space's neighbourhood: constraints are stepped over, two hops may be in the same knob, and a
  tile has exchange steps, too (`space/tile.py`).
- *Candidates*: the paper ranks all within n hops, C(m, n) 2^n at exactly n hops in m dimensions. Here a round scores at
  most `candidates`, a random part where there are more; the default holds all within three hops of 12 dimensions.
- *The ranking* leaves out what cannot be moved to: failures, points that are known to be no faster, and those that a
  walk has left. Of a window, what is known is not measured again, but competes.
- *A window* holds three that pass the threshold, the last one what remains; the figure measures full windows alone.
- *The score of the current point* is the model's (the figure's `scores[0]`), its performance is measured.
- *Training* after every move would make the time per evaluation grow with the trials. It takes place before a ranking
  (so between one n and the next too) if they have grown by 2%: by one window, up to 150 of them. `BoostedTrees` bounds
  the training set, at 4,000.
- *Until a candidate works* there is nothing to train with, and random ones are measured one by one.
- *The end*: when every point was measured. The paper ends by its budget alone, so the search never is `converged`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ..errors import SearchError
from ..space import Space
from ..trial import Candidate, Point, Request, Trial
from .contract import AnyOptions, GeneratorSearch, Knowledge, Options, Steps
from .evolutionary import CostModel, unmeasured

# Share by which the number of trials grows before the model is trained again.
_GROWTH = 0.02


@dataclass(frozen=True)
class GradientOptions(Options):
    """Raises `SearchError` for a value that makes no sense.

    samples             random candidates of the first model
    origins             how many of them, the best, begin walks before random points do
    hops                the hop threshold: the largest n
    window              candidates that are measured before the next decision
    score_threshold     what a candidate's score must reach, as a share of the current point's
    measure_threshold   what the best throughput of a window must reach, as a share of the best so far
    candidates          scored per round (one n of one point), at most; the paper scores all
    repeats             samples per candidate
    """

    samples: int = 64
    origins: int = 5
    hops: int = 3
    window: int = 3
    score_threshold: float = 0.6
    measure_threshold: float = 0.6
    candidates: int = 2048
    repeats: int = 3

    def __post_init__(self) -> None:
        for name in ("samples", "hops", "window", "candidates", "repeats"):
            if getattr(self, name) < 1:
                raise SearchError(f"gradient's {name} must be at least 1, not {getattr(self, name)}")
        if self.origins < 0:
            raise SearchError(f"gradient's origins must be at least 0, not {self.origins}")
        for name in ("score_threshold", "measure_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise SearchError(f"gradient's {name} must be from 0 to 1, not {getattr(self, name)}")


class Gradient(GeneratorSearch):
    """See the module."""

    name = "gradient"
    Options = GradientOptions
    options: GradientOptions

    def __init__(
        self,
        spaces: Sequence[Space],
        rng: np.random.Generator,
        options: AnyOptions | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:
        super().__init__(spaces, rng, options, knowledge)
        self._model = CostModel(self.features, rng)
        self._trained = 0  # with how many trials
        self._taken = set(self.knowledge.starts)
        self._left: set[Candidate] = set()

    def steps(self) -> Steps:
        """A batch of random candidates; then windows of a walk, and random points one by one."""
        o = self.options
        fresh = unmeasured(self.spaces, self.rng, self._taken)
        starts = list(self.knowledge.starts)
        first = starts + list(islice(fresh, max(o.samples - len(starts), 0)))
        yield from self._measure(first)
        speeds = self._model.measured
        for origin in sorted(first, key=lambda candidate: -speeds[candidate])[: o.origins]:
            if speeds[origin] and origin not in self._left:
                yield from self._walk(origin)
        for origin in fresh:
            yield from self._measure([origin])
            if speeds[origin]:
                yield from self._walk(origin)

    def _walk(self, origin: Candidate) -> Steps:
        """From a candidate that works to one that no candidate within `hops` is seen to beat."""
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
        """The points within 1, 2, ... hops; beyond one, a random part where there are more than `candidates`."""
        seen = {point: None}
        rim = [point]
        for _ in range(self.options.hops):
            ring: dict[Point, None] = {}
            for i in self.rng.permutation(len(rim)).tolist():
                ring.update((p, None) for p in space.neighbours(rim[i]) if p not in seen)
                if len(ring) >= self.options.candidates:
                    break
            rim = list(ring)
            seen.update(ring)
            yield list(seen)[1:]

    def _move(
        self, current: Candidate, candidates: Sequence[Candidate]
    ) -> Generator[list[Request], list[Trial], Candidate | None]:
        """Figure 9b: the first candidate that is seen to be faster, the best of its window; None where none is."""
        o, speeds = self.options, self._model.measured
        eligible = [c for c in candidates if speeds.get(c, np.inf) > speeds[current] and c not in self._left]
        if len(eligible) > o.candidates:
            eligible = [eligible[i] for i in self.rng.choice(len(eligible), o.candidates, replace=False).tolist()]
        if not eligible:
            return None
        if len(speeds) >= (1 + _GROWTH) * self._trained:
            self._model.train()
            self._trained = len(speeds)
        base_score, *scores = self._model.scores([current, *eligible]).tolist()
        score_threshold = o.score_threshold * base_score
        measure_threshold = o.measure_threshold * self._model.best
        order = sorted(range(len(eligible)), key=lambda i: -scores[i])
        ranking = [eligible[i] for i in order if scores[i] >= score_threshold]
        for i in range(0, len(ranking), o.window):
            window = ranking[i : i + o.window]
            unknown = [candidate for candidate in window if candidate not in speeds]
            if unknown:
                yield from self._measure(unknown)
            best = max(window, key=speeds.__getitem__)
            if speeds[best] > speeds[current]:
                return best
            if speeds[best] < measure_threshold:
                return None
        return None

    def _measure(self, candidates: Sequence[Candidate]) -> Steps:
        self._taken.update(candidates)
        trials = yield [Request(candidate, self.options.repeats) for candidate in candidates]
        self._model.record(trials)
