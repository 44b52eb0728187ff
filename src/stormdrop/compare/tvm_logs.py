"""Reads what TVM's tuners have logged: Ansor, AutoTVM and MetaSchedule. Nothing of TVM is needed.

    Ansor         {"i": [[workload, target, ...], [[], steps]], "r": [[seconds, ...], error, all_seconds, when], ...}
    AutoTVM       {"input": [target, task, arguments, ...], "config": {"entity": [["tile_x", "sp", [-1, 8]], ...]},
                   "result": [[seconds, ...], error, ...], ...}
    MetaSchedule  [workload, [[instructions, [[position, decision], ...]], [seconds, ...], target, arguments]]

One line is one measured program. A configuration holds what may vary, by name:

- Ansor: the factors of each split step (`split4`), and the bound of the unrolling (`unroll22`). All other steps are the
  sketch: programs with equal steps are of one sketch, `ansor.0` for the first one in the file.
- AutoTVM: the entities of the configuration. Its task is the sketch.
- MetaSchedule: the decision of each sampling instruction, named as in `sketches/meta_schedule.py`: `tile0`, `choice0`,
  `location0`. The instructions before the postprocessors make the sketch, `design.0` for the first one in the file.

A workload is named by its text. A database of MetaSchedule keeps the workloads in a file of its own, which only the TVM
that wrote it can read: they are `workload 0`, `workload 1` and so on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..trial import Measurement, Phases, Status

_FAILED = 1e9  # seconds: TVM writes 1e10 for the time of a failure
_ERRORS = (
    Status.OK,
    Status.INSTANTIATION,
    Status.COMPILE_HOST,
    Status.COMPILE_DEVICE,
    Status.RUNTIME,
    Status.WRONG_ANSWER,
    Status.BUILD_TIMEOUT,
    Status.RUN_TIMEOUT,
    Status.UNKNOWN,
)
"""What the numbers of errors in the logs of Ansor and AutoTVM mean."""


@dataclass(frozen=True)
class LoggedTrial:
    """One line of a log.

    Attributes:
        workload: The name of the workload.
        sketch: What makes the structure of the program, as text.
        config: What may vary, by name.
        measurement: What was measured.
    """

    workload: str
    sketch: str
    config: dict[str, Any]
    measurement: Measurement


def is_tvm_log(content: bytes) -> bool:
    """Whether a file looks like a log of TVM's, by its first line."""
    return _reader(content.lstrip()[:200]) is not None


def read_tvm_log(content: bytes) -> list[LoggedTrial]:
    """The programs in a log, with short names of their sketches.

    Raises:
        ValueError: A line is malformed. The message says which one, and why.
    """
    read, prefix = _reader(content.lstrip()[:200]) or (_ansor, "ansor")
    trials: list[LoggedTrial] = []
    names: dict[tuple[str, str], str] = {}
    counts: dict[str, int] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            trial = read(json.loads(line))
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            raise ValueError(f"line {number} is no program of {prefix}'s: {type(error).__name__}: {error}") from error
        key = trial.workload, trial.sketch
        if key not in names:
            index = counts.setdefault(trial.workload, 0)
            counts[trial.workload] += 1
            names[key] = trial.sketch if read is _autotvm else f"{prefix}.{index}"
        trials.append(LoggedTrial(trial.workload, names[key], trial.config, trial.measurement))
    return trials


def _reader(beginning: bytes) -> tuple[Callable[[Any], LoggedTrial], str] | None:
    text = beginning.replace(b" ", b"")
    if text.startswith(b'{"i":'):
        return _ansor, "ansor"
    if text.startswith(b'{"input":'):
        return _autotvm, "autotvm"
    if text[:1] == b"[" and text[1:].lstrip(b"0123456789").startswith(b",[["):
        return _meta_schedule, "design"
    return None


def _ansor(line: Any) -> LoggedTrial:
    (workload, *_), (_, steps) = line["i"]
    config: dict[str, Any] = {}
    structure: list[Any] = []
    for position, step in enumerate(steps):
        kind = step[0]
        if kind == "SP":  # stage, iterator, extent, factors, whether from the inside
            extent, factors = step[3], [int(factor) for factor in step[4]]
            outer = [math.ceil(extent / math.prod(factors))] if len(factors) > 1 else []
            config[f"split{position}"] = (*outer, *factors)
            structure.append([*step[:3], len(factors), step[5]])
        elif kind == "PR":  # stage, iterator, such as auto_unroll_max_step$512
            pragma, _, value = step[3].partition("$")
            config[f"unroll{position}"] = int(value)
            structure.append([*step[:3], pragma])
        else:
            structure.append(step)
    return LoggedTrial(_words(json.loads(workload)), json.dumps(structure), config, _logged(line["r"]))


def _autotvm(line: Any) -> LoggedTrial:
    _, task, arguments, *_ = line["input"]
    config: dict[str, Any] = {}
    for name, kind, value in line["config"]["entity"]:
        if kind == "sp":
            config[str(name)] = tuple(int(factor) for factor in value)
        else:
            config[str(name)] = value if isinstance(value, int | float | str) else json.dumps(value)
    return LoggedTrial(f"{task} {_words(arguments)}", str(task), config, _logged(line["result"]))


def _meta_schedule(line: Any) -> LoggedTrial:
    workload, ((instructions, decisions), seconds, *_) = line
    counts = {"tile": 0, "choice": 0, "location": 0}
    decided = {int(position): decision for position, decision in decisions}
    config: dict[str, Any] = {}
    structure: list[Any] = []
    for position, instruction in enumerate(instructions):
        kind, _, attributes, *_ = instruction
        value: Any
        if kind == "EnterPostproc":
            break
        structure.append(instruction)
        if kind == "SamplePerfectTile":
            name, value = "tile", tuple(int(factor) for factor in decided[position])
        elif kind == "SampleCategorical":
            name, value = "choice", attributes[0][int(decided[position])]
        elif kind == "SampleComputeLocation":
            name, value = "location", int(decided[position])
        else:
            continue
        config[f"{name}{counts[name]}"] = value
        counts[name] += 1
    measurement = _measured([float(sample) for sample in seconds or ()], Status.UNKNOWN, Phases())
    return LoggedTrial(f"workload {int(workload)}", json.dumps(structure), config, measurement)


def _logged(result: Any) -> Measurement:
    """A result as Ansor and AutoTVM write it."""
    costs, error, whole, *_ = result
    seconds = [float(cost) for cost in costs]
    status = _ERRORS[error] if 0 <= error < len(_ERRORS) else Status.UNKNOWN
    if status is not Status.OK:
        return Measurement(status, error=f"recorded as {status.value}", phases=Phases(build=float(whole)))
    rest = max(0.0, float(whole) - sum(seconds))
    return _measured(seconds, Status.UNKNOWN, Phases(build=rest))


def _measured(seconds: list[float], otherwise: Status, phases: Phases) -> Measurement:
    """The samples; a failure if there are none, or if one stands for a failure."""
    if seconds and all(0 < sample < _FAILED for sample in seconds):
        return Measurement(Status.OK, tuple(seconds), phases=phases)
    return Measurement(otherwise, error="recorded without a time", phases=phases)


def _words(value: Any) -> str:
    """A nested list as words, in its order."""
    return " ".join(map(_words, value)) if isinstance(value, list) else str(value)
