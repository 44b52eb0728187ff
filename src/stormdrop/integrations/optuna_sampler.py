"""`StormSampler`: the searches of stormdrop as a sampler of Optuna.

    study's trials  ->  trials of a search on a grid of the parameters  ->  the search's next request  ->  parameters

Everything that the sampler knows comes from the study's storage. So several threads and processes may work on one
study, and a study may be continued later: the search is made anew from the trials that are there.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from ..errors import SearchError
from ..search import Knowledge, Search, create, options_of
from ..space import Space
from ..trial import Candidate, Measurement, Request, Status, Trial
from ..tuning.options import DEFAULT_SEARCH
from .optuna_grid import SPACE, point_of, space_of, values_of

if TYPE_CHECKING:
    from optuna.study import Study

_ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
_LARGEST_EXPONENT = 300.0


class StormSampler(BaseSampler):
    """A sampler of Optuna that asks a search of stormdrop.

    The first trial is random, because Optuna learns the parameters from it. Parameters that only some trials have are
    sampled at random, as Optuna's own Gaussian process does. Where the search has nothing better to try, or waits for
    trials that other workers run, a random point that is new takes the turn.

    Differences from Optuna's own samplers: a trial that failed counts as a failure of its point, which is not tried
    again. A float, or an integer with many values, takes one of `levels` values.

    Args:
        search: The name of the search.
        seed: The seed of everything that is random; None for another one each time.
        levels: The number of values of a float without a step, and the largest number of values of any other number.
        noisy: Whether the objective is noisy. Then the search may ask for points again, as it does for kernels.
            Otherwise the known value answers it, which costs no trial.
        width: How many trials run side by side. A search may fill a batch of them by speculation.
        options: Options of the search, by name.

    Raises:
        SearchError: The search, an option or its value is unknown, or `levels` or `width` is too small.

    Example:
        >>> import optuna
        >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
        >>> study = optuna.create_study(sampler=StormSampler(seed=0))
        >>> study.optimize(lambda trial: (trial.suggest_int("x", -20, 20) - 3) ** 2, n_trials=30)
        >>> study.best_params
        {'x': 3}
    """

    def __init__(
        self,
        search: str = DEFAULT_SEARCH,
        *,
        seed: int | None = None,
        levels: int = 65,
        noisy: bool = False,
        width: int = 1,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if levels < 2 or width < 1:
            raise SearchError(f"StormSampler needs levels >= 2 and width >= 1, not {levels} and {width}")
        options = dict(options or {})
        if "repeats" in {field.name for field in dataclasses.fields(options_of(search))}:
            options.setdefault("repeats", 1)
        create(search, [Space("check", [])], np.random.default_rng(0), **options)  # refuses what is unknown
        self._search, self._options = search, options
        self._levels, self._noisy, self._width = levels, noisy, width
        self._seed = seed if seed is not None else int(np.random.default_rng().integers(2**31))
        self._random = RandomSampler(seed=self._seed)
        self._common = IntersectionSearchSpace()
        self._lock = threading.Lock()
        self._state: _State | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The search is left out: it is made anew from the study's trials.
        return {**self.__dict__, "_lock": None, "_state": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def reseed_rng(self) -> None:
        """See `BaseSampler.reseed_rng`."""
        self._random.reseed_rng()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The parameters that all trials have, without those that have a single value."""
        with self._lock:
            common = self._common.calculate(study)
        return {name: distribution for name, distribution in common.items() if not distribution.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The values that the search asks for next."""
        self._raise_error_if_multi_objective(study)
        if not search_space:
            return {}
        with self._lock:
            trials = study.get_trials(deepcopy=False)
            if self._state is None or not self._state.serves(study, search_space, trials):
                self._state = _State(study, search_space, trials, self._levels)
                self._state.search = self._searcher(self._state)
            point = self._next(self._state, trials, trial.number)
            return values_of(self._state.space, search_space, point, self._levels)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A random value."""
        self._raise_error_if_multi_objective(study)
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _searcher(self, state: _State) -> Search:
        """A search that knows the trials of the study: it starts at their points and is told their values at once."""
        starts = tuple(trial.candidate for trial in state.known.values())
        rng = np.random.default_rng([self._seed, len(starts)])
        search = create(self._search, [state.space], rng, Knowledge(starts=starts), **self._options)
        search.tell(list(state.known.values()))
        return search

    def _next(self, state: _State, trials: Sequence[FrozenTrial], number: int) -> tuple[int, ...]:
        """The next point to try."""
        assert state.search is not None
        state.search.tell(state.ended_since(trials))
        running = state.running(trials, number)
        while request := state.request(self._width):
            candidate = request.candidate
            if candidate in state.known and not self._noisy:
                state.search.tell([state.known[candidate]])
            elif candidate not in running:  # else its trial is told when it has ended
                state.handed_out[number] = candidate
                return candidate.point
        rng = np.random.default_rng([self._seed, number])
        for _ in range(100):
            candidate = Candidate(SPACE, state.space.sample(rng))
            if candidate not in state.known and candidate not in running:
                break
        state.handed_out[number] = candidate
        return candidate.point


class _State:
    """A search on the parameters of a study, and the trials that it was told.

    Attributes:
        space: The grid of the parameters.
        search: The search on it.
        known: The trial of each candidate that has ended, as the search was told.
        handed_out: The candidate of each trial of the study that this sampler has given parameters.
    """

    def __init__(
        self,
        study: Study,
        distributions: Mapping[str, BaseDistribution],
        trials: Sequence[FrozenTrial],
        levels: int,
    ) -> None:
        self._study, self._distributions, self._levels = study.study_name, dict(distributions), levels
        self._maximize = study.direction is StudyDirection.MAXIMIZE
        self.space = space_of(distributions, levels)
        self.search: Search | None = None
        self.known: dict[Candidate, Trial] = {}
        self.handed_out: dict[int, Candidate] = {}
        self._told: set[int] = set()
        self._requests: list[Request] = []
        values = [value for trial in trials if (value := self._value(trial)) is not None]
        self._positive = bool(values) and min(values) > 0 and not self._maximize
        self._centre = statistics.fmean(values) if values else 0.0
        self._scale = (statistics.pstdev(values) if values else 0.0) or abs(self._centre) or 1.0
        self.ended_since(trials)
        self._rebuilt_at = len(self._told)

    def serves(
        self, study: Study, distributions: Mapping[str, BaseDistribution], trials: Sequence[FrozenTrial]
    ) -> bool:
        """Whether the search can go on: the parameters are the same, and the scale of the values fits.

        The scale is fixed as long as a search lives. It is learned again whenever there are twice as many trials.
        """
        if self._study != study.study_name or self._distributions != dict(distributions):
            return False
        ended = [trial for trial in trials if trial.state in _ENDED and trial.number not in self._told]
        if self._positive:
            return all((value := self._value(trial)) is None or value > 0 for trial in ended)
        return len(self._told) + len(ended) < max(8, 2 * self._rebuilt_at)

    def request(self, width: int) -> Request | None:
        """The next request of the search, or None if it has none now."""
        assert self.search is not None
        if not self._requests:
            self._requests = self.search.ask(width)
        return self._requests.pop(0) if self._requests else None

    def running(self, trials: Sequence[FrozenTrial], number: int) -> set[Candidate]:
        """The candidates of other trials that run now."""
        running = set()
        for trial in trials:
            if trial.state is TrialState.RUNNING and trial.number != number:
                candidate = self.handed_out.get(trial.number) or self._candidate(trial)
                if candidate is not None:
                    running.add(candidate)
        return running

    def ended_since(self, trials: Sequence[FrozenTrial]) -> list[Trial]:
        """The trials that have ended since the last call, in the order of their numbers."""
        ended = []
        for trial in trials:
            if trial.state not in _ENDED or trial.number in self._told:
                continue
            self._told.add(trial.number)
            candidate = self._candidate(trial) or self.handed_out.get(trial.number)
            self.handed_out.pop(trial.number, None)
            if candidate is not None:
                ended.append(Trial(candidate, self._measurement(trial)))
                self.known[candidate] = ended[-1]
        return ended

    def _candidate(self, trial: FrozenTrial) -> Candidate | None:
        """The point of the grid that is nearest to a trial's parameters; None if it lacks one, or one is outside."""
        point = point_of(self.space, self._distributions, trial.params, self._levels)
        return None if point is None else Candidate(SPACE, point)

    @staticmethod
    def _value(trial: FrozenTrial) -> float | None:
        """The value of a trial that has ended, the last intermediate one of a pruned trial; None if it has none."""
        if trial.state is TrialState.COMPLETE:
            value = trial.value
        elif trial.state is TrialState.PRUNED and trial.intermediate_values:
            value = trial.intermediate_values[max(trial.intermediate_values)]
        else:
            return None
        return value if value is not None and math.isfinite(value) else None

    def _measurement(self, trial: FrozenTrial) -> Measurement:
        """A trial's value as seconds, which are positive and less if the value is better.

        Positive values that are to be small are taken as they are. Others become the exponential of their distance
        from the mean, in standard deviations.
        """
        value = self._value(trial)
        if value is None:
            return Measurement(Status.RUNTIME, error="the trial has no finite value")
        if self._positive:
            return Measurement(Status.OK, (value,))
        worse = (self._centre - value if self._maximize else value - self._centre) / self._scale
        return Measurement(Status.OK, (math.exp(min(max(worse, -_LARGEST_EXPONENT), _LARGEST_EXPONENT)),))
