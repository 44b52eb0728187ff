"""A cluster of Ray, and what goes wrong when one connects to it, as one line each.

    auto               the cluster that this machine is a node of, or that the environment variable RAY_ADDRESS names
    HOST:PORT          the cluster whose head listens there; this machine has to be one of its nodes
    ray://HOST:PORT    the same through Ray's client server, from a machine that is no node

Ray is imported here and in functions of `fleet.py` only, and late: it is optional, and loading it takes 0.5 s.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import TargetError, one_line
from ...optional_packages import require

RESOURCE = "stormdrop"
"""The custom resource of the nodes that measure: `ray start --resources='{"stormdrop": 1}'`."""

NAMESPACE = "stormdrop"
"""Ray's namespace in which the actors of all sessions have their names."""

ANSWER_SECONDS = 8.0
"""A cluster that takes no connection within this time cannot be reached."""


_CLIENT = "ray://"
_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""HTTP/2's frame of the kind 4 (RFC 9113, section 6.5) without content: both sides begin with one of this kind."""


@dataclass(frozen=True)
class Node:
    """A node of a cluster that measures.

    Args:
        id: Ray's id of the node.
        name: What people call it: the name that `ray start --node-name` gave it, or its host's, unique in the cluster.
        alive: Whether Ray hears from it.
        machines: How many machines it is for stormdrop: its amount of the resource, usually 1.
        cpus: The CPUs that Ray may give away on it.
    """

    id: str
    name: str
    alive: bool
    machines: int
    cpus: float


def check_address(address: str) -> None:
    """Checks how an address is written, and that Ray is installed. It connects to nothing.

    Args:
        address: "auto", "HOST:PORT" or "ray://HOST:PORT".

    Raises:
        TargetError: It is something else, or Ray is missing.

    Example:
        >>> check_address("ray://head")
        Traceback (most recent call last):
        ...
        stormdrop.errors.TargetError: fleet 'ray://head': write auto, HOST:PORT or ray://HOST:PORT, such as ray://head:10001
    """
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    if address != "auto" and not (
        re.fullmatch(r"[\w.-]+|\[[0-9a-fA-F:]+\]", host) and re.fullmatch("[0-9]{1,5}", port)
    ):
        raise TargetError(f"fleet {address!r}: write auto, HOST:PORT or ray://HOST:PORT, such as ray://head:10001")
    require(["ray"], "a fleet", TargetError)


def connect(address: str) -> bool:
    """Connects this process to a cluster. A connection that the process has already is used as it is.

    Args:
        address: As for `check_address`.

    Returns:
        Whether the connection is new, so that its maker ends it with `disconnect`.

    Raises:
        TargetError: There is no cluster, it does not answer, or its version of Ray or Python is another one.
    """
    check_address(address)
    import ray

    if ray.is_initialized():
        return False
    _reach(address)
    try:
        with _signals_kept(), _quiet():
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise TargetError(f"fleet {address}: {_reason(error)}") from error
    return True


def disconnect() -> None:
    """Ends this process's connection to its cluster. All machines that it holds are free then."""
    import ray

    with _signals_kept(), _quiet():
        ray.shutdown()


def nodes() -> list[Node]:
    """The nodes of the cluster that measure, and those that Ray has lost, by name."""
    import ray

    found = [node for node in ray.nodes() if not node["Alive"] or node["Resources"].get(RESOURCE, 0) >= 1]
    given = [_given_name(node) for node in found]
    return sorted(
        (
            Node(
                node["NodeID"],
                name if given.count(name) == 1 else f"{name}/{node['NodeID'][:6]}",
                bool(node["Alive"]),
                int(node["Resources"].get(RESOURCE, 0)),
                float(node["Resources"].get("CPU", 0)),
            )
            for node, name in zip(found, given, strict=True)
        ),
        key=lambda node: (node.name, node.id),
    )


def without_machines(address: str) -> str:
    """The message for a cluster none of whose nodes measures."""
    return (
        f"fleet {address}: no node of it measures: start those that do with "
        f"ray start --resources='{{\"{RESOURCE}\": 1}}'"
    )


def _given_name(node: dict[str, Any]) -> str:
    named = node.get("NodeName") or node["NodeManagerAddress"]
    return str(node["NodeManagerHostname"] if named == node["NodeManagerAddress"] else named)


def _reach(address: str) -> None:
    """Raises `TargetError` if no server of Ray listens at the address: Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                _greet(connection)
    except TimeoutError as error:
        raise TargetError(f"fleet {address}: no answer within {ANSWER_SECONDS:g} s") from error
    except (OSError, OverflowError) as error:
        raise TargetError(f"fleet {address}: no cluster of Ray is there: {one_line(error)}") from error


def _greet(connection: socket.socket) -> None:
    """Raises `OSError` if what answers does not speak HTTP/2, as all servers of Ray do without TLS."""
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS)
    header = b""
    while len(header) < len(_SETTINGS):
        if not (received := connection.recv(len(_SETTINGS) - len(header))):
            break
        header += received
    if header[3:4] != _SETTINGS[3:4]:
        raise ConnectionError("what answers is something else")


def _reason(error: Exception) -> str:
    """Why Ray does not connect, in a line. Ray's own messages have many."""
    text = " ".join(str(error).split())
    versions = [tuple(pair) for pair in re.findall(r"Ray: (\S+) Python: (\S+)", text)]
    if text.startswith("Version mismatch") and len(versions) == 2:
        there, here = (f"Ray {ray} on Python {python}" for ray, python in versions)
        return f"it runs {there}, and this process {here}: all machines need the same versions"
    if "Could not find any running Ray instance" in text:
        return "no cluster of Ray runs on this machine: start one with ray start --head, or give ray://HOST:PORT"
    return f"Ray does not connect: {one_line(error)}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Ray's warnings about its own future from the terminal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keeps the handlers of signals: Ray would end the process at SIGTERM, without the result so far."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)
