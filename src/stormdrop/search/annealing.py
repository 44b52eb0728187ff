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

- *Transfer* (`transfer`; NoSE paper, footnote 2; AutoTVM's `load_history`): see below.
- *Features* are the knobs' encodings unless others are given. AutoTVM's default describes loops.
- *Several sketches*: a chain stays in the sketch in which it starts. Chains start at points drawn from the union of
  all spaces.
- *Starts* are measured first, and the first chains begin there.
- *The objective* "pack-sum" is Ansor's.
- *The end*: the search finishes when every point was measured. It never is `converged`.

With `transfer`, what the kernels of a neural network that were tuned before have measured trains a base model, when
this kernel's first batch is asked for. That batch is planned by the base, and each later model corrects it
(`surrogate.transferred_trees`). A kernel's turn is its share of the trials, so that kernels are tuned one after the
other. As in AutoTVM, there is no base with fewer than 500 candidates. It needs features that are the same for all
kernels: Ansor's, by `--features statements`. With others, and for a kernel alone, it does nothing. Here too, something
differs from AutoTVM:

- *Who teaches*: all kernels of the network. AutoTVM takes those of the same template with as many loops.
- *Targets* are throughputs as shares of the best one of the same kernel, because a search does not know a kernel's
  operations. AutoTVM has FLOP/s as shares of the best of all kernels.
- *Records*: kernels that records answer teach nothing. AutoTVM reads the log of the earlier kernels.
- *The number of trees* of the base is that of the others. AutoTVM has up to 400 for it.
- *A resumed search* learns from all its recorded trials at once, and from the kernels that run before it. It may ask
  for other candidates than the interrupted one would have. Two runs with the same seed and the same measurements of
  all kernels, in the same order, ask for the same candidates.

A round scores up to 64,000 points. With the knobs' encodings, a request costs 2 to 5 ms of one core in the spaces of
kernels, also after 1,000 trials. It costs up to 20 ms if a list of points leaves 1% of the combinations.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from ..surrogate.boosted import BoostedTrees, TreeObjective
from ..surrogate.transferred_trees import TransferredTrees
from ..trial import Candidate, Request, Trial
from .common_model import MOST, CommonCostModel
from .contract import GeneratorSearch, Options, Steps, later, limited
from .parts.chains import Chains, Rows
from .parts.cost_model import TrainingSet
from .random import draws, exhausted

Array = NDArray[np.float64]

OBJECTIVES: tuple[str, ...] = get_args(TreeObjective)

_TEACHERS = 500  # candidates of other kernels without which there is no transfer, as in AutoTVM


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
        transfer: Whether the kernels of a network that were tuned before teach a base model.

    Raises:
        SearchError: The objective is unknown, or a value is out of its range.
    """

    objective: str = limited("rank", among=OBJECTIVES)
    plan_size: int = limited(64, ge=1)
    epsilon: float = limited(0.05, ge=0, le=1)
    diversity_filter_ratio: float | None = limited(None, ge=1, lt=math.inf)
    chains: int = limited(128, ge=1)
    iterations: int = limited(500, ge=1)
    early_stop: int = limited(50, ge=1)
    temperature: float = limited(1.0, gt=0, lt=math.inf)
    repeats: int = limited(3, ge=1)
    mean: bool = later(False)
    transfer: bool = later(False)


class Annealing(GeneratorSearch):
    """AutoTVM's simulated annealing over boosted trees; the module states the deviations.

    Without `knowledge.features`, its model sees the knobs' encodings. The constructor takes the arguments of
    `GeneratorSearch`.
    """

    name = "annealing"
    Options = AnnealingOptions
    options: AnnealingOptions

    @property
    def turn(self) -> int | None:
        """With transfer, all of a kernel's share of the trials: AutoTVM tunes one kernel after the other."""
        network = self.knowledge.network
        if self._others is None or network.trials is None:
            return None
        return max(1, network.trials // network.kernels)

    def note(self, trials: Sequence[Trial]) -> None:
        """Lets kernels whose turn comes later learn from all trials, also from those of the last batch."""
        if self._others is not None:
            self._known.record(trials)

    def steps(self) -> Steps:
        """One batch per round."""
        o, known = self.options, self._known
        base = self._base()
        if self._others is not None:  # an interrupted run that is resumed has trials already: they are all learnt from
            self._early.clear()
        starts = [start for start in self.knowledge.starts if start not in known.measured]
        taken = {*starts, *known.measured}
        fresh = draws(self.spaces, self.rng, taken)
        first = base is None and not known.measured
        batch = [*starts, *islice(fresh, max(o.plan_size - len(starts), 0) if first else 0)]
        begun = self.knowledge.starts
        chain_starts = [*begun, *islice(draws(self.spaces, self.rng, set(begun)), o.chains)]
        chains = Chains(self.spaces, chain_starts[: o.chains], self.knowledge.features)
        model = TransferredTrees(BoostedTrees(self.rng, objective=cast(TreeObjective, o.objective)), base)
        if not first:
            batch += self._next(model, chains, taken, fresh, max(o.plan_size - len(starts), 0))
        while batch:
            trials = yield [Request(candidate, o.repeats) for candidate in batch]
            known.record(trials)
            if exhausted(self.spaces, taken):
                return
            batch = self._next(model, chains, taken, fresh, o.plan_size)

    @property
    def _others(self) -> CommonCostModel | None:
        """Where the other kernels of the network are found; None without transfer."""
        return self.knowledge.network.cost_model if self.options.transfer else None

    @cached_property
    def _known(self) -> TrainingSet:
        known = TrainingSet(self.features, self.options.mean)
        if self._others is not None:
            self._others.join(known)
        return known

    def _base(self) -> BoostedTrees | None:
        """A model of what the other kernels have measured so far; None if that is too little."""
        if self._others is None:
            return None
        features, targets = self._others.training_set(without=self._known)
        if len(targets) < _TEACHERS:
            return None
        base = BoostedTrees(self.rng, objective=cast(TreeObjective, self.options.objective), most=MOST)
        base.fit(features, targets)
        return base

    def _next(
        self, model: TransferredTrees, chains: Chains, taken: set[Candidate], fresh: Iterator[Candidate], n: int
    ) -> list[Candidate]:
        """At most n candidates: those that the model plans, as soon as one of this kernel works, and random ones."""
        known = self._known
        plan: list[Candidate] = []
        if known.best:
            model.fit(known.training_rows(), np.array(list(known.measured.values())))
        if known.best or not known.measured:  # without trials, the base plans
            plan = self._plan(model, chains, taken)[:n]
        taken.update(plan)
        return [*plan, *islice(fresh, n - len(plan))]

    def _plan(self, model: TransferredTrees, chains: Chains, taken: Set[Candidate]) -> list[Candidate]:
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

    def offer(self, scores: Array, rows: list[Rows], chains: Chains) -> bool:
        """Considers the chains' `rows` with these scores. Returns whether any of them is among the best now."""
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
