"""A rack of equal boards behind TVM's RPC tracker, which knows them by a key and lends one at a time to a connection.

    python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port 9190                            on this machine
    ssh -N -R 9190:127.0.0.1:9190 -L 9091:127.0.0.1:9091 board1                            and so on, for each board
    python -m tvm.exec.rpc_server --host 127.0.0.1 --port 9091 --tracker 127.0.0.1:9190 --key rasp4    on the board
    stormdrop tune-op matmul ... --target cpu/neoverse-n1 --tracker 127.0.0.1:9190 --device rasp4
    stormdrop tune resnet18.onnx --target cpu/neoverse-n1 --tracker 127.0.0.1:9190 --device rasp4

A rack stands where the address of a runner stands, as KEY@HOST:PORT.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import TargetError, hint, one_line

ANSWER_SECONDS = 8.0
"""A tracker that does not answer within this time cannot be reached; a board that is not lent in this time is busy."""

WAIT_SECONDS = 600.0
"""Seconds for which a board is waited for if others use all of them."""

_LOOK_SECONDS = 0.5  # between two looks for a free board

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Boards:
    """What a tracker says of the boards of one key.

    Attributes:
        known: How many there are.
        free: How many of them nobody uses.
    """

    known: int
    free: int


def address(tracker: str, key: str) -> str:
    """The address of a rack.

    Args:
        tracker: HOST:PORT of the tracker.
        key: The key of its boards.

    Raises:
        TargetError: One of the two is not what it should be.

    Example:
        >>> address("10.0.0.1:9190", "rasp4")
        'rasp4@10.0.0.1:9190'
    """
    host, _, port = tracker.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise TargetError(f"tracker {tracker!r}: write HOST:PORT, such as 10.0.0.1:9190")
    if not key or "@" in key or key != key.strip():
        raise TargetError(f"device {key!r}: name the key of the boards at the tracker, such as rasp4")
    return f"{key}@{tracker}"


def is_rack(runner: str) -> bool:
    """Whether a runner's address is that of a rack."""
    return "@" in runner


def boards(rack: str) -> Boards:
    """The boards of a rack at this moment.

    Raises:
        TargetError: The tracker does not answer, or knows no such key.
    """
    key, tracker = rack.split("@")
    with _session(tracker) as session:
        summary = session.summary()
    keys = [server["key"].partition(":")[2] for server in summary["server_info"]]
    if key not in keys:
        raise TargetError(f"tracker {tracker}: it has no board of the key {key!r}; {hint(key, sorted(set(keys)))}")
    return Boards(keys.count(key), int(summary["queue_info"].get(key, {"free": 0})["free"]))


def wait_for_boards(rack: str, seconds: float = WAIT_SECONDS) -> int:
    """Waits until a board of the rack is free, and says so once.

    Args:
        rack: The rack's address.
        seconds: How long it waits.

    Returns:
        The number of boards that are free, 1 or more.

    Raises:
        TargetError: None was free within this time, or the tracker or the key is gone.
    """
    said, deadline = False, time.perf_counter() + seconds
    while not (found := boards(rack)).free:
        if not said:
            _logger.warning("waiting for a board: all %d of %s are in use", found.known, rack)
            said = True
        if time.perf_counter() > deadline:
            raise TargetError(f"no board of {rack} became free within {seconds:g} s: all {found.known} are in use")
        time.sleep(_LOOK_SECONDS)
    return found.free


def connect(rack: str) -> Any:
    """TVM's RPC session with a board that is free now.

    Raises:
        TargetError: None is free, or the tracker does not answer.
    """
    key, tracker = rack.split("@")
    with _session(tracker) as session:
        session._sock.settimeout(ANSWER_SECONDS)
        try:
            return session.request(key, max_retry=1)
        except Exception as error:
            raise TargetError(f"tracker {tracker}: it lends no board of the key {key!r}: {one_line(error)}") from error


@contextlib.contextmanager
def _session(tracker: str) -> Iterator[Any]:
    """TVM's session with a tracker. Its own way to connect would wait for minutes if nothing listens there."""
    from tvm.rpc import base
    from tvm.rpc.client import TrackerSession

    host, _, port = tracker.rpartition(":")
    session = TrackerSession.__new__(TrackerSession)
    session._addr, session._sock = (host, int(port)), None
    try:
        session._sock = socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS)
        session._sock.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
        if struct.unpack("<i", base.recvall(session._sock, 4))[0] != base.RPC_TRACKER_MAGIC:
            raise ConnectionError("what answers is no tracker")
        yield session
    except TimeoutError as error:
        raise TargetError(f"tracker {tracker}: no answer within {ANSWER_SECONDS:g} s") from error
    except OSError as error:
        raise TargetError(f"tracker {tracker}: no TVM RPC tracker answers: {one_line(error)}") from error
    finally:
        session.close()
