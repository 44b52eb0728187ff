"""The worker process: loads TVM once, then serves one measurer's jobs until its pipe closes.

Started as `python -c "from stormdrop.measure.worker import main; main()" PIPE LIFELINE PARENT BYTES`. It is no
`multiprocessing.Process`: that would run the user's script again, which need not be written for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from .messages import Build, Data, Load, Race, Ready, Run, Step

if TYPE_CHECKING:
    from .workbench import Workbench

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serves jobs. `sys.argv`: pipe, lifeline (file descriptors), parent's process id or 0, limit of memory or 0."""
    pipe, lifeline, parent, memory = (int(argument) for argument in sys.argv[1:5])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _die_with_parent(lifeline, parent)
    _limit(memory)
    # tvm_ffi imports torch where it is installed, for conversions that no worker makes: two seconds and much memory.
    sys.modules["torch"] = None  # type: ignore[assignment]
    _serve(Connection(pipe))
    # Skips the clean-up of TVM and LLVM: nothing of it is needed, and what a candidate damaged may crash in it.
    os._exit(0)


def _serve(connection: Connection) -> None:
    from .workbench import Workbench  # loads TVM

    bench: Workbench | None = None
    connection.send(Ready())
    while True:
        try:
            job = connection.recv()
            if isinstance(job, Load):
                bench = None  # frees the memory of the old one before the new one takes its own
                workload, target, sketches, passing = pickle.loads(job.payload)
                bench = Workbench(workload, target, sketches, lambda phase: connection.send(Step(phase)), passing)
            elif bench is None:
                raise RuntimeError(f"{type(job).__name__} before Load")
            elif isinstance(job, Data):
                bench.take(job)
            elif isinstance(job, Build):
                connection.send(bench.build(job))
            elif isinstance(job, Run):
                connection.send(bench.run(job))
            elif isinstance(job, Race):
                connection.send(bench.race(job))
            if bench is not None and bench.spoiled:
                return  # another process takes this one's place
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the measurer is gone


def _die_with_parent(lifeline: int, parent: int) -> None:
    """Ends this process when the parent ends, whatever this process is doing then.

    The lifeline is a pipe that the parent holds open. Linux's own signal works even where a native loop keeps the
    interpreter lock, but it comes when the *thread* that started the worker ends: the parent passes its id only
    where that is the main thread.
    """

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the signal was set
            os._exit(1)


def _limit(memory: int) -> None:
    """Bounds the memory, gives up core dumps, and offers this process first to an out-of-memory killer."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if memory:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a container may forbid it; the limit above still holds
            Path("/proc/self/oom_score_adj").write_text("1000")
