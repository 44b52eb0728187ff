"""How many cores a process may use, and telling TVM so.

TVM's thread pool takes half of the logical CPUs of an x86 machine, because it assumes hyper-threading, and reads its
own environment variable once, when the pool starts. Standard library only: it must run before TVM is loaded.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from pathlib import Path

_VARIABLE = "TVM_NUM_THREADS"
_settled = False  # whether `configure` has done all that it can do in this process


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
    return _users_choice() or usable_cores()


def configure() -> None:
    """Give TVM all usable cores, unless the user chose a number.

    Where TVM was loaded before and its pool has started, this is too late: a `RuntimeWarning` says so, once.
    """
    global _settled
    if _settled or _users_choice() is not None:
        return
    _settled = True
    wanted = _cores_of_any_thread()
    os.environ[_VARIABLE] = str(wanted)
    if "tvm" not in sys.modules:
        return
    running = int(sys.modules["tvm"].get_global_func("runtime.NumThreads")())  # starts the pool if nothing has
    if running < wanted:
        os.environ[_VARIABLE] = str(running)
        warnings.warn(
            f"TVM was used before stormdrop and runs on {running} of {wanted} threads: use stormdrop first, or set"
            f" {_VARIABLE}={wanted} in the environment",
            RuntimeWarning,
            stacklevel=3,
        )


def _users_choice() -> int | None:
    """The number in the environment; None where there is none, or what stands there is no number of threads."""
    text = os.environ.get(_VARIABLE, "")
    return int(text) if text.isdigit() and int(text) > 0 else None


def _cores_of_any_thread() -> int:
    """`usable_cores`, also where TVM has pinned the calling thread to one core, as its pool does when it starts."""
    cores = usable_cores()
    try:
        tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
        widest = max(len(os.sched_getaffinity(task)) for task in tasks)
    except (OSError, AttributeError):
        return cores  # not Linux, or a thread has just ended
    quota = _cgroup_quota(Path("/"))
    return max(cores, widest if quota is None else min(widest, math.floor(quota)))


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
