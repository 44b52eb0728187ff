"""The fork server's own process: `fork_server` is the side of those who ask for children.

It imports what the children need, and calls nothing of it, so that it has one thread. It tells the id of each child and
how it has ended, and waits for it once nobody asks for it any more.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from . import child_side
from .no_torch import hide_torch

NUMBER = struct.Struct("!i")
"""The form of the numbers that the server sends: ids and exit codes."""

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "TVM")}
"""Lets libraries start no threads while they are loaded. TVM reads its variable again in a child."""

_DESCRIPTORS = 5  # of a request: itself, the link to the server, the pipe to the parent, the output, the current folder


@dataclass(frozen=True)
class Request:
    """What a child needs, beside descriptors."""

    loads: tuple[str, ...]
    path: tuple[str, ...]
    environment: Mapping[str, str]
    cores: frozenset[int]


def main() -> None:
    """The server.

    `sys.argv` has the socket that brings requests, the parent's id, whether its main thread started us, and the seconds
    after which we end if there is nothing to do.
    """
    child_side.lead_group()
    _run(*(int(argument) for argument in sys.argv[1:5]))


def become_server(numbers: Sequence[int], output: int, path: Sequence[str]) -> NoReturn:
    """Makes this process, which was forked for it with `child_side.SIGNALS` blocked, the server.

    Args:
        numbers: What `main` reads from `sys.argv`.
        output: Where its standard output and error go.
        path: The folders from which it may import.
    """
    try:
        child_side.lead_group()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, child_side.SIGNALS)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard, descriptor in enumerate((nowhere, output, output)):
            os.dup2(descriptor, standard)
        kept = {0, 1, 2, numbers[0]}
        for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if descriptor not in kept:
                with contextlib.suppress(OSError):  # that of the listing is closed
                    os.close(descriptor)
        sys.path[:] = path
        os.environ.update(ONE_THREAD)
        _run(*numbers)
    except BaseException:  # noqa: BLE001  as a program of its own would end: with the message on standard error
        traceback.print_exc()
    os._exit(1)


def _run(control: int, parent: int, main_thread: int, idle: int) -> NoReturn:
    """The server, of which `main` describes the arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, the system forgets how children end
    child_side.die_with(parent if main_thread else 0)
    hide_torch()
    _Loop(socket.socket(fileno=control), parent, idle).run()
    os._exit(0)  # skips the clean-up of TVM and LLVM, which is not needed


@dataclass
class _Child:
    """A child as the server sees it.

    Attributes:
        pid: Its id.
        handle: A descriptor that is readable when it has ended.
        link: Takes its id and its exit code. What comes from there says that nobody asks for it any more.
        wanted: Whether somebody does.
        ended: Whether it has ended.
    """

    pid: int
    handle: int
    link: socket.socket
    wanted: bool = True
    ended: bool = False


class _Loop:
    """Serves requests until the parent ends; if the parent only sends no more of them, until the last child ends."""

    def __init__(self, control: socket.socket, parent: int, idle: float) -> None:
        self._control = control
        self._idle = idle
        self._parent = os.pidfd_open(parent)
        if os.getppid() != parent:  # it died before
            os._exit(1)
        self._children: list[_Child] = []
        self._open = True  # whether requests may come
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._parent, selectors.EVENT_READ, lambda: os._exit(0))
        self._selector.register(control, selectors.EVENT_READ, self._serve)

    def run(self) -> None:
        while self._open or self._children:
            ready = self._selector.select(None if self._children else self._idle)
            if not ready:
                # A request that was sent before this is still served. The next one is an error of the sender.
                self._control.shutdown(socket.SHUT_RD)
            for key, _ in ready:
                key.data()

    def _serve(self) -> None:
        """Serves a request."""
        message, descriptors, _, _ = socket.recv_fds(self._control, 1, _DESCRIPTORS)
        try:
            if not message:
                self._selector.unregister(self._control)
                self._open = False
                return
            with open(descriptors[0], "rb", closefd=False) as file:
                request: Request = pickle.load(file)
            sys.path[:] = request.path
            for name in request.loads:
                try:
                    load([name])
                except Exception:  # noqa: BLE001  the child imports it again, and says why that fails
                    traceback.print_exc()
            if len(descriptors) > 1:
                self._fork(request, descriptors)
        except (OSError, IndexError, ValueError):  # too many open files: the sender sees that the link is closed
            traceback.print_exc()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, request: Request, descriptors: Sequence[int]) -> None:
        _, link, pipe, output, folder = descriptors
        server, may_go_on = os.getpid(), has_one_thread()
        sys.stdout.flush()  # what is left there would be said by each child
        pid = os.fork()
        if pid == 0:
            _be_child(request, server, may_go_on, pipe, output, folder, lambda: self._close_in_child(descriptors[:2]))
        with contextlib.suppress(OSError):  # it has done so itself, and may have ended
            os.setpgid(pid, pid)
        try:
            child = _Child(pid, os.pidfd_open(pid), socket.socket(fileno=os.dup(link)))
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._children.append(child)
        self._tell(child, pid)
        self._selector.register(child.handle, selectors.EVENT_READ, lambda: self._note_end(child))
        self._selector.register(child.link, selectors.EVENT_READ, lambda: self._forget(child))

    def _close_in_child(self, descriptors: Sequence[int]) -> None:
        """Closes the descriptors that are the server's, and those of a request that are not the child's."""
        self._selector.close()
        self._control.close()
        os.close(self._parent)
        for descriptor in descriptors:
            os.close(descriptor)
        for child in self._children:
            os.close(child.handle)
            child.link.close()

    def _note_end(self, child: _Child) -> None:
        """Tells how a child has ended. It stays a zombie, so that no other process gets its id."""
        self._selector.unregister(child.handle)
        how: Any = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        self._tell(child, how.si_status if how.si_code == os.CLD_EXITED else -how.si_status)
        child.ended = True
        self._reap(child)

    def _forget(self, child: _Child) -> None:
        """Ends a child, and what it has started: nobody asks for it any more."""
        self._selector.unregister(child.link)
        child.wanted = False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        self._reap(child)

    def _reap(self, child: _Child) -> None:
        if child.ended and not child.wanted:
            os.waitpid(child.pid, 0)
            os.close(child.handle)
            child.link.close()
            self._children.remove(child)

    def _tell(self, child: _Child, number: int) -> None:
        with contextlib.suppress(OSError):  # nobody asks for it any more
            child.link.send(NUMBER.pack(number))


def has_one_thread() -> bool:
    """Whether this process has one thread, the one that a fork of it has."""
    return len([*Path("/proc/self/task").iterdir()]) == 1


def load(names: Sequence[str]) -> None:
    """Imports modules, and those that they name in `LOADS`.

    No garbage is collected meanwhile: modules are none, and looking for some takes a fifth of the time. What is there
    then is not looked at any more: a collection in a child would copy all pages that hold objects.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        for name in names:
            _load(name)
        gc.freeze()
    finally:
        if collects:
            gc.enable()


def _load(name: str) -> None:
    if name in sys.modules:
        return
    importlib.invalidate_caches()  # folders may have been made since the last look
    for further in getattr(importlib.import_module(name), "LOADS", ()):
        _load(further)


def _be_child(
    request: Request,
    server: int,
    may_go_on: bool,
    pipe: int,
    output: int,
    folder: int,
    close: Callable[[], None],
) -> NoReturn:
    """Becomes a child of the parent's: with its environment, its current folder and its cores.

    Args:
        request: What the parent asks for.
        server: The id of the server.
        may_go_on: Whether the server had one thread. Otherwise a new program takes the place of this one.
        pipe: The child's end of the pipe to the parent.
        output: Where its standard output and error go.
        folder: The parent's current folder.
        close: Closes what is the server's.
    """
    code = 1
    try:
        close()
        child_side.lead_group()
        child_side.die_with(server)
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(output)
        os.fchdir(folder)
        os.close(folder)
        os.sched_setaffinity(0, request.cores)
        if not may_go_on:
            os.set_inheritable(pipe, True)
            command = child_side.command(child_side.__name__, "main", (pipe, -1, server), list(request.path))
            os.execve(command[0], command, dict(request.environment))
        os.environ.clear()
        os.environ.update(request.environment)
        importlib.invalidate_caches()  # folders may have been made since the server looked
        child_side.serve(pipe)
        code = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001  as a program of its own would end: with the message on standard error
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it, or it is closed
            sys.stdout.flush()
        os._exit(code)
