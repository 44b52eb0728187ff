"""A fleet: equal machines of a cluster of Ray that measure for this process at the same time.

    with Fleet.connect("ray://head:10001") as fleet:         leases all machines of one kind that are free
        with fleet.measurer(KernelSetup(...)) as measurer:    measures one workload on all of them

Ray starts an actor on each machine (`fleet_machine.py`), and this process calls it (`lease.py`). A machine is a
node with the custom resource "stormdrop", which one actor takes as a whole, together with the node's CPUs. So nobody
else measures there, and Ray runs nothing else there. When this process ends, in whatever way, Ray ends its actors.

Machines are of one kind if they are equal in what they are and calibrate alike (`measure/fleet/identity.py`).
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import cloudpickle

from ...errors import InputError, LockTimeout, MeasureError
from ...machine import threads
from ...machine.contract import CPU, Machine
from ...machine.cpu import Cpu
from ..contract import Site
from ..places import Place, PlacesMeasurer
from . import ray_cluster
from .fleet_machine import LocalWorkshop, Setup
from .identity import MachineIdentity, has_drifted, identify
from .lease import Lease, LeasedMachine, Overtaken
from .selection import WAIT_SECONDS, lease_equal_machines

CALIBRATION_SECONDS = 300.0
"""Seconds after which a machine is calibrated again."""

_logger = logging.getLogger(__name__)
_workloads = itertools.count(1)


class Fleet(Site):
    """The machines that this process holds. Use it as a context: they are given back at its end.

    Attributes:
        address: The cluster.
        leases: The machines, all of one kind.
        refused: Why other machines were left out, by their names.
    """

    def __init__(self, address: str, leases: Sequence[Lease], refused: Mapping[str, str], connected: bool) -> None:
        """Use `Fleet.connect`."""
        self.address, self.leases, self.refused = address, list(leases), dict(refused)
        self._connected = connected

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        kind: str = "",
        like: MachineIdentity | None = None,
        workshop: LocalWorkshop | None = None,
        seconds: float = WAIT_SECONDS,
    ) -> Fleet:
        """Leases all machines of one kind that are free, and waits if there are none.

        Args:
            address: "auto", "HOST:PORT" or "ray://HOST:PORT", as `ray_cluster` says.
            kind: Which machines to take: the name of one of them, or a part of their kind, such as "EPYC 9654". By
                default the kind of `like`, or the only one.
            like: The kind to take if there are several and `kind` names none; that of this machine usually.
            workshop: What the machines measure with; themselves by default. Tests simulate machines by it.
            seconds: How long it waits for a free machine.

        Raises:
            TargetError: There is no cluster, no machine of the kind, or none became free.
        """
        connected = ray_cluster.connect(address)
        try:
            leases, refused = lease_equal_machines(address, kind, like, workshop or LocalWorkshop(), seconds)
        except BaseException:
            if connected:
                ray_cluster.disconnect()
            raise
        for name, reason in refused.items():
            _logger.warning("machine %s of %s is left out: %s", name, address, reason)
        return cls(address, leases, refused, connected)

    @property
    def identity(self) -> MachineIdentity:
        """What its machines are."""
        return self.leases[0].identity

    @property
    def target(self) -> Cpu:
        """The machine that kernels are made for, and that measurements are recorded of."""
        return self.identity.target

    @property
    def width(self) -> int:
        """How many candidates keep all its machines busy."""
        return sum(lease.width for lease in self.leases if not lease.lost)

    def check(self, target: Machine) -> None:
        """See `Site.check`."""
        if target.device != CPU:
            raise InputError(f"target {target.name} is a GPU: a fleet measures on the CPUs of its machines")

    def measurer(self, setup: Setup) -> FleetMeasurer:
        """A measurer of one workload on all machines. Several may be open at a time, and work in turns.

        Args:
            setup: Makes the measurer on each machine, as a `KernelSetup` does. It is pickled.
        """
        workload, pickled, stop = next(_workloads), cloudpickle.dumps(setup), threading.Event()
        machines = [LeasedMachine(lease, workload, pickled, stop) for lease in self.leases if not lease.lost]
        return FleetMeasurer(self.address, machines, stop)

    def close(self) -> None:
        """Gives the machines back. Doing it twice is harmless."""
        leases, self.leases = self.leases, []
        for lease in leases:
            lease.release()
        if self._connected:
            ray_cluster.disconnect()
            self._connected = False


class FleetMeasurer(PlacesMeasurer):
    """Measures candidates of one workload on all machines of a fleet at the same time. A race takes place on one.

    A machine is calibrated again from time to time, and if it falls behind. One that has drifted is left out.
    """

    kind = "machine"
    patience = 2.0

    def __init__(self, address: str, machines: Sequence[LeasedMachine], stop: threading.Event) -> None:
        """Use `Fleet.measurer`."""
        super().__init__(address, [Place(each.lease.name, each, each.lease.width) for each in machines], stop)

    def conditions(self) -> dict[str, Any]:
        """How many machines were used, how many of them were lost, and the calibration of the others in seconds."""
        leases = [_machine(place).lease for place in self.places]
        return {
            "machines": len(leases),
            "machines_lost": sum(place.lost for place in self.places),
            "calibrations": {lease.name: lease.calibration.seconds for lease in leases if not lease.lost},
        }

    def _alive(self) -> list[Place]:
        """Those that have nothing to end come first, so that a race need not wait."""
        return sorted(super()._alive(), key=lambda place: not _machine(place).lease.idle)

    def _overtake(self, place: Place) -> None:
        machine = _machine(place)
        machine.lease.doubtful = True
        machine.unwanted.set()

    def _is_ready(self, place: Place, enough: Callable[[], bool]) -> bool:
        lease = _machine(place).lease
        try:
            if lease.lost:
                raise MeasureError(lease.lost)
            if not lease.finish(enough):
                return False
            if lease.doubtful or time.perf_counter() - lease.calibrated > CALIBRATION_SECONDS:
                self._calibrate(place, lease, enough)
        except Overtaken:
            return False
        except LockTimeout:
            raise
        except MeasureError as error:
            self._give_up(place, str(error))
        return not place.lost

    def _calibrate(self, place: Place, lease: Lease, enough: Callable[[], bool]) -> None:
        seconds = max(0.0, min(WAIT_SECONDS, self.deadline - time.perf_counter()))
        calibration = lease.calibrate(seconds, enough)
        if not has_drifted(lease.calibration, calibration):
            return
        ratio = calibration.seconds / lease.calibration.seconds
        drift = f"it has drifted: its calibration kernel takes {ratio:.2f} times as long as at the beginning"
        if self._others({place}):
            raise MeasureError(drift)
        _logger.warning("machine %s of %s: %s; it is the last one, so it goes on", place.name, self._where, drift)
        lease.calibration = calibration

    def _give_up(self, place: Place, reason: str) -> None:
        lease = _machine(place).lease
        if not lease.lost:
            lease.lost = reason.removeprefix("MeasureError: ")
            lease.release()
        super()._give_up(place, lease.lost)


def _machine(place: Place) -> LeasedMachine:
    assert isinstance(place.measurer, LeasedMachine)
    return place.measurer


@contextmanager
def fleet_for(fleet: Fleet | str | None, kind: str = "") -> Iterator[Fleet | None]:
    """A fleet for the time of a tuning. One that is given by its address is leased, and given back in the end.

    Args:
        fleet: A fleet, the address of a cluster of Ray, or None.
        kind: Which of its machines to take, if the fleet is given by its address, as for `Fleet.connect`. By default
            those of this machine's kind, if there are any, or those of the only kind.

    Raises:
        TargetError: There is no cluster, or no machine of the kind.
    """
    if not isinstance(fleet, str):
        yield fleet
        return
    threads.configure()  # before TVM is loaded, which says what this machine is
    ray_cluster.check_address(fleet)
    with Fleet.connect(fleet, kind=kind, like=identify()) as leased:
        yield leased
