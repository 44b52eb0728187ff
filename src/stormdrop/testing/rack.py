"""A rack of boards on this machine: TVM's RPC tracker with servers of one key.

    with Rack(2) as rack:
        sd.tune(workload, target=sd.Target.detect().with_runner(rack.address))

The boards are processes of this machine, which share its cores: their times tell nothing. TVM's tracker needs the
package `tornado`, and the servers need a C compiler.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
from typing_extensions import Self

from ..errors import MeasureError, TargetError
from ..machine import tracker

START_SECONDS = 60.0
"""A rack that is not complete by then does not start."""

KEY = "board"
"""The key of the boards at the tracker."""


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
        port = _free_port()
        self.tracker = f"127.0.0.1:{port}"
        self.address = tracker.address(self.tracker, KEY)
        self.servers: list[psutil.Popen] = []
        self._tracker = _start("tracker", "--port", port, "--port-end", port + 1)
        try:
            self.wait_until(self._answers)
            for _ in range(boards):
                port = _free_port()
                words = ["--tracker", self.tracker, "--key", KEY, "--port", port, "--port-end", port + 1]
                self.servers.append(_start("server", *words))
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
            condition: Is looked at five times per second.

        Raises:
            MeasureError: It does not hold in time.
        """
        end = time.monotonic() + START_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise MeasureError(f"the rack at {self.tracker} is not ready within {START_SECONDS:g} s")
            time.sleep(0.2)

    def close(self) -> None:
        """Ends all its processes."""
        family = [process for root in (self._tracker, *self.servers) for process in processes_of(root)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self) -> bool:
        host, port = self.tracker.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0


def processes_of(server: psutil.Popen) -> list[psutil.Process]:
    """A server with the processes that it has started: one of them serves the connection.

    Args:
        server: The process that was started first.
    """
    with suppress(psutil.NoSuchProcess):
        return [server, *server.children(recursive=True)]
    return [server]


def _start(name: str, *words: object) -> psutil.Popen:
    command = [sys.executable, "-m", f"tvm.exec.rpc_{name}", "--host", "127.0.0.1", *map(str, words)]
    return psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
