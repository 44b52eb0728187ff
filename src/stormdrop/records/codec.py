"""Between the values of the contract and JSON.

Decoding checks what it reads (it may be a file from anywhere) and raises ValueError with what is wrong.
"""

from __future__ import annotations

import json
import math
import numbers
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from ..trial import Measurement, Phases, Status
from .contract import Outcome, Problem, Session, Setting, State, StoredTrial


def encode(value: Any) -> str:
    """Compact JSON; NumPy numbers become numbers, tuples become lists. TypeError for anything else."""
    return json.dumps(value, separators=(",", ":"), default=_plain)


def canonical(value: Any) -> str:
    """JSON that is equal for equal values, whatever the order of their keys."""
    return json.dumps(value, separators=(",", ":"), default=_plain, sort_keys=True)


def decode_config(text: str) -> dict[str, Any]:
    """A configuration, with tuples where JSON has lists."""
    config: dict[str, Any] = _with_tuples(json.loads(text))
    return config


def clean(text: str) -> str:
    r"""Text that every database takes: lone surrogates and NUL become escapes such as `\x00`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")


def clean_session(session: Session) -> Session:
    """A session as a database gives it back: clean text, and settings as JSON holds them."""
    problem, setting = session.problem, session.setting
    return replace(
        session,
        problem=Problem(
            workload_key=clean(problem.workload_key),
            workload_text=clean(problem.workload_text),
            workload_name=clean(problem.workload_name),
            target=clean(problem.target),
            machine=clean(problem.machine),
        ),
        setting=Setting(
            search=clean(setting.search),
            seed=int(setting.seed),
            sketches=json.loads(encode(setting.sketches)),
            options=json.loads(encode(setting.options)),
            method=json.loads(encode(setting.method)),
            versions=json.loads(encode(setting.versions)),
        ),
    )


def session_to_json(session: Session) -> dict[str, Any]:
    """A session as a JSON object; the workload's text is left out, it is stated once for all its sessions."""
    problem, setting = session.problem, session.setting
    return {
        "id": session.id,
        "workload_key": problem.workload_key,
        "workload_name": problem.workload_name,
        "target": problem.target,
        "machine": problem.machine,
        "search": setting.search,
        "seed": setting.seed,
        "options": setting.options,
        "method": setting.method,
        "versions": setting.versions,
        "sketches": setting.sketches,
        "created": session.created,
        "state": session.state.value,
        "outcome": None if session.outcome is None else outcome_to_json(session.outcome),
    }


def session_from_json(data: Any, workload_text: str) -> Session:
    """The inverse of `session_to_json`."""
    outcome = field(data, "outcome", (dict, type(None)))
    created = field(data, "created", str)
    if datetime.fromisoformat(created).utcoffset() != timedelta(0):
        raise ValueError(f"'created' is not in UTC: {created}")
    return Session(
        id=str(uuid.UUID(field(data, "id", str))),
        problem=Problem(
            workload_key=field(data, "workload_key", str),
            workload_text=workload_text,
            workload_name=field(data, "workload_name", str),
            target=field(data, "target", str),
            machine=field(data, "machine", str),
        ),
        setting=Setting(
            search=field(data, "search", str),
            seed=field(data, "seed", int),
            sketches=_strings(data, "sketches"),
            options=field(data, "options", dict),
            method=field(data, "method", dict),
            versions=_strings(data, "versions"),
        ),
        created=created,
        state=State(field(data, "state", str)),
        outcome=None if outcome is None else outcome_from_json(outcome),
    )


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as a JSON object."""
    return {
        "sketch": outcome.sketch,
        "config": outcome.config,
        "seconds": outcome.seconds,
        "interval": outcome.interval,
        "baseline_seconds": outcome.baseline_seconds,
        "converged": outcome.converged,
        "extra": outcome.extra,
    }


def outcome_from_json(data: Any) -> Outcome:
    """The inverse of `outcome_to_json`."""
    config = field(data, "config", (dict, type(None)))
    interval = field(data, "interval", (list, type(None)))
    if interval is not None and len(interval) != 2:
        raise ValueError("'interval' has two ends")
    return Outcome(
        sketch=field(data, "sketch", (str, type(None))),
        config=None if config is None else _with_tuples(config),
        seconds=_optional_number(data, "seconds"),
        interval=None if interval is None else (_number(interval[0]), _number(interval[1])),
        baseline_seconds=_optional_number(data, "baseline_seconds"),
        converged=field(data, "converged", bool),
        extra=field(data, "extra", dict),
    )


def trial_to_json(trial: StoredTrial) -> dict[str, Any]:
    """A trial as a JSON object; its position and fingerprint follow from where it stands."""
    measurement, phases = trial.measurement, trial.measurement.phases
    return {
        "batch": trial.batch,
        "sketch": trial.sketch,
        "config": trial.config,
        "status": measurement.status.value,
        "seconds": measurement.seconds,
        "error": measurement.error,
        "phases": [phases.schedule, phases.build, phases.run, phases.check],
        "suspect": measurement.suspect,
        "elapsed": trial.elapsed,
    }


def trial_from_json(data: Any, position: int, sketches: Mapping[str, str]) -> StoredTrial:
    """The inverse of `trial_to_json`, in a session with these sketches."""
    sketch = field(data, "sketch", str)
    if sketch not in sketches:
        raise ValueError(f"the session has no sketch '{sketch}'")
    batch = field(data, "batch", int)
    if not 0 <= batch < 2**31:
        raise ValueError(f"'batch' cannot be {batch}")
    phases = [_number(phase) for phase in field(data, "phases", list)]
    if len(phases) != 4:
        raise ValueError("'phases' are four: schedule, build, run, check")
    return StoredTrial(
        batch=batch,
        position=position,
        sketch=sketch,
        fingerprint=sketches[sketch],
        config=_with_tuples(field(data, "config", dict)),
        measurement=Measurement(
            status=Status(field(data, "status", str)),
            seconds=tuple(_number(sample) for sample in field(data, "seconds", list)),
            error=field(data, "error", str),
            phases=Phases(*phases),
            suspect=field(data, "suspect", bool),
        ),
        elapsed=_number(field(data, "elapsed", (int, float))),
    )


def field(data: Any, name: str, kind: Any) -> Any:
    """The value of an object's field that must be there and of a kind (type or tuple of types); a bool is no int."""
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    if name not in data:
        raise ValueError(f"'{name}' is missing")
    value = data[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"'{name}' cannot be {encode(value)[:60]}")
    return value


def _strings(data: dict[str, Any], name: str) -> dict[str, str]:
    found: dict[str, str] = field(data, name, dict)
    if not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"'{name}' maps names to text")
    return found


def _optional_number(data: dict[str, Any], name: str) -> float | None:
    value = field(data, name, (int, float, type(None)))
    return None if value is None else _number(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{encode(value)[:60]} is no finite number")
    return float(value)


def _with_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_with_tuples(item) for item in value)
    if isinstance(value, dict):
        return {name: _with_tuples(item) for name, item in value.items()}
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be recorded: {value!r}")
