"""The searches of stormdrop as strategies of Kernel Tuner.

    tune_kernel(..., strategy=StormStrategy(), strategy_options={"max_fevals": 200})

Kernel Tuner builds, checks and measures the kernels, on a device or in its simulation mode. The search is asked and
told. An input file of Kernel Tuner (T1) names this file as `custom_search_method_path` and `StormStrategy` as strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from kernel_tuner.searchspace import Searchspace
from kernel_tuner.strategies.common import CostFunc
from kernel_tuner.strategies.wrapper import OptAlg, OptAlgWrapper

from stormdrop.compare.kernel_tuner import FAILURES, knob_of
from stormdrop.errors import SpaceFileError
from stormdrop.search import create
from stormdrop.space import Constraint, Space
from stormdrop.trial import Candidate, Measurement, Status, Trial
from stormdrop.tuning.options import DEFAULT_SEARCH

_SPACE = "kernel"


class StormStrategy(OptAlg):
    """A strategy of Kernel Tuner that asks a search of stormdrop.

    The space is what Kernel Tuner's restrictions leave. The search sees all samples of a configuration if the objective
    is the time, and how a configuration failed. Kernel Tuner measures no configuration twice, so a request for more
    samples is answered with those that are known. The strategy ends with Kernel Tuner's budget, or when the search has
    nothing better to try.

    Args:
        search: The name of the search.
        seed: The seed of everything that is random.
        width: How many configurations the search is asked for at a time.
        options: Options of the search, by name.

    Raises:
        SearchError: When the tuning begins: the search, an option or its value is unknown.
        SpaceFileError: When the tuning begins: a parameter has values that are neither numbers nor text.

    Example:
        ```python
        from stormdrop.integrations.kernel_tuner_strategy import StormStrategy

        settings = {"strategy": StormStrategy(seed=1), "strategy_options": {"max_fevals": 100}}
        # results, env = kernel_tuner.tune_kernel("matmul", source, size, arguments, tune_params, **settings)
        ```
    """

    def __init__(
        self,
        search: str = DEFAULT_SEARCH,
        seed: int = 0,
        width: int = 8,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.search, self.seed, self.width, self.options = search, seed, width, dict(options or {})

    def tune(self, searchspace: Searchspace, runner: Any, tuning_options: Any) -> Any:
        """What `tune_kernel` calls. Its budget ends the tuning."""
        return OptAlgWrapper(self).tune(searchspace, runner, tuning_options)

    def __call__(self, func: CostFunc, searchspace: Searchspace) -> tuple[tuple[Any, ...], float]:
        """Searches until the budget is spent, or the search has finished.

        Returns:
            The best configuration and its cost.
        """
        space = _space(searchspace)
        search = create(self.search, [space], np.random.default_rng(self.seed), **self.options)
        known: dict[Candidate, Trial] = {}
        costs: dict[tuple[Any, ...], float] = {}
        while requests := search.ask(self.width):
            new = list(dict.fromkeys(request.candidate for request in requests if request.candidate not in known))
            configs = [tuple(space.config(candidate.point).values()) for candidate in new]
            before = len(func.results)
            if configs:
                costs.update(zip(configs, func.eval_all(configs, check_restrictions=False), strict=True))
            for candidate, result in zip(new, func.results[before:], strict=True):
                known[candidate] = Trial(candidate, _measurement(result, func))
            search.tell([known[request.candidate] for request in requests])
        best = min(costs, key=costs.__getitem__)
        return best, costs[best]


def _space(searchspace: Searchspace) -> Space:
    """What Kernel Tuner's restrictions leave of its parameters."""
    params = searchspace.tune_params
    try:
        knobs = [knob_of(name, list(dict.fromkeys(values))) for name, values in params.items()]
    except ValueError as error:
        raise SpaceFileError(f"Kernel Tuner's parameters: {error}") from error
    return Space(_SPACE, knobs, [Constraint.one_of(list(params), searchspace.list)])


def _measurement(result: Mapping[str, Any], func: CostFunc) -> Measurement:
    """A result of Kernel Tuner. What is to be large counts by its inverse."""
    if "__error__" in result:
        name = type(result["__error__"]).__name__
        return Measurement(FAILURES.get(name, Status.UNKNOWN), error=name)
    objective = func.objective[0]
    samples = result["times"] if objective == "time" and result.get("times") else [result[objective]]
    values = [float(sample) for sample in samples]
    if not min(values) > 0:
        return Measurement(Status.WRONG_ANSWER, error=f"{objective} is not positive: {min(values)}")
    higher = func.objective_higher_is_better[0]
    return Measurement(Status.OK, tuple(1 / value if higher else value / 1e3 for value in values))
