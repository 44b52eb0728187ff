"""The worker process: loads TVM once, then serves one measurer's jobs until its pipe closes."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from .jobs import Build, Data, Load, Race, Ready, Run, Step

if TYPE_CHECKING:
    from .workbench import Workbench


def serve(connection: Connection, memory: int) -> None:
    """Serves jobs in a child process.

    Args:
        connection: jobs come in, and answers go out.
        memory: the most bytes of address space; 0 is no bound.
    """
    _limit(memory)
    # tvm_ffi imports torch if it is installed, for conversions that no worker makes: two seconds and much memory.
    sys.modules["torch"] = None  # type: ignore[assignment]
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the measurer is gone
        _serve(connection)
    # Skips the clean-up of TVM and LLVM: nothing of it is needed, and what a candidate damaged may crash in it.
    os._exit(0)


def _serve(connection: Connection) -> None:
    from .workbench import Workbench  # loads TVM

    workbench: Workbench | None = None
    connection.send(Ready())
    while True:
        job = connection.recv()
        if isinstance(job, Load):
            workbench = None  # frees the memory of the old one before the new one takes its own
            workload, target, sketches, passing = pickle.loads(job.payload)
            workbench = Workbench(workload, target, sketches, lambda phase: connection.send(Step(phase)), passing)
        elif workbench is None:
            raise RuntimeError(f"{type(job).__name__} before Load")
        elif isinstance(job, Data):
            workbench.take(job)
        elif isinstance(job, Build):
            connection.send(workbench.build(job))
        elif isinstance(job, Run):
            connection.send(workbench.run(job))
        elif isinstance(job, Race):
            connection.send(workbench.race(job))
        if workbench is not None and workbench.spoiled:
            return  # another process takes this one's place


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
