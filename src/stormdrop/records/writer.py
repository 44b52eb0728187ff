"""Who writes a session, and whether that process still lives.

A session's row names its writer as "host|process id|start of the process|random". Another writer's name there
tells a run that its session was taken over; a dead one tells the next run that the session may be.
"""

from __future__ import annotations

import os
import socket
import uuid

import psutil

_START_TOLERANCE = 5.0
"""Seconds by which the start of one process may read differently: it is derived from a clock that is adjusted."""


def new_writer() -> str:
    """A name for a writer in this process, unlike any other."""
    started = psutil.Process().create_time()
    return f"{socket.gethostname()}|{os.getpid()}|{started:.2f}|{uuid.uuid4().hex}"


def is_dead(writer: str) -> bool:
    """Whether the writer's process is known to be gone; False where that cannot be known (another host)."""
    host, pid, started, _ = writer.rsplit("|", 3)
    if host != socket.gethostname():
        return False
    try:
        process = psutil.Process(int(pid))
        # The number may have been given to another process since.
        same = abs(process.create_time() - float(started)) < _START_TOLERANCE
        return not same or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def is_other_live_process(writer: str) -> int | None:
    """The id of the writer's process where it runs on this host and is not this one."""
    host, pid, _, _ = writer.rsplit("|", 3)
    if host != socket.gethostname() or int(pid) == os.getpid() or is_dead(writer):
        return None
    return int(pid)
