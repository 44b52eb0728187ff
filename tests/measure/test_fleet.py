"""Four nodes on this machine: machines that die, hang, fall behind, drift, are in use, or are of another kind."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from stand_ins.simulated_fleet import SimulatedSetup, Simulation, simulated_cluster
from stormdrop.errors import TargetError
from stormdrop.measure.fleet import fleet as fleet_module
from stormdrop.measure.fleet import lease
from stormdrop.measure.fleet.fleet import Fleet
from stormdrop.measure.fleet.status import fleet_status
from stormdrop.trial import Candidate, Request

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stormdrop[ray]'")

pytestmark = pytest.mark.long


FROM_OUTSIDE = """
import sys
from pathlib import Path
from stormdrop.measure.fleet import Fleet
from stand_ins.simulated_fleet import SimulatedSetup, Simulation
from stormdrop.trial import Candidate, Request

address, folder = sys.argv[1], Path(sys.argv[2])
with Fleet.connect(address, workshop=Simulation(folder)) as fleet:
    with fleet.measurer(SimulatedSetup(folder, seconds=0.02)) as measurer:
        found = measurer.measure([Request(Candidate("sketch", (point,)), 1) for point in range(12)])
        print(len(fleet.leases), *(round(1e3 * measurement.seconds[0]) for measurement in found))
"""
"""A program that is no node of the cluster."""


@pytest.fixture(scope="module")
def client_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(client_port: int) -> Iterator[Any]:
    with simulated_cluster(nodes=4, ray_client_server_port=client_port) as started:
        yield started


@pytest.fixture
def simulation(tmp_path: Path) -> Simulation:
    return Simulation(tmp_path)


def requests(count: int) -> list[Request]:
    return [Request(Candidate("sketch", (point,)), 2) for point in range(count)]


def expected(count: int) -> list[tuple[float, ...]]:
    return [(1e-3 * (1 + point),) * 2 for point in range(count)]


def processes(node: Any) -> list[psutil.Process]:
    """Ray's daemon on a node, and everything that it has started there."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return [raylet, *raylet.children(recursive=True)]


def test_all_machines_measure_and_each_candidate_once(cluster: Any, simulation: Simulation) -> None:
    setup = SimulatedSetup(simulation.folder, seconds=0.05, failing=frozenset({3}))
    with Fleet.connect(cluster.address, workshop=simulation) as fleet, fleet.measurer(setup) as measurer:
        assert len(fleet.leases) == fleet.width == 4
        found = list(measurer.measure(requests(40)))
        raced = measurer.race([Candidate("sketch", (point,)) for point in (1, 3, 2)], 5)
        conditions = measurer.conditions()
    ok = [measurement.seconds for measurement in found if measurement.ok]
    assert ok == [seconds for point, seconds in enumerate(expected(40)) if point != 3]
    assert [len(measurement.seconds) for measurement in raced] == [5, 0, 5]
    by_node = simulation.measured()
    counts = Counter(point for points in by_node.values() for point in points)
    assert len(by_node) == 4 and counts.keys() == set(range(40))
    assert counts[3] == 3, "a crash has three witnesses"
    assert conditions["machines"] == 4 and conditions["machines_lost"] == 0 and len(conditions["calibrations"]) == 4


def test_machines_that_are_in_use_are_shown_and_waited_for_and_one_drifts(
    cluster: Any, simulation: Simulation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = SimulatedSetup(simulation.folder, seconds=0.05)
    with Fleet.connect(cluster.address, workshop=simulation) as fleet, fleet.measurer(setup) as measurer:
        with pytest.raises(TargetError, match=r"no machine became free within 0.5 s: all are in use"):
            Fleet.connect(cluster.address, workshop=simulation, seconds=0.5)
        measurements = measurer.measure(requests(30))
        first = [next(measurements)]
        status = fleet_status(cluster.address, simulation)
        assert [machine.health for machine in status.machines] == ["in use"] * 4
        assert {machine.group for machine in status.machines} == {"A"}
        assert all(f"process {psutil.Process().pid}" in machine.holder for machine in status.machines)
        monkeypatch.setattr(fleet_module, "CALIBRATION_SECONDS", 0.1)
        drifting = fleet.leases[-1].name
        node = next(machine.node for machine in status.machines if machine.name == drifting)
        simulation.disturb(node, 1.5)
        found = [*first, *measurements, *measurer.measure(requests(8))]
        assert [measurement.seconds for measurement in found] == [*expected(30), *expected(8)]
        assert [place.name for place in measurer.places if place.lost] == [drifting]
    assert "waiting for a machine: all of" in caplog.text
    drift = "it has drifted: its calibration kernel takes 1.50 times as long as at the beginning"
    assert f"machine {drifting} of {cluster.address} is given up: {drift}" in caplog.text
    status = fleet_status(cluster.address, simulation)
    assert [machine.health for machine in status.machines] == ["ready"] * 4
    assert sorted(str(machine.group) for machine in status.machines) == ["A", "A", "A", "B"], "it is still slower"


def test_machines_of_another_kind_are_refused_by_name(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = {machine.name: machine.node for machine in fleet_status(cluster.address, Simulation(tmp_path)).machines}
    mixed = Simulation(tmp_path, cpus={ids["node2"]: "Other CPU"}, calibrations={ids["node3"]: 1.3})
    with Fleet.connect(cluster.address, workshop=mixed, kind="simulated") as fleet:
        assert {lease.name for lease in fleet.leases} == ids.keys() - {"node2", "node3"}
        assert fleet.target.machine == "Simulated CPU, 2 cores"
    assert "machine node2 of" in caplog.text and "is left out: it is of another kind: Other CPU, 2 cores" in caplog.text
    assert "node3" in caplog.text and "its calibration kernel takes 1.30 times as long as that of" in caplog.text
    with Fleet.connect(cluster.address, workshop=mixed, kind="node2") as fleet:
        assert [lease.name for lease in fleet.leases] == ["node2"]
    with pytest.raises(
        TargetError, match=r"it has machines of several kinds, choose one with --device: .*node2: Other"
    ):
        Fleet.connect(cluster.address, workshop=mixed)
    with pytest.raises(TargetError, match=r"it has no machine of the kind 'Otter CPU'; did you mean 'Other CPU'"):
        Fleet.connect(cluster.address, workshop=mixed, kind="Otter CPU")


def test_a_machine_that_is_no_node_of_the_cluster(cluster: Any, client_port: int, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Ray's client is not installed: pip install 'stormdrop[ray]'")
    words = [sys.executable, "-c", FROM_OUTSIDE, f"ray://127.0.0.1:{client_port}", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.split() == ["4", *map(str, range(1, 13))], done.stderr


@pytest.mark.timeout(600)  # most of it waits for what does not come back
def test_nodes_that_are_killed_stopped_and_slowed_in_mid_run(
    cluster: Any, simulation: Simulation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lease, "SILENT_SECONDS", 5.0)
    count, nodes = 120, {}
    for name in ("killed", "stopped", "slowed"):
        nodes[name] = cluster.add_node(num_cpus=0, resources={"stormdrop": 1}, node_name=name)
    ids = {machine.name: machine.node for machine in fleet_status(cluster.address, simulation).machines}
    setup = SimulatedSetup(simulation.folder, seconds=0.2)
    stopped: list[psutil.Process] = []
    try:
        with Fleet.connect(cluster.address, workshop=simulation) as fleet, fleet.measurer(setup) as measurer:
            assert len(fleet.leases) == 7
            measurements = measurer.measure(requests(count))
            found = [next(measurements) for _ in range(8)]
            for process in processes(nodes["killed"]):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            stopped = processes(nodes["stopped"])
            for process in stopped:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            simulation.disturb(ids["slowed"], 50.0)
            found += measurements
            lost = {place.name: place.reason for place in measurer.places if place.lost}
            for _ in range(20):  # whoever has not been missed yet is missed now
                if len(lost) < 3:
                    assert len(list(measurer.measure(requests(20)))) == 20
                    lost = {place.name: place.reason for place in measurer.places if place.lost}
        assert [measurement.seconds for measurement in found] == expected(count)
        assert lost.keys() == {"killed", "stopped", "slowed"}
        assert "it is gone" in lost["killed"] and "it has not answered for 5 s" in lost["stopped"]
        assert "it has drifted: its calibration kernel takes 50.00 times as long" in lost["slowed"]
        assert caplog.text.count("is given up") == 3
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        for node in nodes.values():
            cluster.remove_node(node, allow_graceful=False)
    assert not [thread for thread in threading.enumerate() if "_work" in thread.name], "nobody waits any more"
