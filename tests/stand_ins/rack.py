"""A rack of boards on this machine: TVM's RPC tracker with servers of one key.

    with Rack(2) as rack:
        sd.tune(workload, target=sd.Cpu.detect().with_runner(rack.address))

The boards are processes of this machine, which share its cores: their times tell nothing. TVM's tracker needs the
package `tornado`, and the servers need a C compiler.

TVM's own programs for this load TVM twice each, which takes seconds. The children here are forked from a process that
has loaded it, where that is possible.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import psutil
from typing_extensions import Self

from stormdrop.errors import MeasureError, TargetError
from stormdrop.machine.process.child_process import ChildProcess
from stormdrop.machine.remote import tracker

START_SECONDS = 60.0
"""A rack that is not complete by then does not start."""

KEY = "board"
"""The key of the boards at the tracker."""

LOADS = ("tvm.rpc.server", "tvm.rpc.tracker")
"""What children of the fork server need here (`ChildProcess`)."""

_HOST = "127.0.0.1"


def missing() -> str:
    """Why no rack can be started here: one line; empty if one can.

    Example:
        >>> missing() in ("", "there is no cc on the PATH", "tornado is not installed")
        True
    """
    if shutil.which("cc") is None:
        return "there is no cc on the PATH"
    return "" if importlib.util.find_spec("tornado") else "tornado is not installed"


class Rack:
    """A tracker with servers of the key "board". It is a context manager.

    Args:
        boards: How many servers there are.

    Attributes:
        tracker: HOST:PORT of the tracker.
        address: The address of the rack, as `Target.with_runner` takes it.
        servers: The processes of the servers.

    Raises:
        MeasureError: They do not start.
    """

    def __init__(self, boards: int) -> None:
        self.servers: list[psutil.Process] = []
        self._children: list[ChildProcess] = []
        try:
            self.tracker = f"{_HOST}:{self._start('run_tracker')}"
            self.address = tracker.address(self.tracker, KEY)
            for _ in range(boards):
                self._start("run_board", self.tracker)
                self.servers.append(psutil.Process(self._children[-1].pid))
            self.wait_until(lambda: self.free == boards)
        except BaseException:
            self.close()
            raise

    @property
    def free(self) -> int:
        """How many boards nobody uses."""
        try:
            return tracker.boards(self.address).free
        except TargetError:
            return 0  # it knows no board yet

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds.

        Args:
            condition: Is looked at fifty times per second.

        Raises:
            MeasureError: It does not hold in time.
        """
        end = time.monotonic() + START_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise MeasureError(f"the rack at {self.tracker} is not ready within {START_SECONDS:g} s")
            time.sleep(0.02)

    def close(self) -> None:
        """Ends all its processes."""
        for child in self._children:
            child.close()  # and what it has started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, function: str, *arguments: object) -> int:
        """Starts a process with a function of this module. Returns the port at which it listens."""
        child = ChildProcess(f"{__name__}:{function}", arguments, loads=(__name__,))
        self._children.append(child)
        with suppress(TimeoutError):
            port = child.answer(START_SECONDS)
            if port is not None:
                return int(port)
        raise MeasureError(f"a process of the rack does not start ({child.wait()}): {child.last_line()}")


def processes_of(server: psutil.Process) -> list[psutil.Process]:
    """A server with the processes that it has started: one of them serves the connection.

    Args:
        server: The process that was started first.
    """
    with suppress(psutil.NoSuchProcess):
        return [server, *server.children(recursive=True)]
    return [server]


# The children's side


def run_tracker(connection: Connection) -> None:
    """TVM's tracker. It tells its port."""
    from tvm.rpc.tracker import PopenTrackerServerState

    port = _free_port()
    _serve(connection, PopenTrackerServerState(_HOST, port, port + 1))


def run_board(connection: Connection, place: str) -> None:
    """TVM's server, for a tracker at HOST:PORT. It tells its port."""
    from tvm.rpc.server import PopenRPCServerState

    port, (host, number) = _free_port(), place.split(":")
    _serve(connection, PopenRPCServerState(_HOST, port, port + 1, tracker_addr=(host, int(number)), key=KEY))


def _serve(connection: Connection, state: Any) -> None:
    connection.send(state.port)
    state.thread.join()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        return int(listener.getsockname()[1])
