"""The contract of a search: it proposes requests and learns from trials; the loop belongs to others.

    while (requests := search.ask(n)):
        search.tell([Trial(r.candidate, m) for r, m in zip(requests, measurer.measure(requests))])

Rules that the conformance suite (`stormdrop.testing.searches`) checks:

- `ask(n)` returns at most n requests, none of them handed out before. Every driver asks with the same n
  throughout: it is also the batch width that a search may fill by speculation.
- `finished` says that there is nothing to do: converged or exhausted. An empty list also means "finished" when
  every request handed out has been answered; while answers are outstanding it means "tell me first".
- `tell` accepts trials one by one or together, in the order in which they were asked.
- Trials that were not asked are kept and taken as the answers when the search comes to ask for those candidates.
  So a fresh search with the same seed, told all recorded trials in order, continues with exactly the request
  that the interrupted one would have made next, in the middle of a batch too.
- A failed trial is an answer. The search is deterministic for a seed and a sequence of trials.
- All starts are asked for before anything else, each once; a start that fails is survived, one that is in no space
  is refused with `SearchError`.
- No candidate is asked for again, except for more samples of one that worked, where `asks_again` says so.
- On a convex landscape of 216 points without noise it comes within one step of the optimum in 216 trials.
- Features may have several rows for a candidate; what a search does not use of its knowledge it ignores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..errors import SearchError
from ..space import Space
from ..surrogate import Features, knob_encodings
from ..trial import Candidate, Request, Trial


@dataclass(frozen=True)
class Options:
    """Base of every search's options: a frozen dataclass of plain values with defaults."""


Prior = Callable[[Sequence[Candidate]], NDArray[np.float64]]
"""Estimated seconds of candidates, shape `(n,)`, up to a factor."""


@dataclass(frozen=True)
class Knowledge:
    """What a search may be given beside its spaces, all of it optional.

    features    what its cost model sees of a candidate; without them the knobs' encodings
    prior       orders candidates before any is measured
    starts      candidates to begin with, the best first: an explorer's best, the best of similar kernels. A search
                measures them before anything else and begins there in place of the origins
    """

    features: Features | None = None
    prior: Prior | None = None
    starts: tuple[Candidate, ...] = ()


AnyOptions = Options  # inside a search class, `Options` is that class's own


@runtime_checkable
class Search(Protocol):
    """What the tuning loop needs. Not thread-safe: one loop owns a search."""

    name: ClassVar[str]
    knowledge: Knowledge

    @property
    def finished(self) -> bool:
        """Nothing more to ask: converged, exhausted, or at a limit of its own."""

    @property
    def converged(self) -> bool:
        """It finished because it found no way to improve, and not because it ran out of points or iterations."""

    @property
    def best(self) -> Candidate | None:
        """The candidate that it holds for the best; None where it leaves that to who measures."""

    def ask(self, n: int) -> list[Request]:
        """At most n requests that were not handed out before; see the module for what an empty list means."""

    def tell(self, trials: Sequence[Trial]) -> None:
        """Learn what was observed."""


@runtime_checkable
class TwoPhase(Protocol):
    """A search that explores, then exploits. Whoever shares a budget among many kernels says when, and how much."""

    @property
    def exploration(self) -> int:
        """Candidates to explore, of all kernels together."""

    def allow(self, trials: int) -> None:
        """So many more may be explored; then `ask` has nothing, and is not finished, until more are allowed."""

    def exploit(self) -> None:
        """Ends the exploration with what was explored so far; of an earlier run, too, that was told."""


Steps = Generator[list[Request], list[Trial], None]
"""An algorithm: yields batches and is sent back the trials of each batch, one per request, in order."""


class GeneratorSearch(ABC):
    """A search whose algorithm is a generator of batches; this base turns it into ask and tell.

    A subclass sets `name` and `Options` (and `asks_again` where that holds) and writes `steps`. In `steps`,
    `self.width` is the n that the driver asks with; `self.converged` is set before returning where that is why it
    ends, and `self.best` where the search weighs samples itself.
    """

    name: ClassVar[str]
    Options: ClassVar[type[AnyOptions]] = AnyOptions
    asks_again: ClassVar[bool] = False
    """Whether it asks for more samples of candidates that it knows."""

    def __init__(
        self,
        spaces: Sequence[Space],
        rng: np.random.Generator,
        options: AnyOptions | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:
        """Raises `SearchError` without a space, where two have the same name, and for a start that is in none."""
        names = [space.name for space in spaces]
        if not names:
            raise SearchError(f"search {self.name!r} needs at least one space")
        if len(set(names)) != len(names):
            raise SearchError(f"search {self.name!r} got two spaces of the same name: {names}")
        self.spaces = tuple(spaces)
        self.rng = rng
        self.options = options if options is not None else self.Options()
        given = knowledge if knowledge is not None else Knowledge()
        self.knowledge = replace(given, starts=tuple(dict.fromkeys(given.starts)))
        self.by_name = {space.name: space for space in self.spaces}
        for start in self.knowledge.starts:
            if start.sketch not in self.by_name:
                raise SearchError(f"search {self.name!r} cannot start in sketch {start.sketch!r}: there is {names}")
            if not self.by_name[start.sketch].contains(start.point):
                raise SearchError(f"search {self.name!r} cannot start at {start}: it is outside its space")
        self.features = self.knowledge.features or knob_encodings(self.spaces)
        self.width = 1
        self.best: Candidate | None = None
        self.converged = False
        self.finished = False
        self._steps: Steps | None = None
        self._batch: list[Request] = []
        self._answers: list[Trial | None] = []
        self._handed = 0  # requests are handed out in the order of the batch, so a count says which
        self._unasked: defaultdict[Candidate, deque[Trial]] = defaultdict(deque)

    @abstractmethod
    def steps(self) -> Steps:
        """The algorithm. A yielded batch must not be empty."""

    def in_batches(self, candidates: Iterable[Candidate], repeats: int) -> Steps:
        """Steps of a search that learns nothing: the candidates in their order, in batches of the driver's width."""
        batch: list[Request] = []
        for candidate in candidates:
            batch.append(Request(candidate, repeats))
            if len(batch) == self.width:
                yield batch
                batch = []
        if batch:
            yield batch

    def ask(self, n: int) -> list[Request]:
        """See `Search.ask`. Raises ValueError for n < 1."""
        if n < 1:
            raise ValueError(f"a search is asked for at least one request, not {n}")
        self.width = n
        while not self.finished:
            requests = self._hand_out(n)
            if requests or None in self._answers:
                return requests
            self._advance()
        return []

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Search.tell`."""
        for trial in trials:
            for i in range(self._handed):
                if self._answers[i] is None and self._batch[i].candidate == trial.candidate:
                    self._answers[i] = trial
                    break
            else:
                self._unasked[trial.candidate].append(trial)

    def _hand_out(self, n: int) -> list[Request]:
        """The next requests of the batch, after those that were answered before they were asked."""
        requests: list[Request] = []
        while self._handed < len(self._batch) and len(requests) < n:
            request = self._batch[self._handed]
            known = self._unasked.get(request.candidate)
            if known:
                self._answers[self._handed] = known.popleft()
            else:
                requests.append(request)
            self._handed += 1
        return requests

    def _advance(self) -> None:
        """Send the batch's trials to the algorithm and take its next batch."""
        try:
            if self._steps is None:
                self._steps = self.steps()
                self._batch = next(self._steps)
            else:
                self._batch = self._steps.send([trial for trial in self._answers if trial is not None])
        except StopIteration:
            self._batch, self.finished = [], True
        self._answers = [None] * len(self._batch)
        self._handed = 0
