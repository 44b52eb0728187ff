"""How busy a fleet keeps its machines, and what faults cost: simulated boards on a cluster of Ray on this machine.

    python benchmarks/fleet/throughput.py                  4, 16 and 64 boards on four nodes, then the faults
    python benchmarks/fleet/throughput.py --real           real kernels on a cluster of one node, with and without Ray

A simulated board waits as long as a candidate takes, and computes nothing. So this machine may be busy with something
else, as long as it can start a process per board. The ideal is that all boards work all the time. `--real` measures
kernels: run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from stormdrop import Cpu, operators
from stormdrop.measure.contract import KernelSetup, Measurer
from stormdrop.measure.fleet.fleet import Fleet, FleetMeasurer
from stormdrop.measure.fleet.identity import identify
from stormdrop.measure.fleet.status import fleet_status
from stormdrop.measure.local import LocalMeasurer
from stormdrop.sketches.registry import sketches_for
from stormdrop.statistics import median_interval
from stormdrop.trial import Candidate, Request

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from _common import machine, save

from stand_ins.simulated_fleet import SimulatedSetup, Simulation, simulated_cluster

NODES = 4


def requests(count: int) -> list[Request]:
    return [Request(Candidate("sketch", (point,)), 1) for point in range(count)]


def throughput(boards: int, seconds: float, spread: float, per_board: int) -> dict[str, Any]:
    """One run: so many candidates per board in one stream, and the same in batches as tunings ask for them."""
    with (
        tempfile.TemporaryDirectory() as folder,
        simulated_cluster(NODES, machines=boards // NODES) as cluster,
        Fleet.connect(cluster.address, workshop=Simulation(Path(folder))) as fleet,
    ):
        setup = SimulatedSetup(Path(folder), seconds, spread)
        with fleet.measurer(setup) as measurer:
            list(measurer.measure(requests(boards)))  # every board has loaded its workload
            asked = requests(boards * per_board)
            ideal = sum(setup.takes(request.candidate) for request in asked) / boards
            begin = time.perf_counter()
            list(measurer.measure(asked))
            stream = time.perf_counter() - begin
            begin = time.perf_counter()
            for first in range(0, len(asked), 2 * boards):  # a search that waits for a batch before the next
                list(measurer.measure(asked[first : first + 2 * boards]))
            batches = time.perf_counter() - begin
            begin = time.perf_counter()
            for first in range(0, len(asked), boards):  # a search that asks ahead
                measurer.announce(asked[first : first + 2 * boards])
                list(measurer.measure(asked[first : first + boards]))
            ahead = time.perf_counter() - begin
        assert len(fleet.leases) == boards
    return {
        "boards": boards,
        "candidates": len(asked),
        "candidate_seconds": seconds,
        "spread": spread,
        "ideal_seconds": ideal,
        "stream_seconds": stream,
        "stream_share_of_ideal": ideal / stream,
        "ahead_seconds": ahead,
        "ahead_share_of_ideal": ideal / ahead,
        "batches_seconds": batches,
        "batches_share_of_ideal": ideal / batches,
    }


def faults(seconds: float, count: int) -> dict[str, Any]:
    """Seven boards, of which one is killed, one is stopped and one becomes 50 times as slow in mid-run."""
    with tempfile.TemporaryDirectory() as name, simulated_cluster(NODES) as cluster:
        folder = Path(name)
        simulation = Simulation(folder)
        nodes = {
            fault: cluster.add_node(num_cpus=0, resources={"stormdrop": 1}, node_name=fault)
            for fault in ("killed", "stopped", "slowed")
        }
        ids = {each.name: each.node for each in fleet_status(cluster.address, simulation).machines}
        with (
            Fleet.connect(cluster.address, workshop=simulation) as fleet,
            fleet.measurer(SimulatedSetup(folder, seconds)) as measurer,
        ):
            begin = time.perf_counter()
            undisturbed = list(measurer.measure(requests(count)))
            before = time.perf_counter() - begin
            for path in folder.glob("*.measured"):
                path.unlink()
            begin = time.perf_counter()
            measurements = measurer.measure(requests(count))
            found = [next(measurements) for _ in range(count // 4)]
            for process in _processes(nodes["killed"]):
                process.kill()
            stopped = _processes(nodes["stopped"])
            for process in stopped:
                process.suspend()
            simulation.disturb(ids["slowed"], 50.0)
            found += measurements
            after = time.perf_counter() - begin
            lost = _lost(measurer)
        measured = Counter(point for points in simulation.measured().values() for point in points)
        for process in stopped:
            process.resume()
        for node in nodes.values():
            cluster.remove_node(node, allow_graceful=False)
    return {
        "candidates": count,
        "seconds_without": before,
        "seconds_with": after,
        "seconds_with_four_boards": count * seconds / 4,
        "equal_results": [each.seconds for each in found] == [each.seconds for each in undisturbed],
        "answered": len(found),
        "measured_by_two_boards": sum(times > 1 for times in measured.values()),
        "lost_by_then": lost,
    }


def real(rounds: int, candidates: int) -> dict[str, Any]:
    """The same candidates measured with and without Ray in turns: what each takes, and how long all of them take."""
    target, rng = Cpu.detect(), np.random.default_rng(0)
    kernels: dict[str, Any] = {}
    with simulated_cluster(nodes=1) as cluster, Fleet.connect(cluster.address, like=identify()) as fleet:
        for name, workload in {
            "matmul": operators.matmul(256, 256, 256),
            "softmax": operators.softmax(512, 1024),
        }.items():
            sketches = sketches_for(workload, target)
            spaces = [space for _, space in sketches]
            points = dict.fromkeys((space, space.sample(rng)) for space in spaces for _ in range(candidates))
            asked = [Request(Candidate(space.name, point), 5) for space, point in points][:candidates]
            local = LocalMeasurer(KernelSetup(workload, target, sketches))
            seconds: dict[str, list[list[float]]] = {"ray": [], "local": []}
            wall: dict[str, list[float]] = {"ray": [], "local": []}
            with fleet.measurer(KernelSetup(workload, target, sketches)) as ray, local:
                measurers: dict[str, Measurer] = {"ray": ray, "local": local}
                for turn in range(rounds):
                    for way in ("ray", "local") if turn % 2 else ("local", "ray"):
                        begin = time.perf_counter()
                        found = list(measurers[way].measure(asked))
                        wall[way].append(time.perf_counter() - begin)
                        seconds[way].append([statistics.median(each.seconds) if each.ok else 0.0 for each in found])
            ratios = [
                statistics.median(there) / statistics.median(here)
                for there, here in zip(
                    zip(*seconds["ray"], strict=True), zip(*seconds["local"], strict=True), strict=True
                )
                if all(there) and all(here)
            ]
            interval = median_interval(ratios)
            kernels[name] = {
                "candidates": len(asked),
                "compared": len(ratios),
                "ray_over_local": statistics.median(ratios),
                "interval": [interval.low, interval.high],
                "seconds_of_the_first_round": {way: times[0] for way, times in wall.items()},
                "seconds_of_later_rounds": {way: statistics.median(times[1:] or times) for way, times in wall.items()},
            }
            print(name, json.dumps(kernels[name], indent=1))
    return {"machine": machine(), "rounds": rounds, "kernels": kernels}


def _processes(node: Any) -> list[psutil.Process]:
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return [raylet, *raylet.children(recursive=True)]


def _lost(measurer: FleetMeasurer) -> dict[str, str]:
    return {place.name: place.reason for place in measurer.places if place.lost}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", default="4,16,64", help="numbers of boards, multiples of four")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a candidate on average")
    parser.add_argument("--spread", type=float, default=0.5, help="candidates take 1 - S to 1 + S times as long")
    parser.add_argument("--per-board", type=int, default=20, help="candidates per board")
    parser.add_argument("--real", action="store_true", help="real kernels with and without Ray")
    parser.add_argument("--rounds", type=int, default=5, help="of --real")
    parser.add_argument("--candidates", type=int, default=20, help="of each kernel of --real")
    given = parser.parse_args()
    if given.real:
        print(f"saved: {save('fleet_real', real(given.rounds, given.candidates))}")
        return
    runs = []
    print(
        f"{'boards':>6} {'ideal':>8} {'stream':>8} {'share':>6} {'ahead':>8} {'share':>6} {'batches':>8} {'share':>6}"
    )
    for boards in map(int, given.boards.split(",")):
        run = throughput(boards, given.seconds, given.spread, given.per_board)
        runs.append(run)
        print(
            f"{boards:6} {run['ideal_seconds']:7.1f}s {run['stream_seconds']:7.1f}s {run['stream_share_of_ideal']:6.0%}"
            f" {run['ahead_seconds']:7.1f}s {run['ahead_share_of_ideal']:6.0%}"
            f" {run['batches_seconds']:7.1f}s {run['batches_share_of_ideal']:6.0%}"
        )
    disturbed = faults(seconds=0.3, count=200)
    print(json.dumps(disturbed, indent=1))
    cores = {"cores": psutil.cpu_count(), "load": psutil.getloadavg()[0]}
    print(f"saved: {save('fleet_throughput', {'machine': cores, 'runs': runs, 'faults': disturbed})}")


if __name__ == "__main__":
    main()
