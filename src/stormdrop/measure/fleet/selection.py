"""Which machines of a cluster a process takes: free ones of the kind that it asks for, if they calibrate alike."""

from __future__ import annotations

import getpass
import logging
import os
import socket
import time
from collections.abc import Sequence

from ...errors import MeasureError, TargetError, hint
from . import ray_cluster
from .fleet_machine import WATCH, FleetMachine, LocalWorkshop, versions
from .identity import MachineIdentity, calibrated_alike
from .lease import Lease, Overtaken
from .ray_cluster import Node

WAIT_SECONDS = 600.0
"""Seconds for which a machine is waited for if others use all of them."""

START_SECONDS = 120.0
"""Seconds within which a machine says what it is. Loading TVM takes one of them, longer on a busy machine."""

_LOOK_SECONDS = 1.0  # between two looks for a free machine

_logger = logging.getLogger(__name__)


def lease_equal_machines(
    address: str, kind: str, like: MachineIdentity | None, workshop: LocalWorkshop, seconds: float
) -> tuple[list[Lease], dict[str, str]]:
    """Leases all machines of one kind that are free, and waits until there is one.

    The arguments are those of `Fleet.connect`.

    Returns:
        The leases, calibrated, and why other machines were left out, by their names.

    Raises:
        TargetError: There is no machine of the kind, or none became free.
    """
    said, deadline = False, time.perf_counter() + seconds
    while True:
        alive = [node for node in ray_cluster.nodes() if node.alive]
        if not alive:
            raise TargetError(ray_cluster.without_machines(address))
        leases, refused = lease_all(alive, workshop)
        try:
            if leases:
                return _equal_ones(address, leases, refused, kind, like), refused
        except BaseException:
            for lease in leases:
                lease.release()
            raise
        if refused:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
            raise TargetError(f"fleet {address}: no machine of it can measure: {reasons}")
        if time.perf_counter() > deadline:
            raise TargetError(f"fleet {address}: no machine became free within {seconds:g} s: all are in use")
        if not said:
            _logger.warning("waiting for a machine: all of %s are in use", address)
            said = True
        time.sleep(_LOOK_SECONDS)


def lease_all(nodes: Sequence[Node], workshop: LocalWorkshop) -> tuple[list[Lease], dict[str, str]]:
    """Leases of all machines that are free, and why others cannot be used. Those in use are in neither.

    Args:
        nodes: The nodes that measure.
        workshop: What the machines measure with.
    """
    leases = [
        lease for node in nodes for slot in range(node.machines) if (lease := _lease(node, slot, workshop)) is not None
    ]
    refused: dict[str, str] = {}
    here, taken = versions(), []
    asked = [(lease, lease.begin("identify")) for lease in leases]
    end = time.perf_counter() + START_SECONDS
    for lease, answer in asked:
        try:
            lease.identity, lease.width, there = lease.answer(answer, lambda: time.perf_counter() > end, START_SECONDS)
            different = [
                f"{name} {there.get(name)} there, {here[name]} here" for name in here if there[name] != here[name]
            ]
            if different:
                raise MeasureError(f"versions differ: {', '.join(different)}")
            taken.append(lease)
        except MeasureError as error:
            late = isinstance(error, Overtaken)
            refused[lease.name] = f"it does not start within {START_SECONDS:g} s" if late else str(error)
            lease.release()
    return taken, refused


def machine_name(node: Node, slot: int) -> str:
    """What people call a machine: its node, with a number if the node has several machines."""
    return node.name if node.machines == 1 else f"{node.name}#{slot + 1}"


def actor_name(node: Node, slot: int) -> str:
    """The name of the actor that holds a machine. Ray lets only one actor have it."""
    return f"machine {node.id} {slot}"


def _lease(node: Node, slot: int, workshop: LocalWorkshop) -> Lease | None:
    """A lease of a machine; None if it is in use."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor = ray.remote(concurrency_groups={WATCH: 1})(FleetMachine).options(
        name=actor_name(node, slot),
        namespace=ray_cluster.NAMESPACE,
        num_cpus=node.cpus / node.machines,
        resources={ray_cluster.RESOURCE: 1},
        scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
    )
    holder = f"{getpass.getuser()} on {socket.gethostname()}, process {os.getpid()}"
    try:
        return Lease(machine_name(node, slot), actor.remote(workshop, holder))
    except ValueError as error:
        if "already" not in str(error):
            raise
        return None  # somebody's actor has this name


def _equal_ones(
    address: str, leases: Sequence[Lease], refused: dict[str, str], kind: str, like: MachineIdentity | None
) -> list[Lease]:
    """The leases of one kind that calibrate alike. The others are given back, and the reasons are noted."""
    chosen = _chosen(address, leases, kind, like)
    same = []
    for lease in leases:
        if lease.identity == chosen:
            same.append(lease)
        else:
            refused[lease.name] = f"it is of another kind: {_difference(lease.identity, chosen)}"
            lease.release()
    asked = [(lease, lease.begin("calibrate", WAIT_SECONDS)) for lease in same]
    for lease, answer in asked:
        try:
            lease.calibration = lease.answer(answer)
            lease.calibrated = time.perf_counter()
        except MeasureError as error:
            refused[lease.name] = str(error)
            lease.release()
    alike = calibrated_alike({lease: lease.calibration for lease in same if lease.name not in refused})
    for lease in same:
        if lease not in alike and lease.name not in refused:
            ratio = lease.calibration.seconds / alike[0].calibration.seconds
            disturbed = "" if lease.calibration.undisturbed else ", and something else uses it"
            refused[lease.name] = (
                f"its calibration kernel takes {ratio:.2f} times as long as that of {alike[0].name}{disturbed}"
            )
            lease.release()
    if not alike:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise TargetError(f"fleet {address}: no machine of the kind {chosen.kind!r} can measure: {reasons}")
    return alike


def _chosen(address: str, leases: Sequence[Lease], kind: str, like: MachineIdentity | None) -> MachineIdentity:
    """The kind that is asked for."""
    identities = {lease.identity: None for lease in leases}
    if kind:
        for lease in leases:
            if lease.name == kind:
                return lease.identity
        found = [identity for identity in identities if kind.lower() in identity.kind.lower()]
        if not found:
            names = [*(identity.target.cpu for identity in identities), *(lease.name for lease in leases)]
            raise TargetError(f"fleet {address}: it has no machine of the kind {kind!r}; {hint(kind, names)}")
        return found[0]
    if like in identities or len(identities) == 1:
        return like if like is not None and like in identities else next(iter(identities))
    machines = "; ".join(f"{lease.name}: {lease.identity.kind}" for lease in leases)
    raise TargetError(f"fleet {address}: it has machines of several kinds, choose one with --device: {machines}")


def _difference(identity: MachineIdentity, chosen: MachineIdentity) -> str:
    if identity.kind != chosen.kind:
        return f"{identity.kind}; asked for is {chosen.kind}"
    return f"{identity.kind}, but with other features or caches than the one asked for"
