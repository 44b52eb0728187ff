"""The contract of a search: it proposes requests and learns from trials. The loop around it belongs to the caller.

    while (requests := search.ask(n)):
        measurements = measurer.measure(requests)
        search.tell([Trial(request.candidate, m) for request, m in zip(requests, measurements)])

Rules that the conformance suite (`stormdrop.testing.searches`) checks:

- `ask(n)` returns at most n requests, none of which was handed out before. A caller asks with the same n
  throughout: n is also the batch width that a search may fill by speculation.
- `finished` says that there is nothing left to do, because the search converged or is exhausted. An empty list from
  `ask` means the same if all requests that were handed out have their trials. If some are outstanding, it means "tell
  their trials first".
- `tell` accepts trials one by one or together, in the order of their requests.
- Trials of candidates that were not requested yet are kept, and are used as soon as the search would request those
  candidates. So a fresh search with the same seed that is told all recorded trials in order continues with exactly
  the request that the interrupted search would have made next, also in the middle of a batch.
- A failed trial counts as a trial. The search is deterministic for a seed and a sequence of trials.
- The search requests all starts before anything else, each of them once. It survives a start that fails, and refuses
  with `SearchError` a start that is in no space.
- No candidate is requested twice, unless `asks_again` is set and the candidate worked: then for more samples of it.
- On a convex landscape of 216 points without noise, the search comes within one step of the optimum in 216 trials.
- Features may have several rows per candidate. A search ignores knowledge that it does not use.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..errors import SearchError, hint
from ..space import Space
from ..surrogate import Features, knob_encodings
from ..trial import Candidate, Request, Trial

if TYPE_CHECKING:
    from .common_model import CommonCostModel


@runtime_checkable
class Search(Protocol):
    """What the tuning loop needs of a search. A search is not thread-safe: one loop owns it.

    Example:
        >>> from stormdrop.search import create
        >>> from stormdrop.space import Ordinal, Space
        >>> from stormdrop.trial import Measurement, Status, Trial
        >>> space = Space("parabola", [Ordinal("x", range(-8, 9))])
        >>> search = create("droplet", [space], np.random.default_rng(0))
        >>> while requests := search.ask(4):
        ...     for request in requests:
        ...         x = space.config(request.candidate.point)["x"]
        ...         seconds = (1e-3 * (1 + x**2),) * request.repeats
        ...         search.tell([Trial(request.candidate, Measurement(Status.OK, seconds))])
        >>> space.config(search.best.point)
        {'x': 0}
    """

    name: ClassVar[str]
    knowledge: Knowledge

    @property
    def finished(self) -> bool:
        """Whether nothing is left to ask for: the search converged, is exhausted, or is at a limit of its own."""

    @property
    def converged(self) -> bool:
        """Whether it finished because it found no way to improve, not because it ran out of points or iterations."""

    @property
    def best(self) -> Candidate | None:
        """The candidate that the search considers the best, or None if it leaves that decision to the caller."""

    def ask(self, n: int) -> list[Request]:
        """The next requests.

        Args:
            n: The largest number of requests, and the batch width. It must be at least 1.

        Returns:
            At most n requests that were not handed out before. The module says what an empty list means.
        """

    def tell(self, trials: Sequence[Trial]) -> None:
        """Learns from trials, in the order of their requests."""


@runtime_checkable
class TwoPhase(Protocol):
    """A search that first explores and then exploits.

    A caller that shares one budget among many kernels decides how much of it each kernel explores, and when the
    exploration ends.
    """

    @property
    def exploration(self) -> int:
        """The number of candidates to explore, for all kernels together."""

    def allow(self, trials: int) -> None:
        """Allows `trials` more candidates to be explored.

        After them `ask` returns an empty list, without being finished, until more are allowed.
        """

    def exploit(self) -> None:
        """Ends the exploration with what was explored so far, including trials of an earlier run that were told."""


_LATER = "later"


_LIMITS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "above"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "below"),
}


def limited(default: Any, **limits: Any) -> Any:
    """A field of options whose values have limits, unless they are None.

    Args:
        default: Its default.
        limits: `ge`, `gt`, `le` and `lt`, which are numbers and mean what they do in the module `operator`; or
            `among`: all values that are known.
    """
    return field(default=default, metadata=limits)


def later(default: Any, **limits: Any) -> Any:
    """A field of options that older records do not have. Records mention it only if it matters; see `recorded`."""
    return field(default=default, metadata={_LATER: True, **limits})


@dataclass(frozen=True)
class Options:
    """Base class of every search's options: a frozen dataclass of plain values with defaults.

    Args:
        preset: The preset that the values come from, apart from those that were given; see `search.presets`. It is a
            label: `registry.options_with` fills in the values.

    Raises:
        SearchError: A value is beyond the limits of its field.
    """

    preset: str = field(default="default", kw_only=True, metadata={_LATER: True})

    def __post_init__(self) -> None:
        search = type(self).__name__.removesuffix("Options").lower()
        for option in fields(self):
            value, limits = getattr(self, option.name), option.metadata
            if value is None and "None" in str(option.type):
                continue
            if "among" in limits and value not in limits["among"]:
                raise SearchError(f"{search} has no {option.name} {value!r}; {hint(value, map(str, limits['among']))}")
            bounds = [(*_LIMITS[name], bound) for name, bound in limits.items() if name in _LIMITS]
            if not all(holds(value, bound) for holds, _, bound in bounds):
                words = " and ".join(f"{word} {bound}" for _, word, bound in bounds)
                raise SearchError(f"{search}'s {option.name} must be {words}, not {value}")

    def recorded(self) -> dict[str, Any]:
        """The values by name, as records keep them.

        A field that was added later is left out if it and `preset` have their defaults. So what older versions have
        recorded equals what this one records, and their sessions can be resumed.
        """
        values = {option.name: (getattr(self, option.name), option) for option in fields(self)}
        return {
            name: value
            for name, (value, option) in values.items()
            if self.preset != "default" or not option.metadata.get(_LATER) or value != option.default
        }


Prior = Callable[[Sequence[Candidate]], NDArray[np.float64]]
"""Estimates the seconds of n candidates up to a common factor: shape `(n,)`."""


@dataclass(frozen=True)
class Network:
    """What a search may know of the neural network that its kernel belongs to.

    Args:
        kernels: The number of its kernels that can be tuned.
        trials: The trials that they share; None if these are not bounded.
        cost_model: A model that can learn from all kernels; None if their features have different columns.
    """

    kernels: int = 1
    trials: int | None = None
    cost_model: CommonCostModel | None = None


ALONE = Network()
"""A kernel that is tuned for itself."""


@dataclass(frozen=True)
class Knowledge:
    """What a search may be given besides its spaces. All of it is optional.

    Args:
        features: What the search's cost model sees of a candidate; by default the knobs' encodings.
        prior: An estimate that orders candidates before any of them is measured.
        favoured: The share of the candidates that an opening is chosen from, those that the prior favours.
        starts: Candidates to begin with, the best first: those that an explorer found, or the best of similar
            kernels. A search measures them before anything else, and starts from them instead of the origins.
        unit: The numbers that the machine computes together: the lanes of a vector, or the threads of a warp.
        network: The neural network that the kernel belongs to; by default it is tuned alone.
    """

    features: Features | None = None
    prior: Prior | None = None
    favoured: float = 0.5
    starts: tuple[Candidate, ...] = ()
    unit: int | None = None
    network: Network = ALONE


AnyOptions = Options  # inside a search class, `Options` is that class's own


Steps = Generator[list[Request], list[Trial], None]
"""An algorithm: it yields batches, and receives the trials of each batch, one per request and in their order."""


class GeneratorSearch(ABC):
    """A search whose algorithm is a generator of batches. This base class turns it into `ask` and `tell`.

    A subclass sets `name` and `Options`, sets `asks_again` if that is true, and implements `steps`, and `set_up` if it
    keeps something of its own. In `steps`, `self.width` is the n of the caller's `ask`. Before it returns, `steps` sets
    `self.converged` if the search converged, and `self.best` if the search weighs samples itself.

    Args:
        spaces: The spaces to search, one per sketch, with distinct names.
        rng: The source of all randomness.
        options: The search's options; by default `Options()`.
        knowledge: What else is known; by default nothing.

    Raises:
        SearchError: There is no space, two spaces have the same name, or a start is in none of them.
    """

    name: ClassVar[str]
    Options: ClassVar[type[AnyOptions]] = AnyOptions
    asks_again: ClassVar[bool] = False
    """Whether the search requests more samples of candidates that it knows."""
    needs_prior: ClassVar[bool] = False
    """Whether the search is not itself without `knowledge.prior`. A comparison gives it one, and none to the others."""
    can_ask_ahead: ClassVar[bool] = False
    """Whether `steps` works if it receives the trials of a batch only after it has yielded the next one."""

    def __init__(
        self,
        spaces: Sequence[Space],
        rng: np.random.Generator,
        options: AnyOptions | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:
        names = [space.name for space in spaces]
        if not names:
            raise SearchError(f"search {self.name!r} needs at least one space")
        if len(set(names)) != len(names):
            raise SearchError(f"search {self.name!r} got two spaces of the same name: {names}")
        self.spaces = tuple(spaces)
        self.rng = rng
        self.options = options if options is not None else self.Options()
        knowledge = knowledge if knowledge is not None else Knowledge()
        self.knowledge = replace(knowledge, starts=tuple(dict.fromkeys(knowledge.starts)))
        self.by_name = {space.name: space for space in self.spaces}
        for start in self.knowledge.starts:
            if start.sketch not in self.by_name:
                raise SearchError(
                    f"search {self.name!r} cannot start in sketch {start.sketch!r}; its sketches are {names}"
                )
            if not self.by_name[start.sketch].contains(start.point):
                raise SearchError(f"search {self.name!r} cannot start at {start}: it is outside its space")
        self.features = self.knowledge.features or knob_encodings(self.spaces)
        self.width = 1
        self.best: Candidate | None = None
        self.converged = False
        self.finished = False
        self._ahead = False
        self._ended = False  # the algorithm has yielded its last batch
        self._steps: Steps | None = None
        self._former: list[Request] = []  # the batch before, whose trials are still awaited if the search asks ahead
        self._former_trials: list[Trial | None] = []
        self._batch: list[Request] = []
        self._trials: list[Trial | None] = []  # of the batch; None as long as a request has no trial
        self._handed_out = 0  # how many requests of the batch were handed out, in its order
        self._early: defaultdict[Candidate, deque[Trial]] = defaultdict(deque)  # trials that were told before a request
        self.set_up()

    def set_up(self) -> None:  # noqa: B027  most searches need nothing
        """Makes what `steps` needs. The constructor calls it last."""

    @property
    def turn(self) -> int | None:
        """The trials of a kernel's turn, if a caller shares a budget among kernels; None if the caller may choose."""
        return None

    def note(self, trials: Sequence[Trial]) -> None:  # noqa: B027  most searches need nothing here
        """Called with trials as soon as they are told. `steps` receives a batch when the next one is asked for."""

    @abstractmethod
    def steps(self) -> Steps:
        """The algorithm. A yielded batch must not be empty."""

    def ask_ahead(self) -> None:
        """Proposes a batch while the one before it is measured, so that many workers need not wait for the slowest.

        Each batch is then proposed with the trials up to the batch before the last. Which trials have arrived makes no
        difference, so a run can be replayed and resumed as ever. It is called before the first `ask`.

        Raises:
            SearchError: The search needs the trials of each batch before it can propose another.
        """
        if not self.can_ask_ahead:
            raise SearchError(f"search {self.name!r} cannot ask ahead: it needs the trials of each batch")
        self._ahead = True

    def in_batches(self, candidates: Iterable[Candidate], repeats: int) -> Steps:
        """The steps of a search that learns nothing: the candidates in their order, in batches of `self.width`."""
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
            awaited = self._former_trials if self._ahead and not self._ended else self._trials
            if requests or None in awaited or (self._ended and None in self._former_trials):
                return requests
            self._advance()
        return []

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Search.tell`."""
        self.note(trials)
        for trial in trials:
            if not (
                _filled(self._former, self._former_trials, len(self._former), trial)
                or _filled(self._batch, self._trials, self._handed_out, trial)
            ):
                self._early[trial.candidate].append(trial)

    def _hand_out(self, n: int) -> list[Request]:
        """At most n of the next requests of the batch, without those whose trials were told already."""
        requests: list[Request] = []
        while self._handed_out < len(self._batch) and len(requests) < n:
            request = self._batch[self._handed_out]
            early = self._early.get(request.candidate)
            if early:
                self._trials[self._handed_out] = early.popleft()
            else:
                requests.append(request)
            self._handed_out += 1
        return requests

    def _advance(self) -> None:
        """Sends trials to the algorithm and takes its next batch: those of the last batch, or of the one before it."""
        if self._ended:
            self.finished = True
            return
        sent = self._former_trials if self._ahead else self._trials
        try:
            if self._steps is None:
                self._steps = self.steps()
                batch = next(self._steps)
            else:
                batch = self._steps.send([trial for trial in sent if trial is not None])
        except StopIteration:
            batch, self._ended = [], True
        if self._ahead:
            self._former, self._former_trials = self._batch, self._trials
        self._batch, self._trials = batch, [None] * len(batch)
        self._handed_out = 0


def _filled(batch: Sequence[Request], trials: list[Trial | None], handed_out: int, trial: Trial) -> bool:
    """Puts a trial to the first request of a batch that is for its candidate and has none; False if there is none."""
    for index in range(handed_out):
        if trials[index] is None and batch[index].candidate == trial.candidate:
            trials[index] = trial
            return True
    return False
