"""A session with its trials as one JSON document, for pages and other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..codec import encode, layers_of_method, trial_to_json
from ..contract import StoredSession, StoredTrial


def session_document(session: StoredSession, trials: Sequence[StoredTrial]) -> dict[str, Any]:
    """Describes a session.

    Args:
        session: The session.
        trials: Its trials, in their order.

    Returns:
        The fields of `StoredSession`, and `trials`: of each the fields of `StoredTrial`, its measurement as `status`,
        `seconds` (the samples), `error`, `phases` and `suspect`. `layers` are the names of the layers of a model that
        the kernel computes.

    Example:
        >>> from stormdrop.records import open_store
        >>> from stormdrop.testing.stores import PROBLEM, SETTING
        >>> with open_store("sqlite://") as store:
        ...     session_document(store.open(PROBLEM, SETTING), [])["state"]
        'running'
    """
    documents = [
        {**trial_to_json(trial), "position": trial.position, "phases": asdict(trial.measurement.phases)}
        for trial in trials
    ]
    layers = list(layers_of_method(encode(session.setting.method)))
    return {**asdict(session), "state": session.state.value, "layers": layers, "trials": documents}


def kept_phases(extra: Mapping[str, Any]) -> dict[str, float]:
    """The wall seconds of a session by phase, the longest phase first.

    Args:
        extra: `Outcome.extra`, which may be anybody's.

    Returns:
        The seconds by the name of the phase, as far as there are any; empty if the session did not keep them.

    Example:
        >>> kept_phases({"phases": {"build": 1.5, "run": 2}, "disturbed": False})
        {'run': 2.0, 'build': 1.5}
    """
    kept = extra.get("phases")
    numbers = kept.items() if isinstance(kept, Mapping) else ()
    phases = {
        str(name): float(seconds) for name, seconds in numbers if isinstance(seconds, int | float) and seconds > 0
    }
    return dict(sorted(phases.items(), key=lambda part: -part[1]))
