"""Which process writes a session, and whether that process still runs.

The row of a session names its writer as "host|process id|start of the process|random". A run that finds another
writer's name there knows that its session was taken over. A run that finds the name of a dead process may take the
session over.
"""

from __future__ import annotations

import os
import socket
import uuid

import psutil

_START_TOLERANCE = 5.0
"""Seconds by which two readings of one process's start may differ: they are derived from a clock that is adjusted."""


def new_writer() -> str:
    """A name for a writer in this process. No two names are equal."""
    start = psutil.Process().create_time()
    return f"{socket.gethostname()}|{os.getpid()}|{start:.2f}|{uuid.uuid4().hex}"


def is_dead(writer: str) -> bool:
    """Whether the writer's process is known to be gone.

    Args:
        writer: A name from `new_writer`.

    Returns:
        True if the process ended, and False if it runs or if that cannot be known, as on another host.
    """
    host, pid, start, _ = writer.rsplit("|", 3)
    if host != socket.gethostname():
        return False
    try:
        process = psutil.Process(int(pid))
        # The system may have given the number to another process since.
        same = abs(process.create_time() - float(start)) < _START_TOLERANCE
        return not same or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def other_live_process(writer: str) -> int | None:
    """The id of the writer's process, or None unless it is another process that runs on this host."""
    host, pid, _, _ = writer.rsplit("|", 3)
    if host != socket.gethostname() or int(pid) == os.getpid() or is_dead(writer):
        return None
    return int(pid)
