"""Who waits for a file lock, as Linux says it."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who holds a lock, and who waits for it")


def is_waiting(pid: int) -> bool:
    """Whether a process waits for a lock that another one holds."""
    return re.search(rf"-> FLOCK .* {pid} ", Path("/proc/locks").read_text()) is not None


def until_it_waits(pid: int) -> None:
    """Returns once a process waits for a lock."""
    while not is_waiting(pid):
        time.sleep(0.01)
