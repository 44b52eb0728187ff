"""A PostgreSQL server for tests, on this machine and for one user, if PostgreSQL is installed.

with server() as running:
    store = open_store(running.url)
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

START_SECONDS = 30.0
"""Seconds within which a server accepts connections."""

_NAME = "stormdrop"  # of the database's user and of the database
_DEBIAN = Path("/usr/lib/postgresql")  # Debian keeps the programs of each version in a folder of its own


_INIT = ("--auth=scram-sha-256", "--locale=C", "--encoding=UTF8")


class Unavailable(Exception):
    """There is no server here, or no driver. The message is the reason."""


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        url: its database, with a password.
        port: the port at 127.0.0.1 that it listens to.
        process: its first process.
    """

    url: str
    port: int
    process: psutil.Process

    def at(self, port: int) -> str:
        """The URL of its database through another port, as that of a proxy."""
        return self.url.replace(f":{self.port}/", f":{port}/")

    def stop(self) -> None:
        """Stops all its processes: it says nothing until `go_on`."""
        for process in [self.process, *self.process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def go_on(self) -> None:
        """Lets its processes go on."""
        for process in [*self.process.children(recursive=True), self.process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """A new server with an empty database. It ends with the context, and its data are gone.

    PostgreSQL does not run as root; then it runs as the user nobody.

    Raises:
        Unavailable: PostgreSQL or psycopg is not installed, or the server does not start.
    """
    if importlib.util.find_spec("psycopg") is None:
        raise Unavailable("psycopg is not installed: pip install 'stormdrop[postgresql]'")
    programs = _programs()
    owner = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    port, password = _free_port(), secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="stormdrop-postgresql-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "password").write_text(password)
        for path in (folder, folder / "password"):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        data, secret = folder / "data", folder / "password"
        init: list[str | Path] = [programs / "initdb", "--no-sync", "-D", data, "-U", _NAME, "--pwfile", secret, *_INIT]
        made = _start(init, owner, folder)
        _, errors = made.communicate()
        if made.returncode != 0:
            raise Unavailable(f"initdb fails: {(errors.strip().splitlines() or ['without a message'])[-1]}")
        settings = [f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", "fsync=off"]
        options = [word for setting in settings for word in ("-c", setting)]
        running = _start([programs / "postgres", "-D", data, *options], owner, folder)
        try:
            found = Server(
                f"postgresql://{_NAME}:{password}@127.0.0.1:{port}/{_NAME}", port, psutil.Process(running.pid)
            )
            _create_database(found, running)
            yield found
        finally:
            _end(running)


def _programs() -> Path:
    """The folder of PostgreSQL's programs: that in the path, or else that of Debian's newest version."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    debian = [path.parent for path in _DEBIAN.glob("*/bin/initdb")]
    if not debian:
        raise Unavailable("PostgreSQL is not installed: there is no initdb")
    return max(debian, key=lambda path: float(path.parent.name))


def _start(command: Sequence[str | Path], owner: pwd.struct_passwd, folder: Path) -> subprocess.Popen[str]:
    other = {} if owner.pw_uid == os.geteuid() else {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    started: subprocess.Popen[str] = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE if "initdb" in str(command[0]) else subprocess.DEVNULL,
        text=True,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        **other,  # type: ignore[call-overload]
    )
    return started


def _create_database(found: Server, running: subprocess.Popen[str]) -> None:
    """Creates the database as soon as the server accepts connections."""
    import psycopg

    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with psycopg.connect(f"{found.url.rpartition('/')[0]}/postgres", autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {_NAME}")
            return
        except psycopg.OperationalError as error:
            if running.poll() is not None:
                raise Unavailable(f"PostgreSQL ends at once with exit code {running.returncode}") from error
            if time.monotonic() > deadline:
                raise Unavailable(f"PostgreSQL takes no connections within {START_SECONDS:g} s") from error
        time.sleep(0.05)


def _end(running: subprocess.Popen[str]) -> None:
    for process in psutil.Process(running.pid).children(recursive=True) if running.poll() is None else []:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
    running.send_signal(signal.SIGCONT)
    running.send_signal(signal.SIGQUIT)  # an immediate end
    running.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
