"""How many cores this process may use, and how TVM's threads use them. What the user has set in the environment stays.

- TVM's thread pool takes half of the logical CPUs of an x86 machine, because it assumes hyper-threading. It reads the
  environment variable TVM_NUM_THREADS once, when the pool starts.
- A thread of the pool that has nothing to do asks again and again for TVM_THREAD_POOL_SPIN_COUNT times before it
  sleeps. TVM's default is 300,000 times, 130 ms, so that a server that is called ten times a second keeps all cores
  busy. `SPINS` bridges the time between two kernels of a model, and no more.
- TVM binds the threads of every pool to the first cores. Each thread that calls a model has a pool of its own, so all
  of them would share these cores, and the calling thread would be bound as well. TVM_BIND_THREADS=0 leaves it to the
  system on which cores threads run.

This module imports nothing that loads TVM, because it must run before TVM is loaded.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from pathlib import Path

from ..errors import InputError
from .process.cgroups import control_groups, words

SPINS = 1000
"""How often a thread without work looks for some before it sleeps: 0.4 ms."""

_VARIABLE = "TVM_NUM_THREADS"
_configured = False  # whether `configure` has done all that it can do in this process


def usable_cores(root: Path = Path("/")) -> int:
    """The number of logical CPUs that this process may keep busy, at least 1.

    It is the number of CPUs in the process's affinity mask, or the CPU quota of its control groups if that is less.

    Args:
        root: The folder in which /proc and /sys are looked for.

    Example:
        >>> usable_cores() >= 1
        True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota(root)
    # Half a core of quota does not count: its thread would be throttled inside a kernel, and all others wait for it.
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def thread_count() -> int:
    """The number of threads that TVM uses after `configure`: the user's TVM_NUM_THREADS, or all usable cores."""
    return _users_choice() or usable_cores()


def checked_threads(threads: int | None) -> int:
    """The number of threads that a call of a model may use.

    Args:
        threads: What the user asks for; None stands for all usable cores.

    Raises:
        InputError: It is no whole number, less than one, or more than the cores that this process may use.
    """
    cores = thread_count()
    if threads is None:
        return cores
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= cores:
        raise InputError(f"threads={threads!r}: must be a whole number from 1 to {cores}, the cores of this process")
    return threads


def configure() -> None:
    """Lets TVM use all usable cores, unless the user chose a number with TVM_NUM_THREADS, and sleep between calls.

    If TVM was loaded before and its thread pool has started with fewer threads, it is too late. A `RuntimeWarning`
    then says so once.
    """
    global _configured
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", str(SPINS))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    if _configured or _users_choice() is not None:
        return
    _configured = True
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
    """The number in the environment variable; None if it is not set, or not a positive number."""
    text = os.environ.get(_VARIABLE, "")
    return int(text) if text.isdigit() and int(text) > 0 else None


def _cores_of_any_thread() -> int:
    """`usable_cores`, even if TVM has pinned the calling thread to one core, as its pool does when it starts."""
    cores = usable_cores()
    try:
        tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
        widest = max(len(os.sched_getaffinity(task)) for task in tasks)
    except (OSError, AttributeError):
        return cores  # the system is not Linux, or a thread has just ended
    quota = _cgroup_quota(Path("/"))
    return max(cores, widest if quota is None else min(widest, math.floor(quota)))


def _cgroup_quota(root: Path) -> float | None:
    """The smallest CPU quota, in cores, of the control groups that this process is in; None if there is no quota."""
    quotas = [_quota_v2(group) if version == 2 else _quota_v1(group) for version, group in control_groups("cpu", root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_v2(group: Path) -> float | None:
    quota = words(group / "cpu.max")
    return None if len(quota) < 2 or quota[0] == "max" else int(quota[0]) / int(quota[1])


def _quota_v1(group: Path) -> float | None:
    quota, period = words(group / "cpu.cfs_quota_us"), words(group / "cpu.cfs_period_us")
    return None if not quota or not period or int(quota[0]) <= 0 else int(quota[0]) / int(period[0])
