"""DPAnsor: one search explores for N trials, then another exploits the best schedule found until it converges.

Source: the DPAnsor paper, section 2.3 (Ansor explores for N trials, and Droplet Search starts from the best schedule
and runs until it converges) and section 3.4 (other searches in the place of Droplet Search). What the paper leaves
open, or what is done differently here:

- *The explorer* is any other search; Ansor's own evolution is `evolutionary`. N is 300, the paper's headline budget
  (abstract; Figure 19 gives 300 trials to one kernel). In the paper's whole models all kernels share the N trials.
- *The exploiter* stops after `exploitation` trials if it has not converged: 100, as in sections 3.2 and 3.4. `droplet`
  uses the paper's test here, Student's t with a confidence of 0.95 (Droplet Search paper, section 3.3).
- *Every exploiter starts alike* (Figures 14 and 15): it starts from the one seed, and apart from failures it knows no
  measurement of its sketch. In the paper's artifact only Droplet Search starts from Ansor's best.
- *The seed* is the candidate with the least median of its samples among those that never failed. If there is none,
  the search ends without having converged, because there is nothing to exploit.
- *Several sketches*: the exploiter works in the seed's sketch alone (section 2.2: Droplet Search cannot leave it).
- *Failures of the exploration are told to the exploiter*, so they cost nothing again. Candidates that worked are
  measured anew if the exploiter requests them: the seed's own samples are the luckiest of N, and a search that
  compares within batches (`droplet` with the test "ours") would get samples of another hour for a part of its batch.
  On four recorded GPU spaces, this cost droplet 4 of 12 trials more than telling it everything except the seed after
  150 trials of an evolutionary exploration, and less than half a trial after 100 random ones. Droplet ended at the
  same points.
- *A resumed search* takes its seed from all recorded trials, also from those that its explorer has not requested again.
  The kernels of a model share N, so a resumed one may explore a kernel for longer or shorter than it would have done.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from ..errors import SearchError
from ..trial import Candidate, Request, Trial, within
from . import registry
from .contract import GeneratorSearch, Options, Search, Steps, limited

Values = tuple[tuple[str, str | int | float | bool | None], ...]
"""The options of a search as pairs of names and values."""


@dataclass(frozen=True)
class DPAnsorOptions(Options):
    """The options of `DPAnsor`.

    `explorer_options` and `exploiter_options` also accept a mapping, or the lists that JSON makes of pairs. They are
    kept as sorted pairs.

    Args:
        N: Trials of the exploration.
        explorer: The search that explores: any other than this one.
        explorer_options: The explorer's options that are not its defaults.
        exploiter: The search that exploits: any other than this one.
        exploiter_options: The exploiter's options that are not its defaults. The defaults of droplet's test and
            confidence are the paper's here.
        exploitation: The largest number of trials of the exploitation; None if there is no limit.

    Raises:
        SearchError: A value is out of its range, or this search is to be its own explorer or exploiter.
    """

    N: int = limited(300, ge=1)
    explorer: str = "evolutionary"
    explorer_options: Values = ()
    exploiter: str = "droplet"
    exploiter_options: Values = ()
    exploitation: int | None = limited(100, ge=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if DPAnsor.name in (self.explorer, self.exploiter):
            raise SearchError("dpansor cannot be its own explorer or exploiter")
        papers = {"test": "student", "confidence": 0.95} if self.exploiter == "droplet" else {}
        # A round of Ansor has min(64, K / L) candidates (section 3); the K trials are the N of this search.
        rounds = {"K": self.N} if self.preset == "paper" and self.explorer == "evolutionary" else {}
        object.__setattr__(self, "explorer_options", tuple(sorted({**rounds, **dict(self.explorer_options)}.items())))
        object.__setattr__(self, "exploiter_options", tuple(sorted({**papers, **dict(self.exploiter_options)}.items())))


class DPAnsor(GeneratorSearch):
    """DPAnsor (DPAnsor paper, section 2.3), a `TwoPhase` search; the module states the deviations.

    `best` and `converged` are the exploiter's. With the same seed of `rng`, all exploiters start after the same
    exploration.

    Args:
        spaces: The spaces to search, one per sketch.
        rng: The source of all randomness.
        options: The search's options.
        knowledge: What else is known. Both searches receive it; only the explorer receives the starts.

    Raises:
        SearchError: Either search refuses one of its options, or see `GeneratorSearch`.
    """

    name = "dpansor"
    Options = DPAnsorOptions
    asks_again = True
    options: DPAnsorOptions

    def set_up(self) -> None:
        o = self.options
        explorer_rng, self._exploiter_rng = self.rng.spawn(2)
        self._explorer = registry.create(
            o.explorer, self.spaces, explorer_rng, self.knowledge, **dict(o.explorer_options)
        )
        self._exploring = True
        self._allowed: int | None = None  # candidates that may still be explored, if several kernels share N
        # Built only so that bad options of the exploiter are refused now and not after the exploration.
        self._exploiter(Candidate(self.spaces[0].name, self.spaces[0].origin))

    @property
    def exploration(self) -> int:
        """See `TwoPhase`: N, which is the total of all kernels."""
        return self.options.N

    @property
    def turn(self) -> int | None:
        """The explorer's, but no more than a kernel's share of N: it is the exploration that kernels share."""
        turn = self._explorer.turn if isinstance(self._explorer, GeneratorSearch) else None
        return None if turn is None else min(turn, max(1, self.options.N // self.knowledge.network.kernels))

    def allow(self, trials: int) -> None:
        """See `TwoPhase.allow`."""
        self._allowed = trials

    def exploit(self) -> None:
        """See `TwoPhase.exploit`."""
        self._exploring = False
        del self._batch[self._handed_out :], self._trials[self._handed_out :]  # what it would have explored next

    def ask(self, n: int) -> list[Request]:
        """See `Search.ask`. While it explores, it asks for no more candidates than `allow` permits."""
        if not self._exploring or self._allowed is None:
            return super().ask(n)
        self.width = n
        while self._exploring and not self.finished and self._allowed > 0:
            requests = self._hand_out(min(n, self._allowed))
            self._allowed -= len(requests)
            if requests or None in self._trials:
                return requests
            self._advance()
        return [] if self._exploring else super().ask(n)

    def note(self, trials: Sequence[Trial]) -> None:
        """See `GeneratorSearch.note`."""
        if self._exploring and isinstance(self._explorer, GeneratorSearch):
            self._explorer.note(trials)

    def steps(self) -> Steps:
        """Exploration, then exploitation."""
        explored = yield from self._driven(self._explorer, lambda: self.options.N if self._exploring else 0)
        self._exploring = False
        # An earlier run may have measured candidates that the explorer of this run did not request yet. With them this
        # run continues where that one was.
        seed = _fastest([*explored, *(trial for trials in self._early.values() for trial in trials)])
        if seed is None:
            return
        exploiter = self._exploiter(seed)
        exploiter.tell([trial for trial in explored if not trial.ok])
        yield from self._driven(exploiter, lambda: self.options.exploitation or sys.maxsize)
        self.best, self.converged = exploiter.best, exploiter.converged

    def _exploiter(self, seed: Candidate) -> Search:
        """A new search of the seed's space that starts from the seed."""
        o, knowledge = self.options, replace(self.knowledge, starts=(seed,))
        return registry.create(
            o.exploiter, [self.by_name[seed.sketch]], self._exploiter_rng, knowledge, **dict(o.exploiter_options)
        )

    def _driven(self, search: Search, limit: Callable[[], int]) -> Generator[list[Request], list[Trial], list[Trial]]:
        """Runs a search until it has no more requests, or for at most `limit()` distinct candidates.

        Returns:
            All its trials.
        """
        trials: list[Trial] = []
        known: set[Candidate] = set()
        while len(known) < limit() and (requests := search.ask(self.width)):
            batch = yield within(requests, known, limit())
            search.tell(batch)
            known.update(trial.candidate for trial in batch)
            trials += batch
        return trials


def _fastest(trials: Sequence[Trial]) -> Candidate | None:
    """The candidate with the least median of all its samples, among those that never failed."""
    failed = {trial.candidate for trial in trials if not trial.ok}
    samples: defaultdict[Candidate, list[float]] = defaultdict(list)
    for trial in trials:
        samples[trial.candidate] += trial.measurement.seconds
    working = [candidate for candidate in samples if candidate not in failed]
    return min(working, key=lambda candidate: statistics.median(samples[candidate]), default=None)
