"""DPAnsor: explore for N trials with one search, then exploit the best schedule found with another until it converges.

Source: the DPAnsor paper, section 2.3 (Ansor explores for N trials, the best schedule is given to Droplet Search,
which runs up to convergence) and section 3.4 (other searches in Droplet Search's place). What the paper leaves
open, or what is done differently:

- *The explorer* is any other search; Ansor's own evolution is `evolutionary`. N is 300, the paper's headline budget
  (abstract; Figure 19 gives so many to one kernel); in its whole models they are shared by all kernels.
- *The exploiter* stops after `exploitation` trials if it has not converged: 100, as in sections 3.2 and 3.4. `droplet`
  is given the paper's test here, Student's t with a confidence of 0.95 (Droplet Search paper, section 3.3).
- *Every exploiter starts alike* (Figures 14 and 15): with the one seed as its start and with nothing of its sketch
  measured, failures aside. In the paper's artifact only droplet starts from Ansor's best.
- *The seed* is the candidate with the least median of its samples that never failed. Where there is none the search
  ends, not converged: there is nothing to exploit.
- *Several sketches*: the exploiter works in the seed's sketch alone (section 2.2: Droplet Search cannot leave it).
- *Failures of the exploration are told to the exploiter* and cost nothing again. What worked is measured anew where
  the exploiter asks for it: the seed's own samples are the luckiest of N, and a search that compares within batches
  (`droplet` with "ours") would take samples of another hour for part of its batch. On four recorded GPU spaces it
  cost droplet 4 of 12 trials more than telling it everything but the seed, after 150 of an evolutionary exploration,
  and less than half a trial after 100 random ones; where it ended was the same.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import SearchError
from ..space import Space
from ..trial import Candidate, Request, Trial, within
from . import registry
from .contract import AnyOptions, GeneratorSearch, Knowledge, Options, Search, Steps

Values = tuple[tuple[str, str | int | float | bool | None], ...]
"""Options of a search as pairs of names and values."""


@dataclass(frozen=True)
class DPAnsorOptions(Options):
    """Raises `SearchError` for a value that makes no sense.

    N                   trials of the exploration
    explorer            the search that explores, any but this one
    explorer_options    its options, where they are not its defaults
    exploiter           the search that exploits, any but this one
    exploiter_options   its options; for droplet, those that are not given are the paper's
    exploitation        trials of the exploitation at most; None is no limit

    Both `..._options` also take a mapping, and what JSON makes of pairs; they are kept as sorted pairs.
    """

    N: int = 300
    explorer: str = "evolutionary"
    explorer_options: Values = ()
    exploiter: str = "droplet"
    exploiter_options: Values = ()
    exploitation: int | None = 100

    def __post_init__(self) -> None:
        if self.N < 1:
            raise SearchError(f"dpansor's N must be at least 1, not {self.N}")
        if self.exploitation is not None and self.exploitation < 1:
            raise SearchError(f"dpansor's exploitation must be at least 1, not {self.exploitation}")
        if DPAnsor.name in (self.explorer, self.exploiter):
            raise SearchError("dpansor cannot be its own explorer or exploiter")
        papers = {"test": "student", "confidence": 0.95} if self.exploiter == "droplet" else {}
        object.__setattr__(self, "explorer_options", tuple(sorted(dict(self.explorer_options).items())))
        object.__setattr__(self, "exploiter_options", tuple(sorted({**papers, **dict(self.exploiter_options)}.items())))


class DPAnsor(GeneratorSearch):
    """See the module. With the same seed of `rng`, all exploiters are given the same exploration to begin with.

    `best` and `converged` are the exploiter's. Raises `SearchError` for an option that either search refuses.
    """

    name = "dpansor"
    Options = DPAnsorOptions
    asks_again = True
    options: DPAnsorOptions

    def __init__(
        self,
        spaces: Sequence[Space],
        rng: np.random.Generator,
        options: AnyOptions | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:
        super().__init__(spaces, rng, options, knowledge)
        o = self.options
        exploring, self._exploiting = rng.spawn(2)
        self._explorer = registry.create(o.explorer, self.spaces, exploring, self.knowledge, **dict(o.explorer_options))
        self._exploring = True
        self._allowed: int | None = None  # candidates that may still be explored, where others share in N
        self._exploiter(Candidate(self.spaces[0].name, self.spaces[0].origin))  # refuses bad options now

    @property
    def exploration(self) -> int:
        """See `TwoPhase`: N, that of all together."""
        return self.options.N

    def allow(self, trials: int) -> None:
        """See `TwoPhase`."""
        self._allowed = trials

    def exploit(self) -> None:
        """See `TwoPhase`."""
        self._exploring = False
        del self._batch[self._handed :], self._answers[self._handed :]  # what it would have explored next

    def ask(self, n: int) -> list[Request]:
        """See `Search.ask`; where others share in N, no more than is allowed while it explores."""
        if not self._exploring or self._allowed is None:
            return super().ask(n)
        self.width = n
        while self._exploring and not self.finished and self._allowed > 0:
            requests = self._hand_out(min(n, self._allowed))
            self._allowed -= len(requests)
            if requests or None in self._answers:
                return requests
            self._advance()
        return [] if self._exploring else super().ask(n)

    def steps(self) -> Steps:
        """Exploration, then exploitation."""
        explored = yield from self._driven(self._explorer, lambda: self.options.N if self._exploring else 0)
        self._exploring = False
        # What an earlier run measured and the explorer did not come to ask for: this run goes on where that one was.
        seed = _fastest([*explored, *(trial for trials in self._unasked.values() for trial in trials)])
        if seed is None:
            return
        exploiter = self._exploiter(seed)
        exploiter.tell([trial for trial in explored if not trial.ok])
        yield from self._driven(exploiter, lambda: self.options.exploitation or sys.maxsize)
        self.best, self.converged = exploiter.best, exploiter.converged

    def _exploiter(self, seed: Candidate) -> Search:
        """A fresh search of the seed's space that begins at the seed."""
        o, knowledge = self.options, replace(self.knowledge, starts=(seed,))
        return registry.create(
            o.exploiter, [self.by_name[seed.sketch]], self._exploiting, knowledge, **dict(o.exploiter_options)
        )

    def _driven(self, search: Search, limit: Callable[[], int]) -> Generator[list[Request], list[Trial], list[Trial]]:
        """The trials of a search that is asked until it has nothing more to ask, or for `limit` distinct candidates."""
        trials: list[Trial] = []
        known: set[Candidate] = set()
        while len(known) < limit() and (requests := search.ask(self.width)):
            answers = yield within(requests, known, limit())
            search.tell(answers)
            known.update(trial.candidate for trial in answers)
            trials += answers
        return trials


def _fastest(trials: Sequence[Trial]) -> Candidate | None:
    """The candidate with the least median of all its samples, among those that never failed."""
    failed = {trial.candidate for trial in trials if not trial.ok}
    samples: defaultdict[Candidate, list[float]] = defaultdict(list)
    for trial in trials:
        samples[trial.candidate] += trial.measurement.seconds
    return min((c for c in samples if c not in failed), key=lambda c: statistics.median(samples[c]), default=None)
