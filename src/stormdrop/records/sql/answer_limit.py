"""Ends a connection to a server whose answer takes too long, because drivers wait for one without end.

The socket is shut down by a timer, so that the waiting driver reports a lost connection. A server that is gone, or a
network that carries nothing, is noticed by the operating system earlier; this is for a server that has stopped and for
whatever stands between.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DisconnectionError


class AnswerLimit:
    """Watches one thread's use of an engine. It is called by SQLAlchemy's events.

    Before a connection is used again, it is tried out: it may have been lost since.
    """

    def __init__(self, engine: Engine, seconds: float, patience: str) -> None:
        """Begins to watch the engine.

        Args:
            engine: An engine whose driver's connections have a method `fileno`.
            seconds: The seconds in which an answer comes if nothing is waited for.
            patience: The execution option with the seconds for which a statement may wait for other transactions.
        """
        self._seconds = seconds
        self._patience = patience
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._fresh: set[int] = set()  # connections that were made for the present checkout
        for name in ("before_cursor_execute", "after_cursor_execute", "handle_error", "commit"):
            event.listen(engine, name, getattr(self, f"_{name}"))
        for name in ("connect", "checkout", "checkin"):
            event.listen(engine, name, getattr(self, f"_{name}"))

    # Events. Their arguments are SQLAlchemy's.

    def _connect(self, driver: Any, _: Any) -> None:
        self._fresh.add(id(driver))

    def _checkout(self, driver: Any, _: Any, __: Any) -> None:
        if id(driver) in self._fresh:
            self._fresh.discard(id(driver))
            return
        self._start(driver, 0.0)
        try:
            with contextlib.closing(driver.cursor()) as cursor:
                cursor.execute("SELECT 1")
            driver.rollback()
        except Exception as error:  # the errors of any driver
            raise DisconnectionError from error  # SQLAlchemy makes another connection
        finally:
            self._stop()

    def _checkin(self, *_: Any) -> None:
        self._stop()

    def _before_cursor_execute(self, connection: Connection, *_: Any) -> None:
        self._expect(connection)

    def _after_cursor_execute(self, *_: Any) -> None:
        self._stop()

    def _handle_error(self, _: Any) -> None:
        self._stop()

    def _commit(self, connection: Connection) -> None:
        self._expect(connection)  # until the connection is checked in

    # Helpers

    def _expect(self, connection: Connection) -> None:
        patience = connection.get_execution_options().get(self._patience, 0.0)
        self._start(connection.connection.driver_connection, patience)

    def _start(self, driver: Any, patience: float) -> None:
        self._stop()
        timer = threading.Timer(patience + self._seconds, self._hang_up, [driver])
        timer.daemon = True
        with self._lock:
            self._timer = timer
        timer.start()

    def _stop(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None

    def _hang_up(self, driver: Any) -> None:
        with self._lock:
            if self._timer is not threading.current_thread():  # the answer has just come
                return
            with contextlib.suppress(OSError, ValueError), socket.socket(fileno=os.dup(driver.fileno())) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)
