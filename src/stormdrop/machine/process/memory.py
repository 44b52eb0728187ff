"""How much memory this process may use, and how a child process bounds its own."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from .cgroups import control_groups, words

CHILD_SHARE = 0.75
"""The share of the usable memory that a child process may take as address space."""

_FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}
"""The files of a control group that hold the bound and the used bytes, by the version of the group."""


def usable_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may use: the machine's, or that of its control groups if that is less.

    Args:
        root: The folder in which /proc and /sys are looked for.

    Example:
        >>> usable_memory() > 0
        True
    """
    import psutil  # takes as long as all that loads a native model

    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in _group_limits(root))])


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this process can take now without swapping, and within the bounds of its control groups.

    Args:
        root: The folder in which /proc and /sys are looked for.
    """
    import psutil

    left = [max(0, limit - used) for limit, used in _group_limits(root)]
    return min([int(psutil.virtual_memory().available), *left])


def _group_limits(root: Path) -> Iterator[tuple[int, int]]:
    """The bound and the used bytes of each control group that has a bound."""
    for version, group in control_groups("memory", root):
        bound, usage = _FILES[version]
        limit = words(group / bound)
        if limit and limit[0].isdigit():
            yield int(limit[0]), _used(group, usage)


def _used(group: Path, usage: str) -> int:
    """The bytes that a control group uses, without the file cache that the system would drop at need."""
    used, statistics = words(group / usage), words(group / "memory.stat")
    values = dict(zip(statistics[::2], statistics[1::2], strict=False))
    cached = int(values.get("total_inactive_file", values.get("inactive_file", "0")))
    return max(0, int(used[0]) - cached) if used else 0


def return_freed_memory() -> None:
    """Gives memory that this process has freed back to the system, as far as its C library can do so.

    The C library keeps blocks of up to 32 MB for later, such as the weights of a layer.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def limit_memory(memory: int) -> None:
    """Bounds this process's memory, turns core dumps off, and makes it the first victim of an out-of-memory killer.

    Args:
        memory: The most bytes of address space; 0 is no bound.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if memory:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a container may forbid it; the bound above still holds
            Path("/proc/self/oom_score_adj").write_text("1000")
