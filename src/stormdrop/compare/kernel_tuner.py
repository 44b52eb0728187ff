"""Kernel Tuner's cache files: recorded spaces of GPU kernels, of which the public collections hold hundreds.

    {"kernel_name": ..., "tune_params_keys": ["block_x", ...], "tune_params": {"block_x": [32, 64], ...},
     "cache": {"32,...": {"block_x": 32, ..., "time": 1.25, "times": [1.25, 1.26, ...],
                          "compile_time": ..., "verification_time": ..., "benchmark_time": ...}, ...}}

All times are milliseconds. What the format leaves to the reader:

- The space is what the file holds: a configuration that is not in `cache` violated the kernel's restrictions.
- A failure is named in `time`, in newer files in `__error__`, and was 1e20 in old ones. It decides: an entry that
  is marked as failed may hold `times` of another run beside it.
- Parameters keep their order and names, those with a single value too. Numbers are sorted and `Ordinal`; where
  any value is a string, the parameter is `Categorical`.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import SpaceError, SpaceFileError
from ..measure.replay import Recorded, Recording
from ..space import Categorical, Constraint, Knob, Ordinal, Space, Value
from ..trial import Candidate, Phases, Status

FAILURES = {
    "InvalidConfig": Status.INSTANTIATION,
    "CompilationFailedConfig": Status.COMPILE_DEVICE,
    "RuntimeFailedConfig": Status.RUNTIME,
}
"""Kernel Tuner's names for what went wrong; a name that is not among them is UNKNOWN."""

_FAILED_LONG_AGO = 1e20  # what old versions wrote for the time of a failure


def read_kernel_tuner(path: str | Path) -> Recording:
    """Reads a cache file (.json or .json.gz). Raises `SpaceFileError`: one line that says what is wrong."""
    path = Path(path)
    return kernel_tuner_recording(unpacked(path), path)


def unpacked(path: Path) -> bytes:
    """The content of a file, decompressed where it is gzip. Raises `SpaceFileError` where it cannot be read."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" or content.startswith(b"\x1f\x8b") else content
    except gzip.BadGzipFile as error:
        raise SpaceFileError(f"{path} is no gzip file, though its name ends in .gz: {error}") from error
    except (EOFError, zlib.error) as error:
        raise SpaceFileError(f"{path} is a gzip file that is cut off or damaged: {error}") from error
    except OSError as error:
        raise SpaceFileError(f"{path} cannot be read: {error.strerror or error}") from error


def kernel_tuner_recording(content: bytes, path: Path) -> Recording:
    """The recording in the content of a cache file; `path` gives it its name. Raises `SpaceFileError`."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise SpaceFileError(f"{path} is not JSON: {reason}; a cache that is still written to lacks its end") from error
    try:
        return _recording(data, path.name.removesuffix(".gz").removesuffix(".json"))
    except (_Malformed, OverflowError, SpaceError) as error:
        raise SpaceFileError(f"{path} is no Kernel Tuner cache: {error}") from error


class _Malformed(ValueError):
    """What is wrong with a file, in words."""


def _recording(data: Any, name: str) -> Recording:
    keys = _field(data, "tune_params_keys", list, "the file")
    params = _field(data, "tune_params", dict, "the file")
    cache = _field(data, "cache", dict, "the file")
    for key in keys:
        if not isinstance(key, str) or key not in params:
            raise _Malformed(f"parameter {key!r} of 'tune_params_keys' has no values in 'tune_params'")
    if not cache:
        raise _Malformed("its 'cache' is empty")
    knobs = [_knob(key, _field(params, key, list, "'tune_params'")) for key in keys]
    known: dict[tuple[Value, ...], Recorded] = {}
    for label, entry in cache.items():
        values = tuple(_value(entry, knob, label) for knob in knobs)
        if values in known:
            raise _Malformed(f"configuration {label!r} is there twice")
        known[values] = _recorded(entry, label)
    if not any(recorded.seconds for recorded in known.values()):
        raise _Malformed(f"none of its {len(known)} configurations worked")
    kernel = data.get("kernel_name")
    sketch = kernel if isinstance(kernel, str) and kernel else name
    space = Space(sketch, knobs, [Constraint.one_of(keys, known)])
    points = {values: _point(knobs, values) for values in known}
    return Recording(name, (space,), {Candidate(sketch, points[values]): known[values] for values in known})


def _point(knobs: list[Knob], values: tuple[Value, ...]) -> tuple[int, ...]:
    return tuple(i for knob, value in zip(knobs, values, strict=True) for i in knob.coordinates(value))


def _knob(name: str, values: list[Any]) -> Knob:
    for value in values:
        if not isinstance(value, str) and not _is_number(value):
            raise _Malformed(f"value {value!r} of parameter {name!r} is neither a number nor text")
    if any(isinstance(value, str) for value in values):
        return Categorical(name, values)
    return Ordinal(name, sorted(values))


def _value(entry: Any, knob: Knob, label: str) -> Value:
    where = f"configuration {label!r}"
    value = _field(entry, knob.name, (int, float, str), where)
    try:
        return knob.value(knob.coordinates(value))
    except SpaceError as error:
        raise _Malformed(f"{where}: 'tune_params' does not list {value!r} for {knob.name!r}") from error


def _recorded(entry: Mapping[str, Any], label: str) -> Recorded:
    where = f"configuration {label!r}"
    phases = Phases(
        build=_milliseconds(entry.get("compile_time", 0.0), "compile_time", where),
        run=_milliseconds(entry.get("benchmark_time", 0.0), "benchmark_time", where),
        check=_milliseconds(entry.get("verification_time", 0.0), "verification_time", where),
    )
    error = entry.get("__error__", entry.get("time"))
    if isinstance(error, str):
        return Recorded((), FAILURES.get(error, Status.UNKNOWN), error, phases)
    time = _field(entry, "time", (int, float), where)
    if time >= _FAILED_LONG_AGO:
        return Recorded((), Status.UNKNOWN, f"its time is {time:g}, which stands for a failure", phases)
    times = _field(entry, "times", list, where) if "times" in entry else [time]
    if not times:
        raise _Malformed(f"{where} has no 'times'")
    seconds = tuple(_milliseconds(sample, "times", where) for sample in times)
    if min(seconds) <= 0:
        raise _Malformed(f"{where} has a time that is not positive: {min(times)}")
    return Recorded(seconds, phases=phases)


def _field(data: Any, name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """A field of a JSON object that must be there and of a kind."""
    if not isinstance(data, dict):
        raise _Malformed(f"{where} is no JSON object")
    if name not in data:
        raise _Malformed(f"{where} has no {name!r}")
    if not isinstance(data[name], kind):
        kinds = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise _Malformed(f"{name!r} of {where} must be {kinds}, not {data[name]!r:.40}")
    return data[name]


def _milliseconds(value: Any, name: str, where: str) -> float:
    """Milliseconds as seconds."""
    if isinstance(value, bool) or not _is_number(value):
        raise _Malformed(f"{name!r} of {where} holds {value!r:.40}, which is no number of milliseconds")
    return float(value) / 1e3


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
