"""A fleet of simulated machines: a cluster of Ray on this machine, whose nodes wait as long as a candidate takes.

    with simulated_cluster(nodes=4) as cluster, Fleet.connect(cluster.address, workshop=Simulation(folder)) as fleet:
        measurer = fleet.measurer(SimulatedSetup(folder, seconds=0.1))

What a candidate "takes" follows from its point, so it is the same wherever it is measured. The folder holds a file per
node with what was measured there. `Simulation.disturb` slows a node down while it measures.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stormdrop.errors import MeasureError
from stormdrop.machine.cpu import Cpu
from stormdrop.measure.contract import Measurer
from stormdrop.measure.fleet.fleet_machine import LocalWorkshop
from stormdrop.measure.fleet.identity import Calibration, MachineIdentity
from stormdrop.measure.fleet.ray_cluster import RESOURCE
from stormdrop.trial import Candidate, Measurement, Phases, Request, Status

_TARGET = Cpu("cpu", "Simulated CPU", "generic", 2, 8, 16, 1 << 15, 1 << 20, 1 << 25)


@contextlib.contextmanager
def simulated_cluster(nodes: int, machines: int = 1, **head: Any) -> Iterator[Any]:
    """A cluster of so many nodes on this machine. The first one is the head. All its processes end with the context.

    Args:
        nodes: the number of nodes.
        machines: how many machines each node is.
        head: more arguments of the first node, as Ray's `Cluster.add_node` takes them.
    """
    from ray.cluster_utils import Cluster

    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    before = {name: os.environ.get(name) for name in quiet}
    os.environ.update(quiet)
    # A short path, because it holds sockets.
    folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
    Path("/tmp/ray").mkdir(exist_ok=True)  # Ray writes the address of the cluster there, whatever its `temp_dir` is
    cluster = Cluster()
    try:
        arguments = {"num_cpus": 0, "resources": {RESOURCE: machines}}
        cluster.add_node(**arguments, include_dashboard=False, temp_dir=folder.name, **head)
        for number in range(2, nodes + 1):
            cluster.add_node(**arguments, node_name=f"node{number}")
        yield cluster
    finally:
        cluster.shutdown()
        folder.cleanup()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def this_node() -> str:
    """Ray's id of the node on which this process runs."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


@dataclass(frozen=True)
class Simulation(LocalWorkshop):
    """What simulated machines measure with.

    Args:
        folder: is shared by all machines, and by the test.
        cpus: the CPU's model by the node's id, where it is not "Simulated CPU".
        calibrations: the seconds of the calibration kernel by the node's id, where they are not 1.
        at_a_time: how many candidates a machine takes at a time.
    """

    folder: Path
    cpus: Mapping[str, str] = field(default_factory=dict)
    calibrations: Mapping[str, float] = field(default_factory=dict)
    at_a_time: int = 1

    def disturb(self, node: str, factor: float) -> None:
        """Makes everything on a node take so many times as long from now on, its calibration kernel included."""
        (self.folder / f"{node}.slow").write_text(str(factor))

    def measured(self) -> dict[str, list[int]]:
        """The first coordinates of all points that were measured, by the node's id."""
        return {path.stem: [int(line) for line in path.read_text().split()] for path in self.folder.glob("*.measured")}

    def identify(self) -> MachineIdentity:
        """See `LocalWorkshop.identify`."""
        from dataclasses import replace

        return MachineIdentity(replace(_TARGET, cpu=self.cpus.get(this_node(), _TARGET.cpu)), "0a1b2c3d")

    def calibrate(self, seconds: float) -> Calibration:
        """See `LocalWorkshop.calibrate`."""
        return Calibration(self.calibrations.get(this_node(), 1.0) * slowness(self.folder))

    def width(self) -> int:
        """See `LocalWorkshop.width`."""
        return self.at_a_time

    def close(self) -> None:
        """See `LocalWorkshop.close`."""


@dataclass(frozen=True)
class SimulatedSetup:
    """How a simulated machine measures: a `Setup`.

    Args:
        folder: that of the `Simulation`.
        seconds: how long a candidate takes on average.
        spread: candidates take from `1 - spread` to `1 + spread` times as long, each always the same.
        failing: the first coordinates of points that crash.
    """

    folder: Path
    seconds: float = 0.1
    spread: float = 0.0
    failing: frozenset[int] = frozenset()

    def takes(self, candidate: Candidate) -> float:
        """The seconds that a candidate takes on a machine that nothing slows down.

        Example:
            >>> SimulatedSetup(Path("."), seconds=2.0).takes(Candidate("sketch", (7,)))
            2.0
        """
        uniform = zlib.crc32(repr(candidate.point).encode()) / 2**32
        return self.seconds * (1 + self.spread * (2 * uniform - 1))

    def __call__(self, workshop: Simulation, stop: threading.Event) -> Measurer:
        """The measurer."""
        return SimulatedBoard(self, stop)


class SimulatedBoard(Measurer):
    """Waits as long as a candidate takes, and answers with times that follow from its point."""

    def __init__(self, setup: SimulatedSetup, stop: threading.Event) -> None:
        """A board that measures as `setup` says, until `stop` is set."""
        self._setup, self._stop = setup, stop
        self._file = setup.folder / f"{this_node()}.measured"

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """See `Measurer.measure`."""
        for request in requests:
            if self._stop.wait(self._setup.takes(request.candidate) * slowness(self._setup.folder)):
                raise MeasureError("the measurement was stopped by its caller")
            with self._file.open("a") as file:
                file.write(f"{request.candidate.point[0]}\n")
            yield self._measurement(request.candidate, request.repeats)

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        """See `Measurer.race`."""
        time.sleep(sum(map(self._setup.takes, candidates)))
        return [self._measurement(candidate, rounds) for candidate in candidates]

    def close(self) -> None:
        """See `Measurer.close`. There is nothing to give back."""
        return

    def _measurement(self, candidate: Candidate, count: int) -> Measurement:
        phases = Phases(run=self._setup.takes(candidate))
        if candidate.point[0] in self._setup.failing:
            return Measurement(Status.RUNTIME, error="the worker ended with SIGSEGV while running", phases=phases)
        return Measurement(Status.OK, (1e-3 * (1 + sum(candidate.point)),) * count, phases=phases)


def slowness(folder: Path) -> float:
    """How many times as long as usual everything takes on this node."""
    try:
        return float((folder / f"{this_node()}.slow").read_text())
    except FileNotFoundError:
        return 1.0
