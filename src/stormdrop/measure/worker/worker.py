"""The worker process: it loads TVM once, and then serves the jobs that come over its pipe until the pipe closes."""

from __future__ import annotations

import contextlib
import os
import pickle
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from ...errors import TargetError
from ...machine.process.memory import limit_memory
from ...machine.process.no_torch import hide_torch
from ..pool.jobs import Build, Data, Load, NoDevice, Race, Ready, Reals, Run, Step, Verify

if TYPE_CHECKING:
    from .workbench import Workbench

LOADS = (f"{__package__}.workbench", "stormdrop.sketches.registry")
"""What a worker needs besides this module; see `fork_server`."""


def serve(connection: Connection, memory: int) -> None:
    """Serves jobs in a child process.

    Args:
        connection: Brings the jobs, and takes the answers.
        memory: The most bytes of address space; 0 is no bound.
    """
    limit_memory(memory)
    hide_torch()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the measurer is gone
        _serve(connection)
    # Skips the clean-up of TVM and LLVM. It is not needed, and it may crash on what a candidate has damaged.
    os._exit(0)


def _serve(connection: Connection) -> None:
    from .workbench import Workbench  # loads TVM

    workbench: Workbench | None = None
    no_device = ""  # why there is no workbench for the workload that was loaded
    connection.send(Ready())
    while True:
        job = connection.recv()
        if isinstance(job, Load):
            workbench, no_device = None, ""  # frees the memory of the old one before the new one takes its own
            workload, target, sketches, passing = pickle.loads(job.payload)
            try:
                workbench = Workbench(workload, target, sketches, lambda phase: connection.send(Step(phase)), passing)
            except TargetError as error:
                no_device = str(error)
        elif no_device:
            if not isinstance(job, Data | Reals):
                connection.send(NoDevice(no_device))
                return
        elif workbench is None:
            raise RuntimeError(f"{type(job).__name__} before Load")
        elif isinstance(job, Data | Reals):
            workbench.take(job)
        elif isinstance(job, Build):
            connection.send(workbench.build(job))
        elif isinstance(job, Run):
            connection.send(workbench.run(job))
        elif isinstance(job, Verify):
            connection.send(workbench.verify(job))
        elif isinstance(job, Race):
            connection.send(workbench.race(job))
        if workbench is not None and workbench.spoiled:
            return  # the measurer starts another process in place of this one
