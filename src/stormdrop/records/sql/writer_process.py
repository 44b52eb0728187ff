"""Which process writes a session, and whether that process still runs.

The row of a session names its writer as "host|boot/namespace|process id|start|random". The boot is the id that Linux
gives to each of its starts, the namespace that of the process ids, as containers have their own, and the start is
counted in clock ticks since the boot: no clock that is set and no equal name of another machine confuses two
processes. Version 0.1, and systems without these, write "host|process id|start in seconds|random".

A run that finds another writer's name in the row of its session knows that the session was taken over. A run that finds
the name of a dead process may take the session over. A session that came from elsewhere has the writer `IMPORTED`.
"""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path

import psutil

IMPORTED = "imported|0|0|0"
"""The writer of a session that another database or a file brought. It has the form of a name on another host."""

_START_TOLERANCE = 5.0
"""Seconds by which two readings of one process's start may differ: they are derived from a clock that is adjusted."""

_FIRST_NAMESPACE = 0xEFFFFFFC  # of process ids: the one outside of all containers

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


def new_writer() -> str:
    """A name for a writer in this process. No two names are equal."""
    host, pid, token = socket.gethostname(), os.getpid(), uuid.uuid4().hex
    context, ticks = _context(), _start_ticks(pid)
    if context is None or ticks is None:
        return f"{host}|{pid}|{psutil.Process().create_time():.2f}|{token}"
    return f"{host}|{context}|{pid}|{ticks}|{token}"


def is_dead(writer: str) -> bool:
    """Whether the writer's process is known to be gone.

    Args:
        writer: A name from `new_writer`.

    Returns:
        True if the process ended, and False if it runs or if that cannot be known, as on another host or in another
        container.
    """
    return _lives(writer) is False


def other_live_process(writer: str) -> int | None:
    """The id of the writer's process, or None unless it is another process that is known to run on this host."""
    pid = int(writer.rsplit("|", 3)[1])
    return None if pid == os.getpid() or not _lives(writer) else pid


def _lives(writer: str) -> bool | None:
    """Whether the writer's process runs; None if that cannot be known."""
    place, pid, start, _ = writer.rsplit("|", 3)
    host, _, context = place.partition("|")
    if host != socket.gethostname():
        return None
    if not context:
        return _lives_by_clock(int(pid), float(start))
    if context != (ours := _context() or ""):
        # Machines have names of their own, so this one was started again since. Containers may share a name.
        outside = f"/{_FIRST_NAMESPACE}"
        return False if context.endswith(outside) and ours.endswith(outside) else None
    return _runs(int(pid)) and _start_ticks(int(pid)) in (int(start), None)


def _context() -> str | None:
    """The boot of this machine and the namespace of this process's id; None if the system has no such things."""
    try:
        return f"{_BOOT.read_text().strip()}/{_NAMESPACE.stat().st_ino}"
    except OSError:
        return None


def _runs(pid: int) -> bool:
    """Whether a process has this id and has not ended."""
    try:
        return bool(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _start_ticks(pid: int) -> int | None:
    """When a process was started, in clock ticks since the boot; None if the system does not show it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[19])  # field 22 of proc(5); the name before the parenthesis may hold spaces


def _lives_by_clock(pid: int, start: float) -> bool:
    """Whether this process was started at this time, in seconds of the system's clock, and runs."""
    try:
        # The system may have given the number to another process since.
        same = abs(psutil.Process(pid).create_time() - start) < _START_TOLERANCE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
    return same and _runs(pid)
