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
from .artifact import CompiledModel
from .profile import Profile, profiles
from .sharing import TunedTask

Choice = tuple[str, Mapping[str, Any]]
"""A sketch by name, and a configuration of it."""

_LINEUPS = 4
_NEAR = 1.15  # times the winner's time alone: what is slower is not tried again
_ROUNDS = 11


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
        for at, choice in enumerate(others[: _LINEUPS - 2], start=2):
            while len(found) <= at:
                found.append(dict(chosen))
            found[at][index] = choice
    return found


def fastest_inside(
    forms: Sequence[Mapping[int, Choice]],
    models: Sequence[CompiledModel],
    build: Callable[[Mapping[int, Choice]], CompiledModel],
    feeds: Mapping[str, NDArray[Any]],
) -> tuple[dict[int, Choice], CompiledModel]:
    """The choice of each task that is fastest inside, and the model made of them; `models` are those of the forms."""
    first, *_ = models
    taken = profiles(models, feeds, _ROUNDS)
    by_task = [_rounds_by_task(model, each) for model, each in zip(models, taken, strict=True)]
    final = dict(forms[0])
    for index, winner in by_task[0].items():
        fastest = winner
        for form, times in zip(forms[1:], by_task[1:], strict=True):
            if index not in times or form.get(index) == forms[0].get(index):
                continue
            # All against the winner, and of those that beat it surely, the one that does so most.
            if ratio_interval(winner, times[index]).low > 1 and sum(times[index]) < sum(fastest):
                fastest, final[index] = times[index], form[index]
    if final == dict(forms[0]):
        return final, first
    # Among so many comparisons some go wrong by chance: what was chosen has to be confirmed, all together.
    mixed = build(final)
    alone, together = (
        _rounds_by_task(model, each)
        for model, each in zip((first, mixed), profiles([first, mixed], feeds, _ROUNDS), strict=True)
    )
    changed = [index for index in final if final[index] != forms[0].get(index)]
    before, after = (
        [sum(each) for each in zip(*(times[index] for index in changed), strict=True)] for times in (alone, together)
    )
    return (final, mixed) if ratio_interval(before, after).estimate > 1 else (dict(forms[0]), first)


def _rounds_by_task(model: CompiledModel, taken: Profile) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for kernel in taken.kernels:
        index = model.symbols.get(kernel.name)
        if index is not None:
            known = found.get(index, [0.0] * len(kernel.rounds))
            found[index] = [a + b for a, b in zip(known, kernel.rounds, strict=True)]
    return found
