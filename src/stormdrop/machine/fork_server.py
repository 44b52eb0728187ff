"""A process that has loaded TVM and our rooms once, and forks children, which start in milliseconds.

    this process                                      fork server                              child
    fork(pipe, ..., loads)   -- loads, environment -> imports what is missing, forks    ->     serves the pipe
    ForkedProcess            <- id, exit code -----   waits for its end

A fork is safe only as long as the process has one thread: so the server imports, and calls nothing. It starts no
parallel loop, and has no kernel. If a library starts a thread while it is imported, children are new programs.

A child gets from the server what it would inherit from this process: the environment, the search path, the current
folder, the cores that it may use. It inherits no other descriptors. It dies with the server, which dies with this
process. A server without children ends after a minute; the next child starts another one.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import child_side, fork_loop
from .fork_loop import NUMBER, Request
from .last_output import LastOutput

IDLE_SECONDS = 60.0
"""A server that has no child and no request for so long ends, because it holds memory."""

_PATIENCE = 120.0
"""Seconds that the server may take to load its modules, or to tell the end of a child, before it is taken for lost."""

_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "TVM")}
"""Lets libraries start no threads while they are loaded. TVM reads its variable again in a child."""


def is_possible() -> bool:
    """Whether this system has what a fork server needs: Linux 5.3 or newer, and a Python that knows it."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def fork(
    pipe: int, output: int, path: Sequence[str], environment: Mapping[str, str], loads: Sequence[str]
) -> ForkedProcess:
    """Starts a child process, without waiting for it.

    Args:
        pipe: The child's end of the pipe to this process.
        output: Where its standard output and error go.
        path: The folders from which it may import.
        environment: All variables that it has.
        loads: The modules that the server imports before it forks, if it does not have them yet, and those that they
            name in a constant `LOADS`, because they import them in functions only.

    Raises:
        OSError: It cannot be started.
    """
    cores = frozenset(os.sched_getaffinity(0))
    request = Request(tuple(loads), tuple(path), dict(environment), cores)
    with contextlib.ExitStack() as kept, contextlib.ExitStack() as sent:
        ours, theirs = socket.socketpair()
        ours.settimeout(_PATIENCE)
        kept.callback(ours.close)
        sent.callback(theirs.close)
        folder = os.open(".", os.O_PATH)
        sent.callback(os.close, folder)
        server = _send(request, (theirs.fileno(), pipe, output, folder))
        kept.pop_all()
        return ForkedProcess(ours, server)


class ForkedProcess:
    """A child of the fork server. `ChildProcess` says what the parent may do with it."""

    def __init__(self, link: socket.socket, server: _Server) -> None:
        self._link = link
        self._server = server
        self._pid: int | None = None
        self._code: int | None = None
        self._is_reaped = False

    @property
    def pid(self) -> int:
        """The id of the process, which is waited for until it has started; 0 if the server has ended instead."""
        if self._pid is None:
            self._pid = self._read()
        if self._pid is None:
            self._end(-signal.SIGKILL)
        return self._pid or 0

    def has_started(self) -> bool:
        """Whether `pid` is there without waiting."""
        return self._pid is not None or self._arrived()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and to what it has started."""
        if number == signal.SIGKILL and not self.has_started():
            self._end(-signal.SIGKILL)  # the server does not start it any more
        if not self._is_reaped and self.pid:
            # The server waits for the child only after `reap`, so that no other process or group has its id.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        if self._code is None and self.has_started() and self.pid and self._arrived():
            self._code = self._read_code()
        return self._code is not None

    def reap(self) -> int:
        """Waits for the end of the process. Returns its exit code; a signal that ended it is negative."""
        if self._code is None and self.pid:
            self._code = self._read_code()
        self._end(-signal.SIGKILL if self._code is None else self._code)
        assert self._code is not None
        return self._code

    def last_line(self) -> str:
        """What the server has said if it has ended."""
        return "" if self._pid else self._server.last_line()

    def _end(self, code: int) -> None:
        """Lets the server forget the child."""
        self._code, self._pid, self._is_reaped = code, self._pid or 0, True
        with contextlib.suppress(OSError):  # it has ended, or we are here twice
            self._link.send(b"\0")
        self._link.close()

    def _arrived(self) -> bool:
        """Whether there is something to read, or the server has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ)
            return bool(selector.select(0.0))

    def _read(self) -> int | None:
        """The next number that the server sends; None if it has ended."""
        try:
            data = self._link.recv(NUMBER.size, socket.MSG_WAITALL)
        except OSError:
            return None
        return int(NUMBER.unpack(data)[0]) if len(data) == NUMBER.size else None

    def _read_code(self) -> int:
        code = self._read()
        return -signal.SIGKILL if code is None else code  # its children die with the server


def prepare(path: Sequence[str], loads: Sequence[str]) -> None:
    """Lets the server load modules, without waiting for it: what will be forked soon starts sooner.

    Args:
        path: The folders from which it may import.
        loads: The modules, as `fork` takes them.
    """
    _send(Request(tuple(loads), tuple(path), dict(os.environ), frozenset()), ())  # without descriptors: for no child


def stop() -> None:
    """Ends the server, and its children. The next child starts another one."""
    global _running
    with _lock:
        if _running is not None:
            _running.close()
            _running = None
        for server in _retired:
            server.close()
        _retired.clear()


# The server as this process sees it


class _Server:
    """A running fork server. It is for the process that has started it.

    Attributes:
        origin: What its children inherit without being told.
    """

    def __init__(self, origin: object, path: Sequence[str]) -> None:
        self.origin = origin
        self._control, control = socket.socketpair()
        output = -1
        try:
            self._output, output = LastOutput.of_pipe()
            main_thread = threading.current_thread() is threading.main_thread()
            numbers = (control.fileno(), os.getpid(), int(main_thread), math.ceil(IDLE_SECONDS))
            self._process = subprocess.Popen(
                child_side.command(fork_loop.__name__, "main", numbers, list(path)),
                pass_fds=(control.fileno(),),
                env={**os.environ, **_ONE_THREAD},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        except BaseException:
            self._control.close()
            raise
        finally:
            control.close()
            if output >= 0:
                os.close(output)

    def send(self, request: Request, descriptors: Sequence[int]) -> None:
        """Sends a request, as a file in memory, so that it is sent as a whole, and not waited for.

        Raises:
            OSError: The server has ended, or takes no requests any more.
        """
        with os.fdopen(os.memfd_create("request"), "w+b") as file:
            pickle.dump(request, file)
            file.flush()
            file.seek(0)
            socket.send_fds(self._control, [b"\0"], [file.fileno(), *descriptors])

    def last_line(self) -> str:
        """The last line that it wrote."""
        return self._output.last_line(ended=not self.is_alive())

    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def retire(self) -> None:
        """Lets the server end after its last child."""
        self._control.close()

    def close(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()


_running: _Server | None = None
_retired: list[_Server] = []
_lock = threading.Lock()


def _send(request: Request, descriptors: Sequence[int]) -> _Server:
    """Sends a request to the server, and starts one if there is none that takes it."""
    global _running
    with _lock:
        origin = _origin()
        if _running is not None and _running.origin != origin:
            _retire()
        if _running is not None:
            try:
                _running.send(request, descriptors)
                return _running
            except OSError:  # it was idle, or it was killed
                _retire()
        server = _running = _Server(origin, request.path)
        try:
            server.send(request, descriptors)
        except OSError as error:
            _retire()
            raise OSError(server.last_line() or str(error)) from error
        return server


def _retire() -> None:
    """Lets the server end after its last child, and waits for those that have ended."""
    global _running
    assert _running is not None
    _running.retire()
    _retired[:] = [server for server in (*_retired, _running) if server.is_alive()]
    _running = None


def _origin() -> object:
    """What a child inherits from the process that has started the server, and would inherit from this one."""
    import resource

    limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    status, groups, score = (Path(f"/proc/self/{name}").read_text() for name in ("status", "cgroup", "oom_score_adj"))
    umask = next((line for line in status.splitlines() if line.startswith("Umask")), "")
    user = os.getpriority(os.PRIO_PROCESS, 0), os.geteuid(), os.getegid()
    return os.getpid(), [resource.getrlimit(limit) for limit in limits], umask, groups, score, user


def _forget() -> None:
    """A process that was forked from this one starts a server of its own."""
    global _running, _lock
    _running, _lock = None, threading.Lock()
    _retired.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
