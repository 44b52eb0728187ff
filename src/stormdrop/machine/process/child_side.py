"""What a child process does before it serves its parent: `ChildProcess` is the parent's side.

It leads a process group of its own, so that what it starts can be ended with it. It dies with its parent, whatever it
is doing, even if the parent was killed.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import signal
import sys
import threading
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1

SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""What is sent to all processes of a terminal."""

# `-c` lets a program import from the current folder, where anything may lie: it has exactly the given path instead.
_PROGRAM = "import sys; sys.path[:] = sys.argv[{first}:]; from {module} import {function}; {function}()"


def command(module: str, function: str, numbers: tuple[int, ...], path: list[str]) -> list[str]:
    """The command line of a Python process that calls a function.

    Args:
        module: The module of the function.
        function: Its name. It reads the numbers from `sys.argv`, and takes no arguments.
        numbers: The numbers, such as file descriptors.
        path: The folders from which the process may import.
    """
    program = _PROGRAM.format(first=1 + len(numbers), module=module, function=function)
    return [sys.executable, "-c", program, *map(str, numbers), *path]


def main() -> None:
    """Serves the parent in a process that was started for it. `sys.argv`: pipe, lifeline or -1, parent's id or 0."""
    pipe, lifeline, parent = (int(argument) for argument in sys.argv[1:4])
    lead_group()
    if lifeline >= 0:
        _watch(lifeline)
    die_with(parent)
    serve(pipe)


def serve(pipe: int) -> None:
    """Calls the function that the parent names.

    Args:
        pipe: The child's end of the pipe to the parent, which sends the function "module:name" and its arguments.
    """
    connection = Connection(pipe)
    try:
        function, arguments = connection.recv()
    except EOFError:
        return
    module, _, name = function.partition(":")
    getattr(importlib.import_module(module), name)(connection, *pickle.loads(arguments))


def lead_group() -> None:
    """Makes this process lead a group of its own, and lets it ignore what is sent to all processes of a terminal."""
    os.setpgid(0, 0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def die_with(parent: int) -> None:
    """Lets Linux end this process when its parent ends, even if it is stopped, or keeps the interpreter's lock.

    Args:
        parent: The id of the parent. 0 if the *thread* that has started this process may end before the parent does:
            Linux would end this process then.
    """
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the signal was set
            os._exit(1)


def _watch(lifeline: int) -> None:
    """Ends this process when the parent ends.

    Args:
        lifeline: A pipe that the parent holds open.
    """

    def wait() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
