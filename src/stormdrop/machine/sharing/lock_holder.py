"""Who holds the machine-wide lock that this process waits for."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

_COMMAND = 80  # characters of a command, at most
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def describe_holder(locks: Path = Path("/proc/locks")) -> str:
    """Which process this process waits for, and what its user can do about it, as the end of a message.

    Args:
        locks: The file in which Linux lists all locks and who waits for them.

    Example:
        >>> describe_holder(Path("/none"))
        'another process uses it'
    """
    pid = _holder(locks)
    if pid is None:
        return "another process uses it"
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            name = f"process {pid} ({_command(process)}) of {process.username()}"
            stopped = process.status() in _STOPPED
    except psutil.Error:  # it has just ended, or is hidden from this user
        return f"process {pid} uses it"
    if stopped:
        return f"{name} holds it and is stopped; let it go on (kill -CONT {pid}) or end it (kill -KILL {pid})"
    return f"{name} uses it"


def _holder(locks: Path) -> int | None:
    """The process that all others wait for in the end; None if it is not known, as in another container.

    Linux lists those that wait for a lock under its number, with an arrow: `7: -> FLOCK ADVISORY WRITE 4711 ...`. This
    process may wait for the gate, whose holder waits for the main lock.
    """
    try:
        lines = [line.split() for line in locks.read_text().splitlines()]
    except OSError:
        return None  # the system is not Linux
    holders = {line[0]: int(line[4]) for line in lines if line[1] == "FLOCK"}
    waiting = {int(line[5]): line[0] for line in lines if line[1:3] == ["->", "FLOCK"]}
    pid, seen = os.getpid(), set[int]()
    while pid in waiting and pid not in seen:
        seen.add(pid)
        pid = holders.get(waiting[pid], 0)
    return pid if pid > 0 and seen else None


def _command(process: psutil.Process) -> str:
    """The command in one line. It is another user's text: what could control a terminal is left out."""
    text = " ".join(process.cmdline()) or process.name()
    return "".join(letter for letter in text if letter.isprintable())[:_COMMAND]
