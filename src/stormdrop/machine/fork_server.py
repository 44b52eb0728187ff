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
import gc
import importlib
import math
import os
import pickle
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from . import child_side
from .last_output import LastOutput

IDLE_SECONDS = 60.0
"""A server that has no child and no request for so long ends, because it holds memory."""

_PATIENCE = 120.0
"""Seconds that the server may take to load its modules, or to tell the end of a child, before it is taken for lost."""

_NUMBER = struct.Struct("!i")
_DESCRIPTORS = 4  # of a request: the link to the server, the pipe to the parent, the output, the current folder

_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "TVM")}
"""Lets libraries start no threads while they are loaded. TVM reads its variable again in a child."""


@dataclass(frozen=True)
class _Request:
    """What a child needs, beside descriptors."""

    loads: tuple[str, ...]
    path: tuple[str, ...]
    environment: Mapping[str, str]
    cores: frozenset[int]


def is_possible() -> bool:
    """Whether this system has what a fork server needs: Linux 5.3 or newer."""
    if sys.platform != "linux":
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
    request = pickle.dumps(_Request(tuple(loads), tuple(path), dict(environment), cores))
    with contextlib.ExitStack() as kept, contextlib.ExitStack() as sent:
        ours, theirs = socket.socketpair()
        ours.settimeout(_PATIENCE)
        kept.callback(ours.close)
        sent.callback(theirs.close)
        folder = os.open(".", os.O_PATH)
        sent.callback(os.close, folder)
        server = _send(request, (theirs.fileno(), pipe, output, folder), path)
        kept.pop_all()
        return ForkedProcess(ours, server)


class ForkedProcess:
    """A child of the fork server. `ChildProcess` says what the parent may do with it."""

    def __init__(self, link: socket.socket, server: _Server) -> None:
        self._link = link
        self._server = server
        self._pid: int | None = None
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """The id of the process, which is waited for until it has started; 0 if the server has ended instead."""
        if self._pid is None:
            self._pid = self._read() or 0
        return self._pid

    def has_started(self) -> bool:
        """Whether `pid` is there without waiting."""
        return self._pid is not None or self._arrived()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and to what it has started."""
        if number == signal.SIGKILL and not self.has_started():
            self._end(-signal.SIGKILL)  # the server does not start it any more
        if self._code is None and self.pid:
            # The server waits for the child only after `reap`, so that no other process or group has its id.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        if self._code is None and self.has_started() and (not self.pid or self._arrived()):
            self._code = self._read_code()
        return self._code is not None

    def reap(self) -> int:
        """Waits for the end of the process. Returns its exit code; a signal that ended it is negative."""
        if self._code is None:
            self._code = self._read_code() if self.pid else -signal.SIGKILL
        self._end(self._code)
        return self._code

    def last_line(self) -> str:
        """What the server has said if it has ended."""
        return "" if self._pid else self._server.last_line()

    def _end(self, code: int) -> None:
        """Lets the server forget the child."""
        self._code, self._pid = code, self._pid or 0
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
            data = self._link.recv(_NUMBER.size, socket.MSG_WAITALL)
        except OSError:
            return None
        return int(_NUMBER.unpack(data)[0]) if len(data) == _NUMBER.size else None

    def _read_code(self) -> int:
        code = self._read()
        return -signal.SIGKILL if code is None else code  # its children die with the server


def prepare(path: Sequence[str], loads: Sequence[str]) -> None:
    """Lets the server load modules, without waiting for it: what will be forked soon starts sooner.

    Args:
        path: The folders from which it may import.
        loads: The modules, as `fork` takes them.
    """
    if is_possible():
        # Without descriptors it asks for no child.
        _send(pickle.dumps(_Request(tuple(loads), tuple(path), dict(os.environ), frozenset())), (), path)


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
        self._output, output = LastOutput.of_pipe()
        self._control, control = socket.socketpair()
        try:
            main_thread = threading.current_thread() is threading.main_thread()
            numbers = (control.fileno(), os.getpid(), int(main_thread), math.ceil(IDLE_SECONDS))
            self._process = subprocess.Popen(
                child_side.command(__name__, "main", numbers, list(path)),
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
            os.close(output)

    def send(self, request: bytes, descriptors: Sequence[int]) -> None:
        """Sends a request.

        Raises:
            OSError: The server has ended, or takes no requests any more.
        """
        socket.send_fds(self._control, [_NUMBER.pack(len(request))], descriptors)
        self._control.sendall(request)

    def last_line(self) -> str:
        lines = self._output.text(ended=self._process.poll() is not None).strip().splitlines()
        return lines[-1] if lines else ""

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


def _send(request: bytes, descriptors: Sequence[int], path: Sequence[str]) -> _Server:
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
        _running = _Server(origin, path)
        _running.send(request, descriptors)
        return _running


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
    status = Path("/proc/self/status").read_text()
    umask = next((line for line in status.splitlines() if line.startswith("Umask")), "")
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    return os.getpid(), [resource.getrlimit(limit) for limit in limits], umask, priority, os.geteuid(), os.getegid()


def _forget() -> None:
    """A process that was forked from this one starts a server of its own."""
    global _running, _lock
    _running, _lock = None, threading.Lock()
    _retired.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


# The server's side


def main() -> None:
    """The server. `sys.argv`: the socket that brings requests, the parent's id, whether its main thread started us, and
    the seconds after which we end if there is nothing to do."""
    control, parent, main_thread, idle = (int(argument) for argument in sys.argv[1:5])
    child_side.lead_group()
    child_side.die_with(parent if main_thread else 0)
    # If torch is installed, tvm_ffi imports it for conversions that no child makes. That costs 2 s and much memory.
    sys.modules["torch"] = None  # type: ignore[assignment]
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
        header, descriptors, _, _ = socket.recv_fds(self._control, _NUMBER.size, _DESCRIPTORS)
        data = b""
        if len(header) == _NUMBER.size:
            data = self._control.recv(_NUMBER.unpack(header)[0], socket.MSG_WAITALL)
        if len(header) < _NUMBER.size or len(data) < _NUMBER.unpack(header)[0]:
            self._selector.unregister(self._control)
            self._open = False
            for descriptor in descriptors:
                os.close(descriptor)
            return
        request: _Request = pickle.loads(data)
        sys.path[:] = request.path
        for name in request.loads:
            _load(name)
        gc.freeze()  # a collection in a child would copy all pages that hold objects
        if descriptors:
            self._fork(request, *descriptors)

    def _fork(self, request: _Request, link: int, pipe: int, output: int, folder: int) -> None:
        server, may_go_on = os.getpid(), len([*Path("/proc/self/task").iterdir()]) == 1
        try:
            pid = os.fork()
        except OSError:  # the parent sees that the link is closed
            traceback.print_exc()
            for descriptor in (link, pipe, output, folder):
                os.close(descriptor)
            return
        if pid == 0:
            self._close_in_child(link)
            _be_child(request, server, may_go_on, pipe, output, folder)
        with contextlib.suppress(OSError):  # it has done so itself, and may have ended
            os.setpgid(pid, pid)
        for descriptor in (pipe, output, folder):
            os.close(descriptor)
        child = _Child(pid, os.pidfd_open(pid), socket.socket(fileno=link))
        self._children.append(child)
        self._tell(child, pid)
        self._selector.register(child.handle, selectors.EVENT_READ, lambda: self._note_end(child))
        self._selector.register(child.link, selectors.EVENT_READ, lambda: self._forget(child))

    def _close_in_child(self, link: int) -> None:
        """Closes the descriptors that are the server's."""
        self._selector.close()
        self._control.close()
        os.close(self._parent)
        os.close(link)
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
            child.link.send(_NUMBER.pack(number))


def _load(name: str) -> None:
    """Imports a module, and those that it names in `LOADS`."""
    if name in sys.modules:
        return
    try:
        module = importlib.import_module(name)
    except Exception:  # noqa: BLE001  the child imports it again, and says why that fails
        traceback.print_exc()
        return
    for further in getattr(module, "LOADS", ()):
        _load(further)


def _be_child(request: _Request, server: int, may_go_on: bool, pipe: int, output: int, folder: int) -> NoReturn:
    """Becomes a child of the parent's: with its environment, its current folder and its cores.

    Args:
        request: What the parent asks for.
        server: The id of the server.
        may_go_on: Whether the server had one thread. Otherwise a new program takes the place of this one.
        pipe: The child's end of the pipe to the parent.
        output: Where its standard output and error go.
        folder: The parent's current folder.
    """
    code = 1
    try:
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
        child_side.serve(pipe)
        code = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001  as a program of its own would end: with the message on standard error
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
