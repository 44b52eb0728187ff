"""Threads do not survive a fork: a call in a process that was forked too late is an error, and does not hang."""

from __future__ import annotations

import os

from ...errors import ArtifactError

_running: int | None = None
"""The process in which a kernel has run first. TVM's threads are there."""


FORKED = (
    "a model has run before this process was forked, or a kernel, and its threads do not survive a fork: "
    "start processes with multiprocessing's method 'spawn', or fork before anything runs"
)
"""What such a call says."""


def check_threads() -> None:
    """Notes that TVM's threads are in this process from now on.

    Raises:
        ArtifactError: They are in another process, from which this one was forked.
    """
    global _running
    process = os.getpid()
    if _running == process:
        return
    if _running is not None:
        raise ArtifactError(FORKED)
    _running = process
