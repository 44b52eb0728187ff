"""How many cores a process may use, and telling TVM so.

TVM's thread pool takes half of the logical CPUs of an x86 machine, because it assumes hyper-threading, and reads its
own environment variable once, when the pool starts. Standard library only: it must run before TVM is loaded.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

_VARIABLE = "TVM_NUM_THREADS"


def usable_cores(root: Path = Path("/")) -> int:
    """Logical CPUs that this process may keep busy, at least 1: its affinity, capped by its control groups' quotas.

    `root` is where /proc and /sys are looked for.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota(root)
    # Half a core of quota is no core more: a thread too many is throttled in mid-kernel and all others wait for it.
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def chosen() -> int:
    """Threads that TVM uses once `configure` was called: the user's own number, or all usable cores."""
    text = os.environ.get(_VARIABLE, "")
    return int(text) if text.isdigit() and int(text) > 0 else usable_cores()


def configure() -> None:
    """Give TVM all usable cores, unless the user chose a number or TVM is loaded already (then it is too late)."""
    if "tvm" not in sys.modules:
        os.environ.setdefault(_VARIABLE, str(usable_cores()))


def _cgroup_quota(root: Path) -> float | None:
    """The smallest CPU quota, in cores, of the control groups that this process is in; None where there is none."""
    quotas = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None  # no Linux, or no control groups
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += [_quota_v2(group) for group in _ancestors(root / "sys/fs/cgroup", path)]
        elif "cpu" in controllers.split(","):
            for mount in (controllers, "cpu"):
                quotas += [_quota_v1(group) for group in _ancestors(root / "sys/fs/cgroup" / mount, path)]
    known = [quota for quota in quotas if quota is not None]
    return min(known, default=None)


def _ancestors(mount: Path, path: str) -> list[Path]:
    """A control group's folder and those above it: the tightest of all quotas holds."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]


def _quota_v2(group: Path) -> float | None:
    words = _words(group / "cpu.max")
    return None if len(words) < 2 or words[0] == "max" else int(words[0]) / int(words[1])


def _quota_v1(group: Path) -> float | None:
    quota, period = _words(group / "cpu.cfs_quota_us"), _words(group / "cpu.cfs_period_us")
    return None if not quota or not period or int(quota[0]) <= 0 else int(quota[0]) / int(period[0])


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []  # the group sets no quota, or the file system is not mounted
