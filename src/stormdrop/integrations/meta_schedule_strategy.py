"""The searches of stormdrop as search strategies of TVM's MetaSchedule.

    ms.tune_tir(mod, target, work_dir, max_trials_global=256, strategy=storm_strategy())

MetaSchedule generates the design spaces, builds, runs and records; the search is asked and told. Each design space is a
space whose knobs are what its trace samples (`sketches/meta_schedule.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate, PySearchStrategy

from ..errors import SpaceError
from ..search import Search, create
from ..sketches.meta_schedule import schedule_of_trace, space_of_trace
from ..space import Space
from ..trial import Candidate, Measurement, Status, Trial
from ..tuning.options import DEFAULT_SEARCH

_LINE = 300  # characters of an error


def storm_strategy(search: str = DEFAULT_SEARCH, seed: int | None = None, **options: Any) -> Any:
    """A search strategy for `ms.tune_tir`, `ms.tune_tasks` and others that take one.

    A candidate that a postprocessor refuses costs no trial of MetaSchedule's; the search learns that it failed. A
    request for more samples of a candidate is answered with those that are known, because MetaSchedule counts each
    measurement as a trial. Of MetaSchedule's cost model and database nothing is used.

    Args:
        search: The name of the search.
        seed: The seed of everything that is random; by default the task's `rand_state`.
        options: Options of the search, by name.

    Returns:
        The strategy, as an object of TVM.

    Raises:
        SearchError: The search, an option or its value is unknown.

    Example:
        ```python
        from stormdrop.integrations.meta_schedule_strategy import storm_strategy

        strategy = storm_strategy("evolutionary", batch=32)
        # database = ms.tune_tir(mod, target, "work", max_trials_global=256, strategy=strategy)
        ```
    """
    create(search, [Space("check", [])], np.random.default_rng(0), **options)  # refuses what is unknown
    return _strategy(search, seed, options)


def _strategy(search: str, seed: int | None, options: Mapping[str, Any]) -> Any:
    made: Any = _Strategy(search, seed, options)
    return made


@derived_object
class _Strategy(PySearchStrategy):
    """What TVM calls. Its methods have TVM's names."""

    def __init__(self, search: str, seed: int | None, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.settings = search, seed, dict(options)
        self.task: _Task | None = None

    def _initialize_with_tune_context(self, context: Any) -> None:
        self.module, self.target = context.mod, context.target
        self.generator, self.rand_state = context.space_generator, int(context.rand_state)

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: Any,
        database: Any = None,
        cost_model: Any = None,
    ) -> None:
        search, seed, options = self.settings
        rng = np.random.default_rng(self.rand_state % (1 << 32) if seed is None else seed)
        traces = {f"design.{index}": schedule.trace for index, schedule in enumerate(design_spaces)}
        spaces = [space_of_trace(name, self.module, trace.simplified(True)) for name, trace in traces.items()]
        simple = {name: trace.simplified(True) for name, trace in traces.items()}
        self.task = _Task(
            self.module,
            simple,
            list(self.generator.postprocs or ()),
            spaces,
            create(search, spaces, rng, **options),
            int(max_trials),
            int(num_trials_per_iter),
        )

    def post_tuning(self) -> None:
        self.task = None

    def generate_measure_candidates(self) -> Any:
        assert self.task is not None
        schedules = self.task.next_schedules()
        if schedules is None:
            return None
        return [MeasureCandidate(schedule, ArgInfo.from_entry_func(schedule.mod, True)) for schedule in schedules]

    def notify_runner_results(self, measure_candidates: Any, results: Any) -> None:
        assert self.task is not None
        self.task.learn(results)

    def clone(self) -> Any:
        return _strategy(*self.settings)


class _Task:
    """One tuning: the search on the design spaces of a function, and what waits for its results."""

    def __init__(
        self,
        module: Any,
        traces: Mapping[str, Any],
        postprocessors: Sequence[Any],
        spaces: Sequence[Space],
        search: Search,
        trials: int,
        width: int,
    ) -> None:
        self._module, self._traces, self._postprocessors = module, traces, postprocessors
        self._spaces = {space.name: space for space in spaces}
        self._search, self._left, self._width = search, trials, width
        self._known: dict[Candidate, Trial] = {}
        self._waiting: list[Candidate] = []

    def next_schedules(self) -> list[Any] | None:
        """The schedules to measure next.

        Returns:
            The schedules; None if all trials are spent, or if the search has nothing left to try.
        """
        schedules: list[Any] = []
        width = min(self._width, self._left)
        while len(schedules) < width:
            requests = self._search.ask(width - len(schedules))
            if not requests:
                break
            for request in requests:
                candidate = request.candidate
                if candidate in self._known:
                    self._search.tell([self._known[candidate]])
                    continue
                try:
                    schedules.append(self._schedule(candidate))
                    self._waiting.append(candidate)
                except SpaceError as error:
                    self._tell(candidate, Measurement(Status.INSTANTIATION, error=str(error)[:_LINE]))
        self._left -= len(schedules)
        return schedules or None

    def learn(self, results: Sequence[Any]) -> None:
        """Tells the search the results of the schedules that it was given last, in their order."""
        waiting, self._waiting = self._waiting, []
        for candidate, result in zip(waiting, results, strict=True):
            if result.run_secs:
                measurement = Measurement(Status.OK, tuple(float(seconds) for seconds in result.run_secs))
            else:
                lines = str(result.error_msg or "").strip().splitlines() or ["no result"]
                measurement = Measurement(Status.RUNTIME, error=lines[-1][:_LINE])
            self._tell(candidate, measurement)

    def _tell(self, candidate: Candidate, measurement: Measurement) -> None:
        self._known[candidate] = Trial(candidate, measurement)
        self._search.tell([self._known[candidate]])

    def _schedule(self, candidate: Candidate) -> Any:
        config = self._spaces[candidate.sketch].config(candidate.point)
        trace = self._traces[candidate.sketch]
        return schedule_of_trace(candidate.sketch, self._module, trace, config, self._postprocessors)
