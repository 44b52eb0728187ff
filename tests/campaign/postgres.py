"""A PostgreSQL server of its own, if one is installed with a driver for Python."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_DRIVERS = ("psycopg", "psycopg2", "pg8000")
_PATIENCE = 30.0  # seconds until it accepts connections


class Unavailable(Exception):
    """There is no server here, or no driver."""


@dataclass(frozen=True)
class Server:
    """A running server.

    Args:
        url: Its database.
        process: Its first process.
    """

    url: str
    process: psutil.Process

    def stop(self) -> None:
        """Stops all its processes."""
        for process in [self.process, *self.process.children(recursive=True)]:
            process.suspend()

    def go_on(self) -> None:
        """Lets them go on."""
        for process in [*self.process.children(recursive=True), self.process]:
            process.resume()


@contextlib.contextmanager
def server(folder: Path) -> Iterator[Server]:
    """A server with its data in an empty folder.

    Raises:
        Unavailable: None is installed, or no driver is.
    """
    driver = next((name for name in _DRIVERS if importlib.util.find_spec(name) is not None), None)
    if driver is None:
        raise Unavailable(f"no driver for PostgreSQL is installed ({', '.join(_DRIVERS)})")
    initdb, postgres = shutil.which("initdb"), shutil.which("postgres")
    if initdb is None or postgres is None:
        raise Unavailable("PostgreSQL is not installed (initdb, postgres)")
    data, become = folder / "data", _become(folder)
    command = [initdb, "-D", str(data), "-U", "stormdrop", "--auth=trust"]
    made = subprocess.run(command, capture_output=True, text=True, preexec_fn=become, check=False)
    if made.returncode != 0:
        raise Unavailable(f"initdb fails: {made.stderr.strip().splitlines()[-1:]}")
    port = _free_port()
    command = [postgres, "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", str(folder)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=become)
    try:
        _wait_for(port)
        yield Server(f"postgresql+{driver}://stormdrop@127.0.0.1:{port}/postgres", psutil.Process(running.pid))
    finally:
        for process in psutil.Process(running.pid).children(recursive=True):
            process.resume()
        running.send_signal(signal.SIGCONT)
        running.send_signal(signal.SIGQUIT)
        running.wait()


def _become(folder: Path) -> Callable[[], None] | None:
    """PostgreSQL does not run as root: it runs as nobody then, who owns the folder."""
    if os.getuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)

    def become() -> None:
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)

    return become


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_for(port: int) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise Unavailable(f"PostgreSQL takes no connections within {_PATIENCE:g} s")
