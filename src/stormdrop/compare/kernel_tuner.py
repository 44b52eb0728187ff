"""Reads Kernel Tuner's cache files: recorded spaces of GPU kernels. Public collections hold hundreds of them.

    {"kernel_name": ..., "tune_params_keys": ["block_x", ...], "tune_params": {"block_x": [32, 64], ...},
     "cache": {"32,...": {"block_x": 32, ..., "time": 1.25, "times": [1.25, 1.26, ...],
                          "compile_time": ..., "verification_time": ..., "benchmark_time": ...}, ...}}

A file in the format T4, which Kernel Tuner writes as output, is read as well (t4.py). All times are milliseconds. The
format leaves this to the reader:

- The space consists of what the file holds. A configuration that is not in `cache` violated the kernel's restrictions.
- Old files name a failure in `time`, newer ones in `__error__`. In the oldest the time of a failure is 1e20. An entry
  that is marked as failed has failed, even if it also holds `times` of another run.
- Parameters keep their order and their names, even those with a single value. Numbers are sorted and `Ordinal`. If any
  value is a string, the parameter is `Categorical`.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import SpaceError, SpaceFileError, shown
from ..measure.replay import Recorded, Recording
from ..space import Categorical, Constraint, Knob, Ordinal, Space, Value
from ..trial import Candidate, Phases, Status
from .t4 import Malformed, cache_of_t4, is_t4

FAILURES = {
    "InvalidConfig": Status.INSTANTIATION,
    "CompilationFailedConfig": Status.COMPILE_DEVICE,
    "RuntimeFailedConfig": Status.RUNTIME,
}
"""Kernel Tuner's names for failures. A name that is not among them is UNKNOWN."""

_MESSAGE = 400  # characters of a message about the content, at most
_RATIO = 100  # recorded spaces have a ratio of 3 to 5; gzip reaches 1,000
_SLACK = 1 << 20  # bytes: the ratio of a small file says nothing
_OLD_FAILURE_TIME = 1e20  # milliseconds: what old versions wrote for the time of a failure


def unpacked(path: Path) -> bytes:
    """The content of a file, decompressed if it is gzip.

    Raises:
        SpaceFileError: The file cannot be read.
    """
    try:
        content = path.read_bytes()
        return _decompressed(content, path) if path.suffix == ".gz" or content.startswith(b"\x1f\x8b") else content
    except gzip.BadGzipFile as error:
        raise SpaceFileError(f"{path} is no gzip file, though its name ends in .gz: {error}") from error
    except (EOFError, zlib.error) as error:
        raise SpaceFileError(f"{path} is a gzip file that is cut off or damaged: {error}") from error
    except OSError as error:
        raise SpaceFileError(f"{path} cannot be read: {error.strerror or error}") from error


def _decompressed(content: bytes, path: Path) -> bytes:
    """The content of a gzip file. Raises `SpaceFileError` if it is far larger than the file."""
    most = _SLACK + _RATIO * len(content)
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
        decompressed = stream.read(most + 1)
    if len(decompressed) > most:
        raise SpaceFileError(f"{path} decompresses to more than {_RATIO} times its size, which no recording does")
    return decompressed


def kernel_tuner_recording(content: bytes, path: Path) -> Recording:
    """The recording in the content of a cache file.

    Args:
        content: The content, decompressed.
        path: The file that it comes from. Its name without the suffix becomes the name of the recording.

    Raises:
        SpaceFileError: The content is no cache of Kernel Tuner. One line says why.
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise SpaceFileError(f"{path} is not JSON: {reason}; a cache that is still written to lacks its end") from error
    try:
        if is_t4(data):
            data = cache_of_t4(data)
        return _recording(data, path.name.removesuffix(".gz").removesuffix(".json"))
    except (Malformed, OverflowError, SpaceError) as error:
        raise SpaceFileError(f"{path} is no Kernel Tuner cache: {shown(str(error), _MESSAGE)}") from error


def _recording(data: Any, name: str) -> Recording:
    keys = _field(data, "tune_params_keys", list, "the file")
    params = _field(data, "tune_params", dict, "the file")
    cache = _field(data, "cache", dict, "the file")
    for key in keys:
        if not isinstance(key, str) or key not in params:
            raise Malformed(f"parameter {key!r} of 'tune_params_keys' has no values in 'tune_params'")
    if not cache:
        raise Malformed("its 'cache' is empty")
    knobs = [knob_of(key, _field(params, key, list, "'tune_params'")) for key in keys]
    recorded: dict[tuple[Value, ...], Recorded] = {}
    for label, entry in cache.items():
        values = tuple(_value(entry, knob, label) for knob in knobs)
        if values in recorded:
            raise Malformed(f"configuration {label!r} is there twice")
        recorded[values] = _recorded(entry, label)
    if not any(configuration.seconds for configuration in recorded.values()):
        raise Malformed(f"none of its {len(recorded)} configurations worked")
    kernel = data.get("kernel_name")
    sketch = kernel if isinstance(kernel, str) and kernel else name
    space = Space(sketch, knobs, [Constraint.one_of(keys, recorded)])
    candidates = {values: Candidate(sketch, space.point(dict(zip(keys, values, strict=True)))) for values in recorded}
    return Recording(name, (space,), {candidates[values]: recorded[values] for values in recorded})


def knob_of(name: str, values: list[Any]) -> Knob:
    """A parameter of Kernel Tuner as a knob: `Ordinal` if all values are numbers, else `Categorical`.

    Raises:
        ValueError: A value is neither a number nor text.
    """
    for value in values:
        if not isinstance(value, str) and not _is_number(value):
            raise Malformed(f"value {value!r} of parameter {name!r} is neither a number nor text")
    if any(isinstance(value, str) for value in values):
        return Categorical(name, values)
    return Ordinal(name, sorted(values))


def _value(entry: Any, knob: Knob, label: str) -> Value:
    """The value of a knob in a configuration of the cache."""
    owner = f"configuration {label!r}"
    value = _field(entry, knob.name, (int, float, str), owner)
    try:
        return knob.value(knob.coordinates(value))
    except SpaceError as error:
        raise Malformed(f"{owner}: 'tune_params' does not list {value!r} for {knob.name!r}") from error


def _recorded(entry: Mapping[str, Any], label: str) -> Recorded:
    owner = f"configuration {label!r}"
    phases = Phases(
        build=_seconds(entry.get("compile_time", 0.0), "compile_time", owner),
        run=_seconds(entry.get("benchmark_time", 0.0), "benchmark_time", owner),
        check=_seconds(entry.get("verification_time", 0.0), "verification_time", owner),
    )
    error = entry.get("__error__", entry.get("time"))
    if isinstance(error, str):
        return Recorded((), FAILURES.get(error, Status.UNKNOWN), error, phases)
    time = _field(entry, "time", (int, float), owner)
    if time >= _OLD_FAILURE_TIME:
        return Recorded((), Status.UNKNOWN, f"its time is {time:g}, which stands for a failure", phases)
    times = _field(entry, "times", list, owner) if "times" in entry else [time]
    if not times:
        raise Malformed(f"{owner} has no 'times'")
    seconds = tuple(_seconds(sample, "times", owner) for sample in times)
    if min(seconds) <= 0:
        raise Malformed(f"{owner} has a time that is not positive: {min(times)}")
    return Recorded(seconds, phases=phases)


def _field(data: Any, name: str, kind: type | tuple[type, ...], owner: str) -> Any:
    """A required field of a JSON object.

    Args:
        data: The object.
        name: The name of the field.
        kind: The type or types that its value may have.
        owner: What the object is, for errors.
    """
    if not isinstance(data, dict):
        raise Malformed(f"{owner} is no JSON object")
    if name not in data:
        raise Malformed(f"{owner} has no {name!r}")
    if not isinstance(data[name], kind):
        kinds = " or ".join(allowed.__name__ for allowed in (kind if isinstance(kind, tuple) else (kind,)))
        raise Malformed(f"{name!r} of {owner} must be {kinds}, not {data[name]!r:.40}")
    return data[name]


def _seconds(milliseconds: Any, name: str, owner: str) -> float:
    """The seconds of a field that holds milliseconds. `name` and `owner` are for errors."""
    if isinstance(milliseconds, bool) or not _is_number(milliseconds):
        raise Malformed(f"{name!r} of {owner} holds {milliseconds!r:.40}, which is no number of milliseconds")
    return float(milliseconds) / 1e3


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
