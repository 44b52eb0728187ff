"""The machines of a cluster at this moment: what they are, who measures there, and whether they are well.

A machine that nobody uses is taken for a moment, and calibrated. One that is in use is asked what its holder knows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...errors import MeasureError, TargetError
from . import ray_cluster
from .fleet_machine import LocalWorkshop, Sign
from .identity import Calibration, MachineIdentity, calibrated_alike
from .lease import Lease
from .ray_cluster import Node
from .selection import actor_name, lease_all, machine_name

READY, IN_USE, SILENT, LOST, UNUSABLE = "ready", "in use", "silent", "lost", "unusable"

_SILENT_SECONDS = 5.0  # without a sign of life
_LOCK_SECONDS = 10.0  # for which a machine is waited for that something outside of Ray measures on


@dataclass(frozen=True)
class MachineStatus:
    """A machine of a fleet.

    Args:
        name: What people call it.
        node: Ray's id of its node.
        health: "ready"; "in use"; "silent", if it should answer and does not; "lost", if Ray does not hear from its
            node; "unusable", for the reason that is given.
        reason: Why it is unusable; empty otherwise.
        kind: Its CPU and its cores; None if unknown.
        features: A digest of its instruction set extensions; None if unknown.
        calibration: Wall seconds of 10⁹ operations of the calibration kernel; None if unknown.
        group: A letter; machines of one group are equal and measure together. None if unknown.
        holder: Who measures there; empty if nobody.
        since: When that began, as a Unix time in seconds; None if nobody does.
        measured: Candidates that were measured for the holder.
        queue: Candidates that the machine has and has not measured yet; None if unknown.
    """

    name: str
    node: str
    health: str
    reason: str = ""
    kind: str | None = None
    features: str | None = None
    calibration: float | None = None
    group: str | None = None
    holder: str = ""
    since: float | None = None
    measured: int = 0
    queue: int | None = None


@dataclass(frozen=True)
class FleetStatus:
    """The machines of a cluster.

    Args:
        ray: The version of Ray.
        machines: The machines, by name.
    """

    ray: str
    machines: Sequence[MachineStatus]


def fleet_status(address: str, workshop: LocalWorkshop | None = None) -> FleetStatus:
    """Looks at all machines of a cluster.

    Args:
        address: "auto", "HOST:PORT" or "ray://HOST:PORT".
        workshop: What the machines measure with; themselves by default.

    Raises:
        TargetError: There is no cluster, or no node of it measures.
    """
    connected = ray_cluster.connect(address)
    try:
        import ray

        return FleetStatus(ray.__version__, _machines(address, workshop or LocalWorkshop()))
    finally:
        if connected:
            ray_cluster.disconnect()


def _machines(address: str, workshop: LocalWorkshop) -> list[MachineStatus]:
    nodes = ray_cluster.nodes()
    if not any(node.alive for node in nodes):
        raise TargetError(ray_cluster.without_machines(address))
    alive = [node for node in nodes if node.alive]
    leases, refused = lease_all(alive, workshop)
    try:
        calibrations = _calibrated(leases, refused)
        free = {lease.name: lease for lease in leases}
        found: list[tuple[MachineStatus, MachineIdentity | None]] = []
        for node in nodes:
            if not node.alive:
                found.append((MachineStatus(node.name, node.id, LOST), None))
            for slot in range(node.machines):
                name = machine_name(node, slot)
                status = MachineStatus(name, node.id, READY, queue=0)
                if name in refused:
                    found.append((replace(status, health=UNUSABLE, reason=refused[name], queue=None), None))
                elif name in free:
                    identity = free[name].identity
                    found.append((_known(status, identity, calibrations[name]), identity))
                else:
                    found.append(_in_use(status, node, slot))
        return _grouped(found)
    finally:
        for lease in leases:
            lease.release()


def _calibrated(leases: Sequence[Lease], refused: dict[str, str]) -> dict[str, Calibration]:
    """The calibrations by the machine's name. Machines that cannot be calibrated are refused."""
    asked = [(lease, lease.begin("calibrate", _LOCK_SECONDS)) for lease in leases]
    calibrations = {}
    for lease, answer in asked:
        try:
            calibrations[lease.name] = lease.answer(answer)
        except MeasureError as error:
            refused[lease.name] = str(error)
    return calibrations


def _known(status: MachineStatus, identity: MachineIdentity, calibration: Calibration | None) -> MachineStatus:
    seconds = None if calibration is None else calibration.seconds
    return replace(status, kind=identity.kind, features=identity.features, calibration=seconds)


def _in_use(status: MachineStatus, node: Node, slot: int) -> tuple[MachineStatus, MachineIdentity | None]:
    """A machine that somebody holds, as it describes itself."""
    import ray

    try:
        lease = Lease(status.name, ray.get_actor(actor_name(node, slot), namespace=ray_cluster.NAMESPACE))
        end = time.perf_counter() + _SILENT_SECONDS
        sign: Sign = lease.answer(lease.begin("ping"), lambda: time.perf_counter() > end)
    except (MeasureError, ValueError):  # it does not answer, or its holder has just given it back
        return replace(status, health=SILENT, queue=None), None
    held = replace(
        status, health=IN_USE, holder=sign.holder, since=sign.since, measured=sign.measured, queue=sign.queue
    )
    return held if sign.identity is None else _known(held, sign.identity, sign.calibration), sign.identity


def _grouped(found: Sequence[tuple[MachineStatus, MachineIdentity | None]]) -> list[MachineStatus]:
    """The machines with the letters of their groups, the largest group of each kind first."""
    groups: dict[int, str] = {}
    for identity in dict.fromkeys(identity for _, identity in found if identity is not None):
        left = {
            index: Calibration(status.calibration)
            for index, (status, other) in enumerate(found)
            if other == identity and status.calibration is not None
        }
        while left:
            letter = _letter(len(set(groups.values())))
            for index in calibrated_alike(left):
                groups[index] = letter
                del left[index]
    return [replace(status, group=groups.get(index)) for index, (status, _) in enumerate(found)]


def _letter(number: int) -> str:
    """A, B, ... Z, A1, B1, ..."""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")
