"""Minimizing anything that can be called: the loop of `loop.py` on configurations that an objective times."""

from __future__ import annotations

import hashlib
import platform
import time as clock
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from ..machine.cpu import cpu_model
from ..machine.threads import chosen
from ..measure.callable import CallableMeasurer, Objective, Seconds
from ..records import Problem, Store, open_store
from ..space import Space
from ..trial import Candidate, Measurement, Phases, Status
from . import race as finals
from . import session as loop
from .request import DEFAULT_SEARCH, check_request, make_plan
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

    `objective(config)` takes a dictionary of values by knob and returns seconds, finite and greater than zero: several
    samples, or one, and is then called again until there are enough. With a sequence of spaces (several ways to do
    the same) it is `objective(name of the space, config)`. What it raises fails that candidate alone, with one line
    in the records; Ctrl-C ends the search and returns the best so far with `interrupted` set. It is called in this
    process, one call at a time, with nothing to guard it; see `CallableMeasurer`.

    The origin of the first space is the default: in the end it races the fastest few, and only what is significantly
    faster is preferred to it. `search`, `options`, `trials`, `time` and `seed` are as for `tune`.

    Without a `store` nothing is recorded. With one, everything that is measured is kept under `name`, by default the
    objective's qualified name, and the spaces. The code behind a name may change without a trace, so a record is
    no answer unless you say so: `resume` continues the latest unfinished run of the same search, options, seed and
    spaces, or takes a finished one as the answer if it converged or had at least this budget. Without it everything
    is measured anew and the best of earlier runs takes part in the last race; not even that with `fresh`.

    Raises `InputError` for a bad setting, and for a store without a name to record under.
    """
    begin = clock.perf_counter()
    seconds = check_request(trials, time, resume, fresh)
    if resume and store is None:
        raise InputError("resume needs the store that the earlier run was recorded in")
    spaces = [space] if isinstance(space, Space) else list(space)
    call: Objective = (lambda _, config: objective(config)) if isinstance(space, Space) else objective
    known_as = _name(objective) if name is None else name
    if store is not None and not known_as:
        raise InputError("an objective without a name of its own, recorded in a store, needs one: name=...")
    subject = _Callable(spaces, call)
    versions = {"python": platform.python_version()}
    problem = _problem(known_as)
    plan = make_plan(problem, spaces, search, options, versions, trials, seconds, seed, begin, on_progress)
    with open_store("sqlite://") if store is None else nullcontext(store) as opened:
        found = loop.run(plan, subject, opened, resume=resume, fresh=fresh, answered=resume)
    return MinimizeResult(**vars(found), name=known_as)


@dataclass(frozen=True)
class _Callable:
    """An objective as the loop's `Subject`."""

    spaces: Sequence[Space]
    objective: Objective

    def measurer(self, fastest: float | None) -> CallableMeasurer:
        return CallableMeasurer(self.spaces, self.objective, fastest)

    def wall(self, measurer: CallableMeasurer, spent: Phases) -> dict[str, float]:
        return {"run": spent.run}  # the other phases are a kernel's

    def conditions(self, measurer: CallableMeasurer) -> dict[str, Any]:
        return {}

    def race(
        self, measurer: CallableMeasurer, entrants: Sequence[Candidate], estimates: Sequence[float], seconds: float
    ) -> list[Measurement]:
        """A call takes what it takes, whatever time it reports: a few rounds show how many more fit."""
        raced = measurer.race(entrants, finals.LEAST_ROUNDS)
        turns = [each.phases.run / finals.LEAST_ROUNDS for each in raced]
        more = finals.rounds(turns, seconds) - finals.LEAST_ROUNDS
        working = [at for at, found in enumerate(raced) if found.ok]
        if more and working:
            for at, later in zip(working, measurer.race([entrants[at] for at in working], more), strict=True):
                raced[at] = _joined(raced[at], later)
        return raced


def _joined(earlier: Measurement, later: Measurement) -> Measurement:
    if not later.ok:
        return later
    return Measurement(Status.OK, earlier.seconds + later.seconds, "", earlier.phases + later.phases)


def _problem(name: str) -> Problem:
    text, cores = f"callable {name}", chosen()
    key = hashlib.sha256(text.encode()).hexdigest()[:20]
    return Problem(key, text, name, "callable", f"{cpu_model()}, {cores} core{'s' if cores > 1 else ''}")


def _name(objective: Callable[..., Seconds]) -> str:
    """The qualified name of a function or a method; empty for a lambda, or an object that has none."""
    name = getattr(objective, "__qualname__", "")
    return "" if not name or name.endswith("<lambda>") else f"{objective.__module__}.{name}"
