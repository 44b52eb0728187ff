"""Recordings as files of Kernel Tuner: its cache, and the format T4 that it writes as output.

`compare.recordings.load` reads both. A value that is a tuple becomes one parameter per factor: `tile` (4, 8) becomes
`tile_0` 4 and `tile_1` 8. Times are milliseconds.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError, hint
from ..measure.replay import Recorded, Recording
from ..space import Space
from ..trial import Status
from .kernel_tuner import FAILURES

_VERSION = "1.0.0"  # of T4
_ERRORS = {status: name for name, status in FAILURES.items()}
_INVALIDITY = {
    Status.OK: "correct",
    Status.INSTANTIATION: "constraints",
    Status.COMPILE_HOST: "compile",
    Status.COMPILE_DEVICE: "compile",
    Status.BUILD_TIMEOUT: "timeout",
    Status.RUN_TIMEOUT: "timeout",
    Status.WRONG_ANSWER: "correctness",
}


def write_cache(
    recording: Recording,
    path: str | Path,
    sketch: str | None = None,
    *,
    device: str = "unknown",
    problem_size: Sequence[int] = (1,),
) -> None:
    """Writes a recording as a cache of Kernel Tuner, which its simulation mode replays.

    Args:
        recording: The recording.
        path: The file, which is replaced if it exists.
        sketch: Which of several spaces is written.
        device: The name of the device in the file.
        problem_size: The size of the problem in the file. Kernel Tuner takes a cache for the same size only.

    Raises:
        InputError: The recording has several spaces and none is named, or the named one is unknown.

    Example:
        >>> from stormdrop.compare import recordings
        >>> write_cache(recordings.load("analytic:lrw"), "lrw.json")
        >>> recordings.load("lrw.json").optimum_seconds == recordings.load("analytic:lrw").optimum_seconds
        True
    """
    space = _space_of(recording, sketch)
    cache = {}
    values: dict[str, dict[Any, None]] = {}
    for params, recorded in _entries(recording, space):
        for name, value in params.items():
            values.setdefault(name, {})[value] = None
        cache[",".join(map(str, params.values()))] = {**params, **_result(recorded)}
    document = {
        "device_name": device,
        "kernel_name": space.name,
        "problem_size": list(problem_size),
        "tune_params_keys": list(values),
        "tune_params": {name: _sorted(list(of_name)) for name, of_name in values.items()},
        "objective": "time",
        "cache": cache,
    }
    _write(path, document)


def write_t4(recording: Recording, path: str | Path, sketch: str | None = None) -> None:
    """Writes a recording in the format T4. The arguments and errors are those of `write_cache`."""
    space = _space_of(recording, sketch)
    results = []
    for params, recorded in _entries(recording, space):
        phases, samples = recorded.phases, [seconds * 1e3 for seconds in recorded.seconds]
        result: dict[str, Any] = {
            "configuration": params,
            "times": {
                "compilation": phases.build * 1e3,
                "benchmark": phases.run * 1e3,
                "framework": 0.0,
                "search_algorithm": 0.0,
                "validation": phases.check * 1e3,
                "runtimes": samples,
            },
            "invalidity": _INVALIDITY.get(recorded.status, "runtime"),
            "correctness": 0 if recorded.status is Status.WRONG_ANSWER else 1,
            "measurements": [],
            "objectives": ["time"],
        }
        if samples:
            result["measurements"] = [{"name": "time", "value": statistics.fmean(samples), "unit": "ms"}]
        results.append(result)
    _write(path, {"schema_version": _VERSION, "metadata": {"timeunit": "milliseconds"}, "results": results})


def _space_of(recording: Recording, sketch: str | None) -> Space:
    names = [space.name for space in recording.spaces]
    if sketch is None and len(names) > 1:
        raise InputError(f"{recording.name} has several spaces, and a file holds one: name one with sketch=...")
    wanted = names[0] if sketch is None else sketch
    if wanted not in names:
        raise InputError(f"{recording.name} has no space {wanted!r}; {hint(wanted, names)}")
    return recording.spaces[names.index(wanted)]


def _entries(recording: Recording, space: Space) -> Iterator[tuple[dict[str, Any], Recorded]]:
    """The parameters of each candidate of a space, and what is known of it."""
    for candidate, recorded in recording.recorded.items():
        if candidate.sketch == space.name:
            params: dict[str, Any] = {}
            for name, value in space.config(candidate.point).items():
                if isinstance(value, tuple):
                    params.update({f"{name}_{index}": factor for index, factor in enumerate(value)})
                else:
                    params[name] = value
            yield params, recorded


def _result(recorded: Recorded) -> dict[str, Any]:
    """What a cache holds of a candidate besides its parameters."""
    phases = recorded.phases
    times = {
        "compile_time": phases.build * 1e3,
        "verification_time": phases.check * 1e3,
        "benchmark_time": phases.run * 1e3,
        "strategy_time": 0.0,
        "framework_time": 0.0,
    }
    if not recorded.seconds:
        return {"time": _ERRORS.get(recorded.status, "RuntimeFailedConfig"), **times}
    samples = [seconds * 1e3 for seconds in recorded.seconds]
    return {"time": statistics.fmean(samples), "times": samples, **times}


def _sorted(values: list[Any]) -> list[Any]:
    return values if any(isinstance(value, str) for value in values) else sorted(values)


def _write(path: str | Path, document: dict[str, Any]) -> None:
    try:
        Path(path).write_text(json.dumps(document))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
