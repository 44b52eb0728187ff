"""Optuna's samplers as searches: `--search optuna:sampler=tpe`.

Source: Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", KDD 2019; the samplers have
papers of their own, which Optuna's documentation names.

Each coordinate of a knob is a parameter of a study in memory: an integer, or a categorical one if the knob's values
have no order. The sampler minimises the logarithm of the median time. What Optuna leaves open, or where this differs:

- *Constraints*: Optuna samples each parameter from its whole range. A proposal outside of the space, or one that is
  known, is replaced by the nearest of `_NEAR` random points that is neither. The study holds the replacement.
- *Batches*: the trials of a batch are running, in Optuna's terms, while the others of the batch are proposed. TPE takes
  what is running for bad ("constant liar", Optuna's default).
- *Failures* are pruned trials without a value: TPE takes them for the worst, others ignore them.
- *Several sketches* are a categorical parameter. The parameters of a sketch exist only in its trials.
- *Starts* come first. It finishes when no point is left, and never is `converged`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import SearchError, one_line
from ...optional_packages import load
from ...space import Categorical, Space
from ...trial import Candidate, Point, Request, Trial
from ..contract import GeneratorSearch, Options, Steps, limited
from ..random import draws

_SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "cmaes": ("CmaEsSampler", {}),
    "gp": ("GPSampler", {"deterministic_objective": False}),
    "nsgaii": ("NSGAIISampler", {}),
    "qmc": ("QMCSampler", {}),
    "random": ("RandomSampler", {}),
    "tpe": ("TPESampler", {}),
}
_LISTED = 2_000  # spaces with at most this many points are listed, so that the nearest point of all is found
_NEAR = 100
_SKETCH = "sketch"


@dataclass(frozen=True)
class OptunaOptions(Options):
    """The options of `OptunaSampler`.

    Args:
        sampler: Optuna's sampler: "cmaes", "gp", "nsgaii", "qmc", "random" or "tpe".
        repeats: Samples per candidate.

    Raises:
        SearchError: The sampler is unknown, or `repeats` is less than 1.
    """

    sampler: str = limited("tpe", among=_SAMPLERS)
    repeats: int = limited(3, ge=1)


class OptunaSampler(GeneratorSearch):
    """A sampler of Optuna as a search; the module states the deviations.

    The constructor takes the arguments of `GeneratorSearch`. It raises `SearchError` if Optuna, or a package that the
    sampler needs, is not installed.
    """

    name = "optuna"
    Options = OptunaOptions
    options: OptunaOptions

    def __init__(self, spaces: Sequence[Space], *arguments: Any, **others: Any) -> None:
        super().__init__(spaces, *arguments, **others)
        self._study = _Study(self.spaces, self.options.sampler, int(self.rng.integers(2**31)))

    def steps(self) -> Steps:
        """Batches of the caller's width; the starts are in the first one."""
        self._taken = set(self.knowledge.starts)
        batch = list(self.knowledge.starts)
        for start in batch:
            self._study.add(start)
        while True:
            while len(batch) < self.width and (candidate := self._next()) is not None:
                batch.append(candidate)
                self._taken.add(candidate)
            if not batch:
                return
            for trial in (yield [Request(candidate, self.options.repeats) for candidate in batch]):
                self._study.tell(trial)
            batch = []

    def _next(self) -> Candidate | None:
        """The next candidate that is new, or None if no point is left."""
        proposed = self._study.propose()
        space = self.by_name[proposed.sketch]
        if proposed not in self._taken and space.contains(proposed.point):
            self._study.take()
            return proposed
        self._study.drop()
        candidate = self._nearest(space, proposed.point) or next(draws(self.spaces, self.rng, set(self._taken)), None)
        if candidate is not None:
            self._study.add(candidate)
        return candidate

    def _nearest(self, space: Space, point: Point) -> Candidate | None:
        """The new point that is nearest by the ranks of coordinates, each as a share of its range."""
        drawn = space.points() if space.bound <= _LISTED else (space.sample(self.rng) for _ in range(_NEAR))
        points = [other for other in dict.fromkeys(drawn) if Candidate(space.name, other) not in self._taken]
        if not points:
            return None
        ranges = np.array([max(size - 1, 1) for knob in space.knobs for size in knob.sizes], dtype=float)
        distances = (np.abs(np.array(points) - np.array(point)) / ranges).sum(axis=1)
        return Candidate(space.name, points[int(np.argmin(distances))])


class _Study:
    """A study in memory, in terms of candidates."""

    def __init__(self, spaces: Sequence[Space], sampler: str, seed: int) -> None:
        self._optuna = optuna = load("optuna", "search 'optuna'", SearchError)
        self._spaces = {space.name: space for space in spaces}
        class_name, settings = _SAMPLERS[sampler]
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # it announces each study otherwise
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                made = getattr(optuna.samplers, class_name)(seed=seed, **settings)
                self._study = optuna.create_study(sampler=made)
        except ImportError as error:
            raise SearchError(f"optuna's sampler {sampler!r} needs another package: {one_line(error)}") from error
        finally:
            optuna.logging.set_verbosity(verbosity)
        self._running: dict[Candidate, Any] = {}

    def propose(self) -> Candidate:
        """The sampler's next point. It may be outside of its space, or known: then `drop` follows."""
        trial = self._study.ask()
        try:
            sketch = next(iter(self._spaces))
            if len(self._spaces) > 1:
                sketch = trial.suggest_categorical(_SKETCH, list(self._spaces))
            point = tuple(self._suggested(trial, *parameter) for parameter in _parameters(self._spaces[sketch]))
        except ImportError as error:
            raise SearchError(f"optuna's sampler needs another package: {one_line(error)}") from error
        self._proposed = Candidate(sketch, point), trial
        return self._proposed[0]

    def take(self) -> None:
        """The point that was proposed is measured."""
        candidate, trial = self._proposed
        self._running[candidate] = trial

    def drop(self) -> None:
        """The point that was proposed is not measured."""
        self._study.tell(self._proposed[1], state=self._optuna.trial.TrialState.FAIL)

    def add(self, candidate: Candidate) -> None:
        """A point that the sampler has not proposed is measured."""
        parameters = _parameters(self._spaces[candidate.sketch])
        params: dict[str, Any] = {name: value for (name, _, _), value in zip(parameters, candidate.point, strict=True)}
        if len(self._spaces) > 1:
            params[_SKETCH] = candidate.sketch
        self._study.enqueue_trial(params)
        self.propose()  # takes the point that waits
        self.take()

    def tell(self, trial: Trial) -> None:
        """A point was measured."""
        running = self._running.pop(trial.candidate)
        if trial.ok:
            self._study.tell(running, math.log(trial.median))
        else:
            self._study.tell(running, state=self._optuna.trial.TrialState.PRUNED)

    @staticmethod
    def _suggested(trial: Any, name: str, size: int, ordered: bool) -> int:
        index = trial.suggest_int(name, 0, size - 1) if ordered else trial.suggest_categorical(name, list(range(size)))
        return int(index)


def _parameters(space: Space) -> list[tuple[str, int, bool]]:
    """The name of each coordinate of a space, the number of its settings, and whether their order means something."""
    return [
        (f"{space.name}.{knob.name}.{index}", size, not isinstance(knob, Categorical))
        for knob in space.knobs
        for index, size in enumerate(knob.sizes)
    ]


SEARCH = OptunaSampler
"""What the registry takes from this module."""
