"""Kernels that are built here and measured behind TVM's RPC server; in these tests it is on this machine."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

import stormdrop
from stormdrop import operators
from stormdrop.errors import MeasureError, TargetError
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.machine.remote import rpc
from stormdrop.machine.remote.rpc import connect
from stormdrop.measure.contract import KernelSetup
from stormdrop.measure.local import Limits, LocalMeasurer
from stormdrop.records import open_store
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Candidate, Measurement, Request
from stormdrop.tuning.tune import tune


@contextmanager
def served() -> Iterator[tuple[str, psutil.Popen]]:
    """TVM's RPC server on this machine: its address and its process, which leads a group."""
    if shutil.which("cc") is None:
        pytest.skip("the server links what it is sent: there is no cc on the PATH")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tvm.exec.rpc_server", "--host", "127.0.0.1", "--port", str(port)]
    server = psutil.Popen(
        [*command, "--port-end", str(port + 1)], stderr=subprocess.DEVNULL, env={**os.environ, "TVM_NUM_THREADS": "1"}
    )
    try:
        deadline = time.monotonic() + 240  # however busy the machine is
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.is_running() and time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.1)
        yield f"127.0.0.1:{port}", server
    finally:
        end(server)


def end(server: psutil.Popen) -> None:
    """Kills a server. It has a child process that serves, which does not end with it."""
    if server.is_running():
        processes = [*server.children(recursive=True), server]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as (address, _):
        yield address


@pytest.mark.compiles
def test_built_here_and_measured_there(address: str) -> None:
    target = dataclasses.replace(Cpu.detect(), runner=address)
    workload, rng = operators.matmul(64, 96, 64), np.random.default_rng(0)
    ((sketch, space),) = sketches_for(workload, target)
    points = list(dict.fromkeys([space.origin, *(space.sample(rng) for _ in range(3))]))
    # Without a cutoff: a candidate that a busy machine makes three times slower would have one sample only.
    with LocalMeasurer(KernelSetup(workload, target, [(sketch, space)]), limits=Limits(cutoff=math.inf)) as measurer:
        measurements = list(measurer.measure([Request(Candidate(space.name, point), 3) for point in points]))
        race = measurer.race([Candidate(space.name, point) for point in points[:2]], rounds=3)
    for measurement in (*measurements, *race):
        assert measurement.ok, measurement
        assert len(measurement.seconds) == 3
        assert min(measurement.seconds) > 0


@pytest.mark.compiles
def test_its_records_are_those_of_another_machine(address: str) -> None:
    target = dataclasses.replace(Cpu.detect(), runner=address)
    with open_store("sqlite://") as store:
        result = tune(operators.matmul(32, 32, 32), target=target, trials=4, search="random", store=store)
        assert result.best is not None and result.trials == 4
        (session,) = store.sessions()
        assert session.machine.endswith(f"at {address}, 1 core")  # as many as TVM uses there


@pytest.mark.compiles
def test_a_runner_that_has_ended_is_noticed_at_the_first_candidate() -> None:
    workload, rng = operators.matmul(32, 32, 32), np.random.default_rng(0)
    with served() as (address, server):
        target = dataclasses.replace(Cpu.detect(), runner=address)
        ((sketch, space),) = sketches_for(workload, target)
        first, *others = dict.fromkeys(space.sample(rng) for _ in range(6))
        with LocalMeasurer(KernelSetup(workload, target, [(sketch, space)])) as measurer:
            (measurement,) = measurer.measure([Request(Candidate(space.name, first), 1)])
            assert measurement.ok
            end(server)
            answers: list[Measurement] = []
            with pytest.raises(MeasureError, match=f"runner {address}: no TVM RPC server answers"):
                answers += measurer.measure([Request(Candidate(space.name, point), 1) for point in others])
            assert not answers, "no candidate is at fault"
            assert measurer.account.restarts == 1


def test_the_target_of_a_runner_that_is_not_this_machine() -> None:
    other = parse_machine("cpu/neoverse-n1").with_runner("board:9090")
    assert other.machine == "Arm Neoverse N1 at board:9090, 64 cores"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("board", "runner 'board': write HOST:PORT, such as 127.0.0.1:9090"),
        ("board:99999", "runner 'board:99999': write HOST:PORT"),
        ("127.0.0.1:1", "runner 127.0.0.1:1: no TVM RPC server answers"),
    ],
)
def test_no_runner(address: str, message: str) -> None:
    with pytest.raises(TargetError, match=message) as caught:
        connect(address)
    assert "\n" not in str(caught.value)


def test_a_runner_that_is_stopped_is_not_waited_for(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system still takes connections for it, and TVM waits for its greeting without end."""
    monkeypatch.setattr(rpc, "ANSWER_SECONDS", 1.0)
    port = int(address.rpartition(":")[2])
    listening = [other.pid for other in psutil.net_connections("tcp") if other.laddr.port == port and other.pid]
    for pid in listening:
        psutil.Process(pid).suspend()
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED:  # until then it may still answer
            time.sleep(0.01)
    try:
        with pytest.raises(TargetError, match="no answer within 1 s: it hangs"):
            connect(address)
    finally:
        for pid in listening:
            psutil.Process(pid).resume()
    connect(address)  # the greetings that were given up do it no harm


def test_something_else_that_answers_is_no_runner() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0")
                connection.recv(100)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(TargetError, match="no TVM RPC server answers: ConnectionError: what answers is something"):
            connect(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def test_examples_listen_to_their_own_machine_only() -> None:
    """TVM's server executes what anybody sends who can connect."""
    root = Path(stormdrop.__file__).parents[2]
    texts = [path.read_text() for folder in ("docs", "src", "examples") for path in (root / folder).rglob("*.[mp][dy]")]
    examples = [line for text in texts for line in text.splitlines() if "rpc_server" in line]
    assert examples
    assert all("--host 127.0.0.1" in line for line in examples)
