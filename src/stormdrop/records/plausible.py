"""Whether a session that somebody else measured holds what a tuning can measure.

The types are right when these checks begin. They raise ValueError with one line that names the faulty field.
"""

from __future__ import annotations

import json
import math
from typing import Any

from .contract import LONGEST_NAME, Config, StoredSession, StoredTrial

_MOST_KNOBS = 1000
_DEEPEST_VALUE = 4  # a configuration holds numbers, text, and tuples of tuples of them


def check_session(session: StoredSession) -> None:
    """Raises ValueError unless the session is one that a tuning can have left."""
    problem, setting, outcome = session.problem, session.setting, session.outcome
    names = {"target": problem.target, "machine": problem.machine, "search": setting.search}
    for field, name in names.items():
        if len(name) > LONGEST_NAME:
            raise ValueError(f"'{field}' has {len(name)} characters, and {LONGEST_NAME} at most are allowed")
    if outcome is None:
        return
    if outcome.sketch is not None and outcome.sketch not in setting.sketches:
        raise ValueError(f"'outcome' names the sketch '{outcome.sketch}', which the session lacks")
    _check_config(outcome.config or {})
    _check_positive("seconds", outcome.seconds, outcome.baseline_seconds, *(outcome.interval or ()))


def check_trial(trial: StoredTrial) -> None:
    """Raises ValueError unless the trial is one that a measurer can have measured."""
    measurement, phases = trial.measurement, trial.measurement.phases
    _check_config(trial.config)
    _check_positive("seconds", *measurement.seconds)
    for time in (phases.schedule, phases.build, phases.run, phases.check):
        _check_not_negative("phases", time)
    _check_not_negative("elapsed", trial.elapsed)


def _check_config(config: Config) -> None:
    if len(config) > _MOST_KNOBS:
        raise ValueError(f"'config' has {len(config)} knobs, and {_MOST_KNOBS} at most are allowed")
    for name, value in config.items():
        if not _is_knob_value(value, _DEEPEST_VALUE):
            raise ValueError(f"'config' holds no value of a knob for {json.dumps(name)[:60]}")


def _is_knob_value(value: Any, depth: int) -> bool:
    if isinstance(value, (tuple, list)):
        return depth > 0 and all(_is_knob_value(item, depth - 1) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _check_positive(name: str, *values: float | None) -> None:
    for value in values:
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"'{name}' holds {_shown(value)}, which is no finite number above 0")


def _check_not_negative(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"'{name}' holds {_shown(value)}, which is no finite number from 0 on")


def _shown(value: float) -> str:
    return json.dumps(float(value))
