"""Kernels as contenders: schedules of any target, what nobody has scheduled, and the peers of the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stormdrop.bench.contender import ContenderSpec
from stormdrop.bench.peers import CUDA_OPERATOR_PEERS, OPERATOR_PEERS
from stormdrop.ir.workload import Workload
from stormdrop.machine.contract import CPU, CUDA, OPENCL, Machine
from stormdrop.model.building.compile import plain_schedules
from stormdrop.sketches.contract import Variant
from stormdrop.sketches.registry import sketches_for

ORIGINAL = "original"
"""The contender whose loops are as they were written; on a GPU they are only spread over blocks and threads."""

PEERS = {CPU: (*OPERATOR_PEERS, ORIGINAL), CUDA: (*CUDA_OPERATOR_PEERS, ORIGINAL), OPENCL: (ORIGINAL,)}
"""What takes part beside tuned kernels, by the kind of device."""

_ON_CPU, _ON_DEVICE = (f"stormdrop.bench.peers.ours:{maker}" for maker in ("TunedOperator", "OperatorOnDevice"))


def operator_specs(
    workload: Workload, target: Machine, tuned: Mapping[str, Mapping[str, Any]], peers: Sequence[str], seed: int
) -> list[ContenderSpec]:
    """The contenders of a race of kernels.

    Args:
        workload: The operator.
        target: The machine.
        tuned: By the name of a contender the "sketch" and the "config" of its kernel, as JSON has them.
        peers: Some of the target's `PEERS`.
        seed: Seeds the inputs.
    """
    inputs = workload.random_inputs(seed)
    ours = {"workload": workload, "inputs": inputs}
    theirs = {"operator": workload.name.split()[0], "arguments": dict(workload.arguments), "inputs": inputs}
    makers = {**OPERATOR_PEERS, **(CUDA_OPERATOR_PEERS if target.device == CUDA else {})}

    def on_device(name: str, variant: Variant) -> ContenderSpec:
        return ContenderSpec(name, _ON_DEVICE, {**ours, "target": target, "variant": variant}, target.device)

    if target.device == CPU:
        specs = [ContenderSpec(name, _ON_CPU, {**ours, **best}) for name, best in tuned.items()]
    else:
        specs = [on_device(name, scheduled(workload, target, **best)) for name, best in tuned.items()]
    for peer in peers:
        if peer == ORIGINAL:
            specs.append(on_device(peer, original(workload, target)))
        else:
            specs.append(ContenderSpec(peer, makers[peer], theirs, target.device))
    return specs


def scheduled(workload: Workload, target: Machine, sketch: str, config: Mapping[str, Any]) -> Variant:
    """A schedule by the name of its sketch and a configuration as JSON has it, for a GPU."""
    known = {each.name: each for each, _ in sketches_for(workload, target)}
    return known[sketch].apply(workload, target, with_tuples(config))


def original(workload: Workload, target: Machine) -> Variant:
    """The operator without a schedule; for a GPU its loops are spread over blocks and threads."""
    plain = workload.function if target.device == CPU else plain_schedules(target)(workload.function).function
    return Variant(plain)


def with_tuples(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as it was before it was written as JSON, which has no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in config.items()}
