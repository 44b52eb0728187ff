"""A process that has loaded TVM and our rooms once, and forks children, which start in milliseconds.

    this process                                      fork server                              child
    fork(pipe, ..., loads)   -- loads, environment -> imports what is missing, forks    ->     serves the pipe
    ForkedProcess            <- id, exit code -----   waits for its end

A fork is safe only as long as the process has one thread: so the server imports, and calls nothing. It starts no
parallel loop, and has no kernel. If a library starts a thread while it is imported, children are new programs.

A server is a new program. A command of ours forks it from its own process instead, at its start, so that TVM is loaded
once (`fork_here`).

A child gets from the server what it would inherit from this process: the environment, the search path, the current
folder, the cores that it may use. It inherits no other descriptors. It dies with the server, which dies with this
process. A server without children ends after a minute; the next child starts another one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import pickle
import resource
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from threadpoolctl import threadpool_limits

from . import child_side, fork_loop
from .fork_loop import NUMBER, Request
from .last_output import LastOutput

IDLE_SECONDS = 60.0
"""A server that has no child and no request for so long ends, because it holds memory."""

_PATIENCE = 120.0
"""Seconds that the server may take to load its modules, or to tell the end of a child, before it is taken for lost."""


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


def fork_here(path: Sequence[str], loads: Sequence[str]) -> None:
    """Loads modules in this process, and forks the server from it: the server need not load them again.

    It is for a command of ours, at its start: the server, and each child, has what this process has in memory. Nothing
    happens if there is a server, if this process has threads, or if torch is installed: TVM would load it here, and
    children do without.

    Args:
        path: The folders from which the server may import.
        loads: The modules, as `fork` takes them.
    """
    global _running
    is_alone = threading.current_thread() is threading.main_thread() and threading.active_count() == 1
    if not is_alone or importlib.util.find_spec("torch") is not None:
        return
    with _lock:
        if _running is None:
            fork_loop.load(loads)
            server = _Server(_origin(), path, fork=True)
            if server.is_whole:
                _running = server
            else:
                server.close()


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
        is_whole: Whether it is a new program, or was forked from a process that had one thread.
    """

    def __init__(self, origin: object, path: Sequence[str], *, fork: bool = False) -> None:
        self.origin = origin
        self._control, control = socket.socketpair()
        read, write = os.pipe()
        main_thread = threading.current_thread() is threading.main_thread()
        numbers = (control.fileno(), os.getpid(), int(main_thread), math.ceil(IDLE_SECONDS))
        try:
            self._process: subprocess.Popen[bytes] | _Forked = (
                _Forked(numbers, write, path) if fork else _new_program(numbers, write, path)
            )
        except BaseException:
            self._control.close()
            os.close(read)
            raise
        finally:
            control.close()
            os.close(write)
        self.is_whole = not isinstance(self._process, _Forked) or self._process.is_whole
        self._output = LastOutput(read)

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


def _new_program(numbers: Sequence[int], output: int, path: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts a server that is a new program."""
    return subprocess.Popen(
        child_side.command(fork_loop.__name__, "main", tuple(numbers), list(path)),
        pass_fds=(numbers[0],),
        env={**os.environ, **fork_loop.ONE_THREAD},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )


class _Forked:
    """A server that was forked from this process: what `subprocess.Popen` is for one that is a new program.

    Attributes:
        is_whole: Whether this process had one thread, which is the one that a fork has.
    """

    def __init__(self, numbers: Sequence[int], output: int, path: Sequence[str]) -> None:
        sys.stdout.flush()  # what is left there would be said by the server, too
        sys.stderr.flush()
        self._code: int | None = None
        self._lock = threading.Lock()
        former = signal.pthread_sigmask(signal.SIG_BLOCK, child_side.SIGNALS)  # our handlers are not for the server
        try:
            with threadpool_limits(1):  # of NumPy, which has been loaded before; the server keeps this limit
                self._pid = os.fork()
                if self._pid == 0:
                    fork_loop.become_server(numbers, output, path)
                self.is_whole = fork_loop.has_one_thread()  # OpenBLAS has ended its threads for the fork
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)

    def poll(self) -> int | None:
        """The exit code; None if the process has not ended."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        return self._wait(0)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self._pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        with self._lock:
            if self._code is None:
                try:
                    pid, status = os.waitpid(self._pid, options)
                except ChildProcessError:  # this process ignores the ends of its children
                    pid, status = self._pid, 0
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
            return self._code


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
    server, _running = _running, None
    server.retire()
    _retired[:] = [retired for retired in (*_retired, server) if retired.is_alive()]


def _origin() -> object:
    """What a child inherits from the process that has started the server, and would inherit from this one."""
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


os.register_at_fork(after_in_child=_forget)
