"""Sessions, outcomes and trials as JSON, for the JSON lines of an export and for the text columns of the database.

Decoding checks what it reads, because an export may come from anywhere. It raises ValueError with a message of one
line that names the faulty field.

msgspec checks: 55 lines decode instead of 86 of our own (118 with cattrs), at 132 against 134 us a trial (2026-11-22).
The standard library writes: msgspec would write other bytes (UTF-8, null for NaN) and refuses NumPy's numbers.
"""

from __future__ import annotations

import json
import math
import numbers
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeVar

import msgspec

from ..trial import Measurement, Phases
from .contract import Outcome, Problem, Setting, State, StoredSession, StoredTrial
from .plausible import check_session, check_trial

T = TypeVar("T")


def encode(value: Any) -> str:
    """A value as compact JSON.

    Args:
        value: JSON values, tuples (which become lists), mappings, and numbers of NumPy's (which become plain numbers).

    Returns:
        ASCII text without line breaks.

    Raises:
        TypeError: If the value holds anything else.
    """
    return json.dumps(value, separators=(",", ":"), default=_plain)


def canonical(value: Any) -> str:
    """A value as compact JSON with sorted keys: equal values give equal text, whatever the order of their keys."""
    return json.dumps(value, separators=(",", ":"), default=_plain, sort_keys=True)


def decode_config(text: str) -> dict[str, Any]:
    """A configuration from JSON text. Lists become tuples."""
    config: dict[str, Any] = _with_tuples(json.loads(text))
    return config


def clean(text: str) -> str:
    r"""Text that every database accepts: lone surrogates and NUL become escapes such as `\x00`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")


def layers_of_method(method: str) -> tuple[str, ...]:
    """The names of the layers of a model that a session tunes a kernel of.

    It is asked for every line of a list. So it reads only what it needs of a text that describes whole spaces.

    Args:
        method: `Setting.method` as JSON.

    Returns:
        The names; empty if the method, which may be anybody's, says none.

    Example:
        >>> layers_of_method('{"batch":8,"model":{"name":"net","calls":1,"layers":["features.4.conv"]}}')
        ('features.4.conv',)
        >>> layers_of_method('{"batch":8}')
        ()
    """
    try:
        return _method_decoder.decode(method).model.layers
    except msgspec.DecodeError:
        return ()


class _Model(msgspec.Struct):
    layers: tuple[str, ...] = ()


class _Method(msgspec.Struct):
    model: _Model = msgspec.field(default_factory=_Model)


_method_decoder = msgspec.json.Decoder(_Method)


def clean_session(session: StoredSession) -> StoredSession:
    """A session as a database gives it back: its text is clean, and its setting holds what JSON can hold."""
    setting = session.setting
    return replace(
        session,
        problem=Problem(**{name: clean(text) for name, text in vars(session.problem).items()}),
        setting=Setting(
            search=clean(setting.search),
            seed=int(setting.seed),
            sketches=json.loads(encode(setting.sketches)),
            options=json.loads(encode(setting.options)),
            method=json.loads(encode(setting.method)),
            versions=json.loads(encode(setting.versions)),
        ),
    )


def session_to_json(session: StoredSession) -> dict[str, Any]:
    """A session as a JSON object. The workload's text is left out: an export states it once for all its sessions."""
    stated = {**vars(session.problem), **vars(session.setting)}
    del stated["workload_text"]
    return {
        "id": session.id,
        **stated,
        "created": session.created,
        "state": session.state.value,
        "outcome": None if session.outcome is None else outcome_to_json(session.outcome),
    }


def session_from_json(data: Any, workload_text: str) -> StoredSession:
    """The inverse of `session_to_json`.

    Args:
        data: What JSON holds. Fields that a session does not have are ignored.
        workload_text: The serialised function, which the JSON object leaves out.

    Returns:
        The session.

    Raises:
        ValueError: If `data` is no session.
    """
    _check_names(data, _SESSION_NAMES)
    line = convert(data, _SessionInFile)
    if datetime.fromisoformat(line.created).utcoffset() != timedelta(0):
        raise ValueError(f"'created' is not in UTC: {line.created}")
    session = StoredSession(
        id=str(line.id),
        problem=convert({**data, "workload_text": workload_text}, Problem),
        setting=convert(data, Setting),
        created=line.created,
        state=line.state,
        outcome=None if data["outcome"] is None else outcome_from_json(data["outcome"]),
    )
    check_session(session)
    return session


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as a JSON object, which has the fields of `Outcome`."""
    return dict(vars(outcome))


def outcome_from_json(data: Any) -> Outcome:
    """The inverse of `outcome_to_json`. Raises ValueError if `data` is no outcome."""
    _check_names(data, _OUTCOME_NAMES)
    outcome = convert({**data, "config": _with_tuples(data["config"])}, Outcome)
    _check_finite("seconds", outcome.seconds, outcome.baseline_seconds)
    _check_finite("interval", *(outcome.interval or ()))
    return outcome


def trial_to_json(trial: StoredTrial) -> dict[str, Any]:
    """A trial as a JSON object. Its position and its fingerprint follow from its place in the session."""
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
    """The inverse of `trial_to_json`.

    Args:
        data: What JSON holds. Fields that a trial does not have are ignored.
        position: The place of the trial in its session.
        sketches: The name of each sketch of the session and the fingerprint of its space.

    Returns:
        The trial.

    Raises:
        ValueError: If `data` is no trial, or if the session lacks its sketch.
    """
    _check_names(data, _TRIAL_NAMES)
    line = convert(data, _TrialInFile)
    if line.sketch not in sketches:
        raise ValueError(f"the session has no sketch '{line.sketch}'")
    measurement = convert({**data, "phases": Phases(*line.phases)}, Measurement)
    in_session = {"position": position, "fingerprint": sketches[line.sketch], "measurement": measurement}
    trial = convert({**data, **in_session, "config": _with_tuples(data["config"])}, StoredTrial)
    check_trial(trial)
    return trial


def convert(data: Any, kind: type[T]) -> T:
    """A value of a dataclass or a `msgspec.Struct` from what JSON holds.

    Args:
        data: What JSON holds. Fields that the class does not have are ignored.
        kind: The class.

    Returns:
        The value.

    Raises:
        ValueError: If `data` does not have the types of the class. The message names the faulty field.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:  # which is no ValueError in every version of msgspec
        raise ValueError(str(error)) from error


class _SessionInFile(msgspec.Struct):
    """The fields of a session that belong neither to its problem nor to its setting."""

    id: uuid.UUID
    created: str
    state: State


class _TrialInFile(msgspec.Struct):
    """The fields of a trial that JSON holds in another form, or within narrower limits, than `StoredTrial`."""

    sketch: str
    batch: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    phases: tuple[float, float, float, float]  # schedule, build, run, check


def _names(kinds: Iterable[type], without: Iterable[str] = ()) -> frozenset[str]:
    """The fields of some dataclasses."""
    return frozenset(field.name for kind in kinds for field in fields(kind)) - frozenset(without)


_SESSION_NAMES = _names([StoredSession, Problem, Setting], without=["problem", "setting", "workload_text", "imported"])
_OUTCOME_NAMES = _names([Outcome])
_TRIAL_NAMES = _names([StoredTrial, Measurement], without=["position", "fingerprint", "measurement"])


def _check_names(data: Any, names: frozenset[str]) -> None:
    """Raises ValueError unless `data` is an object with these fields: a default in Python is none in a file."""
    if not isinstance(data, dict):
        raise ValueError(f"expected a JSON object, found {encode(data)[:60]}")
    if missing := names - data.keys():
        raise ValueError(f"'{min(missing)}' is missing")


def _check_finite(name: str, *values: float | None) -> None:
    for value in values:
        if value is not None and not math.isfinite(value):
            raise ValueError(f"'{name}' holds {encode(value)}, which is no finite number")


def _with_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_with_tuples(item) for item in value)
    if isinstance(value, dict):
        return {name: _with_tuples(item) for name, item in value.items()}
    return value


def _plain(value: Any) -> Any:
    """What JSON holds in place of a value that the standard library cannot write."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be recorded: {value!r}")
