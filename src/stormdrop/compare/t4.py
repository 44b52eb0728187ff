"""The format T4 of auto-tuning results, as Kernel Tuner and others write it, in terms of a cache of Kernel Tuner.

    {"schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"},
     "results": [{"configuration": {"block_x": 32, ...}, "invalidity": "correct", "correctness": 1,
                  "times": {"compilation": ..., "runtimes": [...], "validation": ..., "benchmark": ..., ...},
                  "measurements": [{"name": "time", "value": 1.25, "unit": "ms"}], "objectives": ["time"]}, ...]}

A configuration that violates a constraint is left out, since it is in no cache. One that occurs several times counts
once: the first of its results.
"""

from __future__ import annotations

from typing import Any

_FAILURES = {
    "compile": "CompilationFailedConfig",
    "runtime": "RuntimeFailedConfig",
    "timeout": "RuntimeFailedConfig",
    "correctness": "RuntimeFailedConfig",
}
"""Kernel Tuner's name for each kind of failure of T4."""

_TO_MILLISECONDS = {"milliseconds": 1.0, "ms": 1.0, "seconds": 1e3, "s": 1e3, "microseconds": 1e-3, "nanoseconds": 1e-6}


class Malformed(ValueError):
    """Says in words what is wrong with a file."""


def is_t4(data: Any) -> bool:
    """Whether a JSON document looks like T4."""
    return isinstance(data, dict) and "results" in data and "cache" not in data


def cache_of_t4(data: dict[str, Any]) -> dict[str, Any]:
    """The same results as a cache of Kernel Tuner.

    Raises:
        Malformed: A result lacks something, or has another kind of values.
    """
    results = data["results"]
    if not isinstance(results, list) or not results:
        raise Malformed("its 'results' are no list, or an empty one")
    unit = (data.get("metadata") or {}).get("timeunit", "seconds")
    if unit not in _TO_MILLISECONDS:
        raise Malformed(f"its 'timeunit' {unit!r} is unknown")
    values: dict[str, dict[Any, None]] = {}
    cache: dict[str, dict[str, Any]] = {}
    for number, result in enumerate(results):
        entry = _entry(result, number, _TO_MILLISECONDS[unit])
        if entry is None:
            continue
        configuration = result["configuration"]
        if values and values.keys() != configuration.keys():
            raise Malformed(f"result {number} has other parameters than the ones before it")
        for name, value in configuration.items():
            if not isinstance(value, int | float | str):
                raise Malformed(f"result {number}: value {value!r:.40} of {name!r} is neither a number nor text")
            values.setdefault(name, {})[value] = None
        cache.setdefault(",".join(map(str, configuration.values())), {**configuration, **entry})
    return {
        "tune_params_keys": list(values),
        "tune_params": {name: list(of_name) for name, of_name in values.items()},
        "cache": cache,
    }


def _entry(result: Any, number: int, factor: float) -> dict[str, Any] | None:
    """What a cache holds of a result besides its configuration; None if a constraint excludes the configuration."""
    if not isinstance(result, dict) or not isinstance(result.get("configuration"), dict):
        raise Malformed(f"result {number} has no 'configuration'")
    if not isinstance(result.get("times"), dict) or "invalidity" not in result:
        raise Malformed(f"result {number} has no 'times', or no 'invalidity'")
    invalidity, times = result["invalidity"], result["times"]
    if invalidity == "constraints":
        return None
    entry: dict[str, Any] = {
        "compile_time": _milliseconds(times, "compilation", factor, number),
        "benchmark_time": _milliseconds(times, "benchmark", factor, number),
        "verification_time": _milliseconds(times, "validation", factor, number),
    }
    if invalidity != "correct":
        if invalidity not in _FAILURES:
            raise Malformed(f"result {number}: 'invalidity' {invalidity!r:.40} is unknown")
        return {**entry, "__error__": _FAILURES[invalidity]}
    runtimes = times.get("runtimes")
    if isinstance(runtimes, list) and runtimes:
        if not all(isinstance(runtime, int | float) for runtime in runtimes):
            raise Malformed(f"result {number}: its 'runtimes' are no numbers")
        samples = [runtime * factor for runtime in runtimes]
        return {**entry, "times": samples, "time": sum(samples) / len(samples)}
    measured = {m.get("name"): m for m in result.get("measurements", ()) if isinstance(m, dict)}
    if "time" not in measured:
        raise Malformed(f"result {number} has neither 'runtimes' nor a measurement of the time")
    measurement = measured["time"]
    value, unit = measurement.get("value"), measurement.get("unit") or "ms"
    if not isinstance(value, int | float) or unit not in _TO_MILLISECONDS:
        raise Malformed(f"result {number}: {value!r:.40} {unit!r:.40} is no time")
    return {**entry, "time": value * _TO_MILLISECONDS[unit]}


def _milliseconds(times: dict[str, Any], name: str, factor: float, number: int) -> float:
    value = times.get(name, 0.0)
    if not isinstance(value, int | float):
        raise Malformed(f"result {number}: {name!r} is no number")
    return value * factor
