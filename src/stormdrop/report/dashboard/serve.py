"""Serves the dashboard on a socket until it is interrupted."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvicorn

from ...errors import InputError
from ...records.reading.reader import RecordsReader
from .app import create_app
from .guard import LOOPBACK, Access, is_loopback

DEFAULT_PORT = 8765
"""The port if none is named."""

_GOODBYE_SECONDS = 3  # that open connections have when the server ends: browsers listen for changes all the time


@dataclass(frozen=True)
class Address:
    """Where the dashboard listens.

    Args:
        host: An address of this machine.
        port: 0 takes any that is free.
        names: Further host names that lead there, such as that of a proxy.
        token: What a request must know. None: nothing on the loopback, and a new one elsewhere.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    names: Iterable[str] = ()
    token: str | None = None

    def access(self) -> Access:
        """Who may ask."""
        names = {*LOOPBACK, self.host.lower(), *(name.lower() for name in self.names)}
        if is_loopback(self.host):
            return Access(names, self.token)
        names |= {socket.gethostname().lower(), socket.getfqdn().lower(), *_own_addresses()}
        return Access(names, self.token or secrets.token_urlsafe(24))


def serve(reader: RecordsReader, address: Address, log: Path | None, announce: Callable[[str], None]) -> None:
    """Serves until Ctrl-C.

    Args:
        reader: The records.
        address: Where to listen.
        log: As for `create_app`.
        announce: Is called with the URL when the dashboard answers.

    Raises:
        InputError: The address cannot be used.
    """
    access = address.access()
    listener = _bound(address.host, address.port)
    with listener:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        if host in ("0.0.0.0", "::"):
            shown = socket.gethostname()
        secret = f"/?token={access.token}" if access.token else "/"
        app = create_app(reader, access, log)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_GOODBYE_SECONDS,
        )
        server = uvicorn.Server(config)
        app.state.shared.ending = lambda: server.should_exit
        announce(f"http://{shown}:{port}{secret}")
        server.run([listener])


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen()
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise InputError(f"{host}:{port} cannot be listened on: {error.strerror or error}") from None
    return listener


def _own_addresses() -> set[str]:
    """The addresses of this machine's network interfaces."""
    families = (socket.AF_INET, socket.AF_INET6)
    found = [each for interface in psutil.net_if_addrs().values() for each in interface if each.family in families]
    return {each.address.partition("%")[0].lower() for each in found}
