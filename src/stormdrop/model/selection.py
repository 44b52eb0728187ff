"""Finalists in the context of the whole model: what is fastest alone may be slower among the others.

Alone, a kernel finds its inputs in the caches as its last execution has left them, and its tuning ends with a race of a
few schedules that are nearly alike. Here the model is built once with everybody's winner, once with everybody's default
schedule, with everybody's second and with everybody's third; they take turns, and each kernel is timed in each of them.
A schedule that is significantly faster than the winner there takes its place; all that changed have to be faster
together once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from ..statistics import ratio_interval
from ..tuning.race import ALPHA
from .artifact import CompiledModel
from .profile import Profile, profiles
from .sharing import TunedTask

Choice = tuple[str, Mapping[str, Any]]
"""A sketch by name, and a configuration of it."""

LINEUPS = 4
"""Forms of the model, at most."""

_NEAR = 1.15  # times the winner's time alone: what is slower is not tried again


def lineups(
    tasks: Sequence[TunedTask], chosen: Mapping[int, Choice], default: Mapping[int, Choice]
) -> list[dict[int, Choice]]:
    """What each task (by index) does in each form of the model: as chosen, by default, then the next best of each."""
    found = [dict(chosen), dict(default)]
    for task in tasks:
        result, index = task.result, task.task.index
        if result is None or result.best is None:
            continue
        near = [each for each in result.finalists if each.seconds <= _NEAR * result.best.seconds]
        tried = (chosen[index], default[index])
        others = [choice for each in near if (choice := (each.sketch, each.config)) not in tried]
        for at, choice in enumerate(others[: LINEUPS - 2], start=2):
            while len(found) <= at:
                found.append(dict(chosen))
            found[at][index] = choice
    return found


def fastest_inside(
    forms: Sequence[Mapping[int, Choice]],
    models: Sequence[CompiledModel],
    build: Callable[[Mapping[int, Choice]], CompiledModel],
    feeds: Mapping[str, NDArray[Any]],
    rounds: int,
) -> tuple[dict[int, Choice], CompiledModel]:
    """The choice of each task that is fastest inside, and the model made of them; `models` are those of the forms.

    One is faster at 95% over all comparisons together (Bonferroni).
    """
    first, *_ = models
    taken = profiles(models, feeds, rounds)
    by_task = [_rounds_by_task(model, each) for model, each in zip(models, taken, strict=True)]
    final = dict(forms[0])
    compared = [
        (index, form, times)
        for index in by_task[0]
        for form, times in zip(forms[1:], by_task[1:], strict=True)
        if index in times and form.get(index) != forms[0].get(index)
    ]
    confidence = 1 - ALPHA / max(1, len(compared))
    best = dict(by_task[0])
    for index, form, times in compared:
        # All against the winner, and of those that beat it surely, the one that does so most.
        faster = ratio_interval(by_task[0][index], times[index], confidence).low > 1
        if faster and sum(times[index]) < sum(best[index]):
            best[index], final[index] = times[index], form[index]
    if final == dict(forms[0]):
        return final, first
    # What was chosen stands beside other neighbours now: it has to be faster there, all together.
    mixed = build(final)
    alone, together = (
        _rounds_by_task(model, each)
        for model, each in zip((first, mixed), profiles([first, mixed], feeds, rounds), strict=True)
    )
    changed = [index for index in final if final[index] != forms[0].get(index)]
    before, after = (
        [sum(each) for each in zip(*(times[index] for index in changed), strict=True)] for times in (alone, together)
    )
    return (final, mixed) if ratio_interval(before, after).low > 1 else (dict(forms[0]), first)


def _rounds_by_task(model: CompiledModel, taken: Profile) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for kernel in taken.kernels:
        index = model.symbols.get(kernel.name)
        if index is not None:
            known = found.get(index, [0.0] * len(kernel.rounds))
            found[index] = [a + b for a, b in zip(known, kernel.rounds, strict=True)]
    return found
