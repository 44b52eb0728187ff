"""Decides which finalist of each task is fastest inside the whole model. It may not be the one that is fastest alone.

The tuning of a task ends with a race of a few schedules that are nearly equally fast, each of which finds its inputs in
the caches as its last execution left them. Inside the model, other kernels run in between. So the model is built in up
to four combinations: every task by its winner, by its default schedule, by its second and by its third finalist. They
take turns, and each kernel is timed in each of them, once more if the clocks of a GPU were held back meanwhile. A
schedule that is significantly faster than the winner there takes its place; the chance of a false replacement is 5% for
all tasks and combinations together. Finally, a model with all the replacements has to be significantly faster than the
first one, over the tasks that changed.

On a board, where no kernel can be timed inside the model, whole combinations are compared instead.

A task has one schedule for all sizes of the model, so its time is that of its calls at all sizes together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from ...machine.sharing.foreign_load import Counters, LoadWatch, read_counters, spent_since
from ...machine.threads import thread_count
from ...statistics import ratio_interval
from ...tuning.race import ALPHA, is_faster
from ..artifact.artifact import CompiledModel
from ..building.board import in_turns
from ..building.tuned_task import Choice, TunedTask
from ..profile import profiles, seconds_by_task

Combination = Mapping[int, Choice]
"""The schedule of every task of a model, by the index of the task."""

MAX_COMBINATIONS = 4
"""The most combinations that are compared."""

_NEAR = 1.15
"""A finalist that takes longer than this times the winner's time, each alone, is not tried inside the model."""


@dataclass(frozen=True)
class Doubts:
    """The winners that have to prove inside the model that they are faster than the default.

    Attributes:
        tasks: Their tasks, by index.
        disturbed: Whether something else used the machine before the comparison.
        cores: How many cores a schedule of a task keeps busy.
    """

    tasks: Collection[int] = ()
    disturbed: bool = False
    cores: Callable[[int, Choice], int] = lambda *_: 1

    def refuse(self, index: int, choice: Choice, default: Choice) -> bool:
        """Whether a schedule of a task proves nothing now: beside other load it has fewer cores than the default."""
        return self.disturbed and self.cores(index, choice) < self.cores(index, default)


def unproven(tasks: Sequence[TunedTask]) -> list[int]:
    """The tasks whose winner did not race with the default, or beside other load only, by their index."""
    results = [(task.task.index, task.result) for task in tasks]
    return [index for index, result in results if result is not None and result.best and not result.proven]


def combinations_to_compare(
    tasks: Sequence[TunedTask], chosen: Combination, default: Combination
) -> list[dict[int, Choice]]:
    """Lists the combinations that may be fastest inside the model.

    Args:
        tasks: The tuned tasks of the model.
        chosen: The winner of each task.
        default: The default schedule of each task.

    Returns:
        At most `MAX_COMBINATIONS`: first `chosen`, then `default`, then `chosen` with the next best finalist of each
        task that has one.
    """
    combinations = [dict(chosen), dict(default)]
    for task in tasks:
        result, index = task.result, task.task.index
        if result is None or result.best is None:
            continue
        near = [finalist for finalist in result.finalists if finalist.seconds <= _NEAR * result.best.seconds]
        present = (chosen[index], default[index])
        others = [choice for finalist in near if (choice := (finalist.sketch, finalist.config)) not in present]
        for position, choice in enumerate(others[: MAX_COMBINATIONS - 2], start=2):
            while len(combinations) <= position:
                combinations.append(dict(chosen))
            combinations[position][index] = choice
    return combinations


def fastest_combination(
    combinations: Sequence[Combination],
    models: Sequence[CompiledModel],
    build: Callable[[Combination], CompiledModel],
    feeds: Sequence[Mapping[str, NDArray[Any]]],
    rounds: int,
    doubts: Doubts = Doubts(),
) -> tuple[dict[int, Choice], CompiledModel]:
    """Finds the fastest schedule of each task inside the model.

    Args:
        combinations: What to compare: the winners, the defaults, and others. A winner is kept unless another schedule
            is significantly faster.
        models: The model of each combination.
        build: Builds the model of another combination.
        feeds: The model's inputs by name, for each of its sizes.
        rounds: How often each model is executed.
        doubts: The winners that stand only if they are faster than the default here.

    Returns:
        The combination of the fastest schedules, and its model.
    """
    watch = LoadWatch(models[0].metadata.target.get("cores", thread_count()))
    seconds, spent = _watched(models, feeds, rounds)
    disturbed = watch.suspect(spent) or doubts.disturbed
    standing, others = _without_doubt(combinations, seconds, replace(doubts, disturbed=disturbed))
    improved = _replace_slower(standing, others, combinations, seconds)
    known = next((model for each, model in zip(combinations, models, strict=True) if dict(each) == standing), None)
    stands = build(standing) if known is None else known
    if improved == standing:
        return standing, stands
    # The replaced kernels have other neighbours now than when they were timed.
    candidate = build(improved)
    (slower, faster), _ = _watched([stands, candidate], feeds, rounds)
    changed = [index for index in improved if improved[index] != standing.get(index)]
    ratio = ratio_interval(_total(slower, changed), _total(faster, changed))
    return (improved, candidate) if ratio.low > 1 else (standing, stands)


def fastest_on_board(
    combinations: Sequence[Combination],
    models: Sequence[CompiledModel],
    feeds: Sequence[Mapping[str, NDArray[Any]]],
    rounds: int,
) -> tuple[dict[int, Choice], CompiledModel]:
    """Finds the fastest combination as a whole, on the board that runs the models: no kernel is timed inside it there.

    Args:
        combinations: What to compare; the first one is kept unless another one is significantly faster.
        models: The model of each combination, which are `board.BoardModel`.
        feeds: The model's inputs by name, for each of its sizes.
        rounds: How often each model is timed.

    Returns:
        The fastest combination, and its model.
    """
    calls = [(model, of_size) for model in models for of_size in feeds]
    times = in_turns(calls, rounds)
    sizes = len(feeds)
    seconds = [[sum(each[sizes * index : sizes * (index + 1)]) for each in times] for index in range(len(models))]
    confidence = 1 - ALPHA / max(1, len(models) - 1)
    faster = [
        index for index in range(1, len(models)) if ratio_interval(seconds[0], seconds[index], confidence).low > 1
    ]
    best = min(faster, key=lambda index: sum(seconds[index]), default=0)
    return dict(combinations[best]), models[best]


def _without_doubt(
    combinations: Sequence[Combination], seconds: Sequence[Mapping[int, Sequence[float]]], doubts: Doubts
) -> tuple[dict[int, Choice], list[dict[int, Choice]]]:
    """What stands of the winners, and what may replace it.

    Returns:
        The winners, with the default in place of each doubtful one that is not faster than it. And the other
        combinations without what has lost by this, or keeps fewer cores busy beside other load.
    """
    standing, others = dict(combinations[0]), [dict(each) for each in combinations[1:]]
    alpha = ALPHA / max(1, len(doubts.tasks))
    for index in doubts.tasks:
        winner, default = combinations[0][index], combinations[1][index]
        if winner == default or not all(index in times for times in seconds[:2]):
            continue
        faster = is_faster(seconds[0][index], seconds[1][index], alpha, doubts.disturbed)
        if not faster or doubts.refuse(index, winner, default):
            standing[index] = default
        for other in others:
            if other[index] == winner or doubts.refuse(index, other[index], default):
                other[index] = standing[index]
    return standing, others


def _replace_slower(
    standing: Combination,
    others: Sequence[Combination],
    combinations: Sequence[Combination],
    seconds: Sequence[Mapping[int, Sequence[float]]],
) -> dict[int, Choice]:
    """What stands, with each schedule that another one significantly beats replaced by the fastest of those.

    `seconds` are, for each combination, the times of each task by round. `others` are all combinations but the first,
    as far as they may replace what stands. `ALPHA` is the probability of an error in all comparisons together; each
    single comparison has an accordingly smaller one (Bonferroni).
    """
    times_of = {
        index: next(
            times[index]
            for combination, times in zip(combinations, seconds, strict=True)
            if combination.get(index) == choice and index in times
        )
        for index, choice in standing.items()
        if index in seconds[0]
    }
    comparisons = [
        (index, other[index], times[index])
        for index in times_of
        for other, times in zip(others, seconds[1:], strict=True)
        if index in times and other.get(index) != standing[index]
    ]
    confidence = 1 - ALPHA / max(1, len(comparisons))
    improved, fastest = dict(standing), dict(times_of)
    for index, choice, times in comparisons:
        faster = ratio_interval(times_of[index], times, confidence).low > 1
        if faster and sum(times) < sum(fastest[index]):
            improved[index], fastest[index] = choice, times
    return improved


def _measured(
    models: Sequence[CompiledModel], feeds: Sequence[Mapping[str, NDArray[Any]]], rounds: int
) -> list[dict[int, list[float]]]:
    """For each model the seconds of each task in each round, over all sizes."""
    seconds: list[dict[int, list[float]]] = [{} for _ in models]
    for of_size in feeds:
        for model, measured, sums in zip(models, profiles(models, of_size, rounds), seconds, strict=True):
            for index, times in seconds_by_task(model, measured).items():
                sums[index] = [a + b for a, b in zip(sums.get(index, [0.0] * rounds), times, strict=True)]
    return seconds


def _watched(
    models: Sequence[CompiledModel], feeds: Sequence[Mapping[str, NDArray[Any]]], rounds: int
) -> tuple[list[dict[int, list[float]]], Counters]:
    """What `_measured` returns, and what has happened meanwhile; once more if the clock was held back."""
    for _ in range(2):
        before = read_counters()
        seconds = _measured(models, feeds, rounds)
        spent = spent_since(before, models[0].device, models[0].gpu)
        if not spent.slowed:
            break
    return seconds, spent


def _total(seconds: Mapping[int, Sequence[float]], tasks: Sequence[int]) -> list[float]:
    """Seconds of some tasks together, in each round."""
    return [sum(times) for times in zip(*(seconds[index] for index in tasks), strict=True)]
