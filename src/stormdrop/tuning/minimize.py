"""`minimize`: the fastest configuration of anything that can be called."""

from __future__ import annotations

import hashlib
import platform
import time as clock
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from ..errors import InputError, quoted
from ..machine.detect import cpu_model
from ..machine.threads import thread_count
from ..measure.callable import CallableMeasurer, Objective, Seconds
from ..records import Problem, Store, open_store
from ..space import Space
from . import session
from .options import DEFAULT_SEARCH, DEFAULT_SECONDS, TuneOptions
from .request import Reuse, TuningRequest
from .result import MinimizeResult, Progress

__all__ = ["MinimizeResult", "minimize"]


def minimize(
    space: Space | Sequence[Space],
    objective: Callable[..., Seconds],
    *,
    search: str = DEFAULT_SEARCH,
    options: Mapping[str, Any] | None = None,
    trials: int | None = None,
    time: float | str | None = None,
    seed: int = 0,
    store: Store | None = None,
    resume: bool = False,
    fresh: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    name: str | None = None,
) -> MinimizeResult:
    """Searches the configurations of a space for the one that an objective says is fastest.

    The objective is called in this process, one call at a time, with nothing to guard it; see `CallableMeasurer`. The
    origin of the first space is the default: in the end it races the fastest few, and only a candidate that is
    significantly faster is preferred to it. Ctrl-C ends the search and returns the best so far with `interrupted` set.
    If a constraint raises an exception after something was measured, the search ends with that, and `error` says why.

    Without a `store` nothing is recorded. With one, everything that is measured is kept under `name` and the spaces.
    The code behind a name may change without a trace, so a record is no answer unless you say so with `resume`.
    Otherwise everything is measured again, and the best of earlier runs takes part in the last race; with `fresh` not
    even that.

    Args:
        space: The space to search; or several spaces, if there are several ways to do the same.
        objective: `objective(config)` takes a dictionary of values by knob and returns seconds, from 1e-100 to 1e100:
            several samples, or one; it is then called again until there are enough. For several spaces it is
            `objective(name_of_the_space, config)`. Whatever it raises fails that candidate alone.
        search: As in `tune`.
        options: As in `tune`.
        trials: As in `tune`.
        time: As in `tune`.
        seed: As in `tune`.
        store: Where records are kept.
        resume: Continue the latest unfinished run of the same search, options, seed and spaces, or take a finished one
            as the answer if it converged or had at least this budget.
        fresh: Ignore earlier results.
        on_progress: Is called with a `Progress` after every batch.
        name: What the records are kept under; by default the objective's qualified name.

    Raises:
        InputError: A setting is bad, or there is a store and no name to record under.
        SpaceError: A constraint raises an exception, or no points are found of a space (see `Space`).
        MeasureError: All of many candidates have failed in the same way.

    Example:
        >>> import stormdrop as sd
        >>> space = sd.Space("s", [sd.Ordinal("x", [1, 2, 4, 8])])
        >>> sd.minimize(space, lambda config: 1.0 + abs(config["x"] - 4), trials=4).best.config
        {'x': 4}
    """
    begin = clock.perf_counter()
    tune_options = TuneOptions.of(
        search=search, options=options, trials=trials, time=time, seed=seed, resume=resume, fresh=fresh
    )
    if store is not None and not isinstance(store, Store):
        raise InputError(f"store={quoted(store)} must be a store, as `open_store` opens it")
    if resume and store is None:
        raise InputError("resume needs the store that the earlier run was recorded in")
    spaces = _spaces(space)
    if not callable(objective):
        raise InputError(f"objective={quoted(objective)} must be a function")
    if on_progress is not None and not callable(on_progress):
        raise InputError(f"on_progress={quoted(on_progress)} must be a function")
    if name is not None and not isinstance(name, str):
        raise InputError(f"name={quoted(name)} must be text")
    call: Objective = (lambda _, config: objective(config)) if isinstance(space, Space) else objective
    record_name = _name(objective) if name is None else name
    if store is not None and not record_name:
        raise InputError("the objective has no name to record it under in the store: give one with name=...")
    request = TuningRequest.create(
        _problem(record_name),
        spaces,
        tune_options,
        trials=trials,
        seconds=tune_options.budget(DEFAULT_SECONDS),
        begin=begin,
        versions={"python": platform.python_version()},
        reuse=Reuse(resume=resume, answer=resume, starts=resume, rival=not fresh),
        on_progress=on_progress,
    )
    with open_store("sqlite://") if store is None else nullcontext(store) as opened:
        searched = session.run(request, lambda fastest: CallableMeasurer(spaces, call, fastest), opened)
    return MinimizeResult(**vars(searched), name=record_name)


def _spaces(space: Space | Sequence[Space]) -> list[Space]:
    given: Any = [space] if isinstance(space, Space) else space
    if not isinstance(given, list | tuple) or not all(isinstance(each, Space) for each in given):
        raise InputError(f"space={quoted(space)} must be a Space or a list of them")
    return list(given)


def _problem(name: str) -> Problem:
    text, cores = f"callable {name}", thread_count()
    key = hashlib.sha256(text.encode()).hexdigest()[:20]
    return Problem(key, text, name, "callable", f"{cpu_model()}, {cores} core{'s' if cores > 1 else ''}")


def _name(objective: Callable[..., Seconds]) -> str:
    """The qualified name of a function or a method; empty for a lambda, or if the object has none."""
    name = getattr(objective, "__qualname__", "")
    known = isinstance(name, str) and name and not name.endswith("<lambda>")
    return f"{objective.__module__}.{name}" if known else ""
