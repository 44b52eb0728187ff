"""The choice of the schedules that stand in a model: the winner of every task, or what is faster inside the model."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...machine.sharing.foreign_load import is_quiet
from ...measure.timing import FEWEST_ROUNDS, rounds_within
from ..artifact.artifact import CompiledModel
from ..building.board import BoardModel
from ..building.builder import ModelBuilder
from ..building.tuned_task import Choice, TunedTasks
from ..inputs.samples import Feeds
from .baseline import Baseline
from .budget import CHECKS, Budget
from .latency import execution_seconds
from .selection import (
    Doubts,
    combinations_to_compare,
    fastest_combination,
    fastest_on_board,
    unproven,
)
from .tuning_run import TuningRun

_DOUBT_SECONDS = 1.0  # that a comparison may take, even if no time is left, if winners have not raced
_COMPARING = 0.3  # of the time that is left for the choice; the rest is for compiling


@dataclass(frozen=True)
class Chosen:
    """The model that the tuning has led to.

    Attributes:
        model: The model with the fastest combination of schedules.
        combination: The schedule of each task.
        untuned: The model with all default schedules; None if it was not built.
        replaced: The names of the tasks whose winner gave way to another schedule.
    """

    model: CompiledModel
    combination: Mapping[int, Choice]
    untuned: CompiledModel | None
    replaced: Sequence[str] = ()


def choose(
    builder: ModelBuilder,
    tuned: TunedTasks,
    budget: Budget,
    feeds: Sequence[Feeds],
    run: TuningRun,
    baseline: Baseline,
) -> Chosen:
    """Builds the model of all winners and, as far as the time allows, finds out what is faster inside the model.

    Args:
        builder: Builds the models.
        tuned: The tasks after their tuning.
        budget: What the tuning may take.
        feeds: The model's inputs at each of its sizes.
        run: The run of the tuning.
        baseline: The model before the tuning.
    """
    run.say("compiling the tuned model")
    start = clock.perf_counter()
    winners = builder.winners
    first = run.despite_interruption(lambda: builder.build(winners))
    taken = clock.perf_counter() - start
    alone = Chosen(first, winners, baseline.model)
    if run.interrupted:
        return alone
    try:
        # A default that failed has given way to the winner since.
        untuned = baseline.model if baseline.combination == builder.defaults else None
        combinations = combinations_to_compare(tuned.tasks, winners, builder.defaults)
        left = budget.left_before(CHECKS)
        seconds = sum(execution_seconds(first, of_size) for of_size in feeds)
        # Each further model, and the final one, take about as long to compile as the first.
        affordable = (1 - _COMPARING) * left / taken - 1 + (untuned is not None)
        count = 1 + max(0, math.floor(min(affordable, len(combinations))))
        doubts = _doubts(builder, tuned)
        if (
            doubts.tasks
            and untuned is not None
            and FEWEST_ROUNDS * _executions(2) * seconds <= max(left, _DOUBT_SECONDS)
        ):
            count = max(2, count)  # both models are there
        combinations = combinations[:count]
        rounds = rounds_within([_executions(len(combinations)) * seconds], max(_COMPARING * left, _DOUBT_SECONDS))
        if len(combinations) == 1:
            return alone
        run.say("comparing finalists inside the model")
        built = [first, builder.build(builder.defaults) if untuned is None else untuned]
        built += [builder.build(combination) for combination in combinations[2:]]
        if isinstance(first, BoardModel):
            final, model = fastest_on_board(combinations, built, feeds, rounds)
        else:
            final, model = fastest_combination(combinations, built, builder.build, feeds, rounds, doubts)
    except KeyboardInterrupt:
        run.interrupted = True
        return alone
    replaced = [task.task.name for task in tuned.tasks if final.get(task.task.index) != winners.get(task.task.index)]
    return Chosen(model, final, built[1], replaced)


def _executions(combinations: int) -> int:
    """The executions of models in a round that finds the fastest of some combinations, and checks it."""
    return 2 * (combinations + 2)


def _doubts(builder: ModelBuilder, tuned: TunedTasks) -> Doubts:
    """The winners that have not raced with the default, or beside other load only."""
    tasks = [index for index in unproven(tuned.tasks) if builder.winners.get(index) != builder.defaults.get(index)]
    return Doubts(tasks, bool(tasks) and not is_quiet(), builder.cores)
