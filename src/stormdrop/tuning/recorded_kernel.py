"""An operator that the records hold, made again by its name: its work, and the code of its best schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import operators
from ..errors import StormdropError, UnsupportedFunction, one_line
from ..ir.workload import Workload
from ..machine.cpu import Cpu
from ..machine.limits.peak import Peak, known_peak
from ..records import StoredSession
from ..sketches.contract import Variant
from ..sketches.registry import SOURCES, sketches_for
from ..sketches.steps import steps


@dataclass(frozen=True)
class RecordedKernel:
    """What can be said of a recorded kernel without measuring it.

    Attributes:
        flops: Floating-point operations of one execution.
        bytes: Bytes that one execution must move at least.
        limits: The limits of the machine that it was tuned on; None unless that is this machine and they are known.
        tir: The TensorIR of its best schedule; None if it cannot be made.
        reason: Why it cannot be made; empty if it can.
        steps: What this schedule does, in lines; None if it cannot be made.
    """

    flops: float
    bytes: float
    limits: Peak | None
    tir: str | None
    reason: str = ""
    steps: str | None = None


def recorded_kernel(session: StoredSession) -> RecordedKernel:
    """Makes the kernel of a session again.

    Args:
        session: The session.

    Raises:
        UnsupportedFunction: It is no operator, or this version of stormdrop makes another function of it.
        OperatorError: Its arguments are none of the operator.
    """
    problem, outcome = session.problem, session.outcome
    workload = _workload(problem.workload_name, problem.workload_text)
    here = Cpu.detect()
    if not problem.machine.startswith(here.machine):
        return RecordedKernel(workload.flops, workload.bytes, None, None, f"it was tuned on {problem.machine}")
    limits = known_peak(here)
    if outcome is None:
        return RecordedKernel(workload.flops, workload.bytes, limits, None, "the session has no result yet")
    if outcome.sketch is None or outcome.config is None:
        return RecordedKernel(workload.flops, workload.bytes, limits, None, "it has no best schedule")
    try:
        variant = _scheduled(workload, here, outcome.sketch, outcome.config, session.setting.sketches)
    except StormdropError as error:
        return RecordedKernel(workload.flops, workload.bytes, limits, None, one_line(error))
    tir = str(variant.main.script())
    return RecordedKernel(workload.flops, workload.bytes, limits, tir, steps=steps(variant))


def _workload(name: str, text: str) -> Workload:
    """The workload of an operator, made by name: TVM's parser runs what a text says, and records may be anybody's."""
    operator, *arguments = name.split() or [""]
    pairs = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    if operator not in operators.names() or len(pairs) < len(arguments):
        raise UnsupportedFunction(f"{name} is no operator; the report of a tuned model shows the code of its kernels")
    workload = operators.create(operator, pairs)
    if workload.text != text:
        raise UnsupportedFunction(f"{name} is recorded as another function than this version makes of it")
    return workload


def _scheduled(
    workload: Workload, target: Cpu, sketch: str, config: Mapping[str, Any], fingerprints: Mapping[str, str]
) -> Variant:
    for source in SOURCES:
        for candidate, space in sketches_for(workload, target, source):
            if space.name == sketch and space.fingerprint == fingerprints.get(sketch):
                checked = space.config(space.point(config))  # records may be anybody's
                return candidate.apply(workload, target, checked)
    raise UnsupportedFunction(f"the sketch {sketch} has changed since")
