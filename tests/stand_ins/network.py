"""A network that fails on purpose: a proxy on this machine whose connections can be cut, or fall silent.

with Proxy(server.port) as proxy:
    ...              # connect to 127.0.0.1:proxy.port
    proxy.cut()      # all connections end at once, and new ones are refused
    proxy.silence()  # nothing passes any more, and nobody is told
    proxy.mend()
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from queue import Queue

from typing_extensions import Self

_CHUNK = 1 << 16
_LOOK = 0.02  # seconds between two looks at what was asked of it


class Proxy:
    """Passes on to a port of this machine what comes to its own port, unless it was told otherwise.

    It is a context manager; a thread of its own does the work.

    Attributes:
        port: the port at 127.0.0.1 to connect to.
    """

    def __init__(self, target: int) -> None:
        """A proxy that works.

        Args:
            target: the port at 127.0.0.1 that it passes everything on to.
        """
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._other: dict[socket.socket, socket.socket] = {}
        self._passes, self._refuses, self._ends = True, False, False
        self._wanted: Queue[tuple[Callable[[], None], threading.Event]] = Queue()
        self._thread = threading.Thread(target=self._work, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._ends = True
        self._thread.join()
        self._listener.close()
        self._selector.close()

    def cut(self) -> None:
        """Ends all connections at once, and each new one as soon as it is made, until `mend`."""
        self._do(self._cut)

    def silence(self) -> None:
        """Lets nothing pass any more, in either direction, until `mend`. Connections stay open."""
        self._do(self._silence)

    def mend(self) -> None:
        """Works again. What was held back by `silence` passes now."""
        self._do(self._mend)

    def _do(self, what: Callable[[], None]) -> None:
        """Has the thread do something, and waits until it is done."""
        done = threading.Event()
        self._wanted.put((what, done))
        done.wait()

    # In the thread

    def _work(self) -> None:
        while not self._ends:
            while not self._wanted.empty():
                what, done = self._wanted.get()
                what()
                done.set()
            if not self._passes:
                time.sleep(_LOOK)
                continue
            for key, _ in self._selector.select(_LOOK):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._pass_on(key.fileobj)

    def _cut(self) -> None:
        self._passes, self._refuses = True, True
        for connection in list(self._other):
            self._drop(connection)

    def _silence(self) -> None:
        self._passes = False

    def _mend(self) -> None:
        self._passes, self._refuses = True, False

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._refuses:
            _reset(client)
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:  # nobody listens there: the client sees the same
            _reset(client)
            return
        for one, other in ((client, server), (server, client)):
            self._other[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, source: socket.socket) -> None:
        if source not in self._other:
            return
        try:
            data = source.recv(_CHUNK)
            if data:
                self._other[source].sendall(data)
                return
        except OSError:  # one of the two has ended the connection: so does the other end, below
            pass
        self._drop(source)

    def _drop(self, connection: socket.socket) -> None:
        other = self._other.pop(connection, None)
        if other is not None:
            self._other.pop(other, None)
            for each in (connection, other):
                self._selector.unregister(each)
                _reset(each)


def _reset(connection: socket.socket) -> None:
    """Ends a connection without a farewell."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
