"""What a PostgreSQL server needs from us: a driver, bounds on every wait, and one process at a time that makes tables.

A connection may be lost at any moment, and without a word if a network fails. So a connection that is silent is given
up after `SILENCE_SECONDS`. The server, for its part, ends a transaction whose client has said nothing for
`ABANDONED_SECONDS`, so that a machine that vanishes locks nothing for long.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Connection, Engine, func, select

from .answer_limit import AnswerLimit

SILENCE_SECONDS = 10
"""Seconds without an answer after which a server cannot be reached, at the beginning or later."""

ABANDONED_SECONDS = 60
"""Seconds for which a transaction that writes may say nothing before the server ends it."""

_DRIVER = "postgresql+psycopg"
_LIBPQ = ("psycopg", "psycopg2")  # drivers that take the parameters of PostgreSQL's own library
_MAKES_TABLES = 0x73746F726D64726F  # an advisory lock: "stormdro"


def is_postgresql(url: URL) -> bool:
    """Whether a URL names a database of PostgreSQL."""
    return url.get_backend_name() in ("postgresql", "postgres")


def with_driver(url: URL) -> URL:
    """The URL with psycopg as its driver, unless it names another one. "postgres" is short for "postgresql"."""
    return url.set(drivername=_DRIVER) if url.drivername in ("postgresql", "postgres") else url


def engine_options(url: URL) -> dict[str, Any]:
    """The options of an engine. What the URL says about the connection comes first.

    Args:
        url: The URL, with its driver.
    """
    options: dict[str, Any] = {}
    if url.get_driver_name() in _LIBPQ:
        wanted = {
            "application_name": "stormdrop",
            "connect_timeout": SILENCE_SECONDS,
            "keepalives_idle": max(1, SILENCE_SECONDS // 2),
            "keepalives_interval": max(1, SILENCE_SECONDS // 4),
            "keepalives_count": 2,
            "tcp_user_timeout": 1000 * SILENCE_SECONDS,
        }
        options["connect_args"] = {name: value for name, value in wanted.items() if name not in url.query}
    return options


def watch(engine: Engine, patience: str) -> None:
    """Ends a connection of the engine if the server answers nothing.

    Args:
        engine: The engine.
        patience: The execution option with the seconds for which a statement may wait for other transactions.
    """
    if engine.driver in _LIBPQ:
        AnswerLimit(engine, SILENCE_SECONDS, patience)


def bound_waits(connection: Connection, patience: float) -> None:
    """Bounds how long a transaction that writes may wait for others, and they for it.

    Args:
        connection: A connection in a transaction.
        patience: Seconds for which a statement waits for a lock of another transaction.
    """
    connection.execute(
        select(
            func.set_config("lock_timeout", f"{max(1, round(1000 * patience))}ms", True),
            func.set_config("idle_in_transaction_session_timeout", f"{ABANDONED_SECONDS}s", True),
        )
    )


def alone_to_make_tables(connection: Connection) -> None:
    """Waits until no other process makes or changes tables, and keeps all from it until the transaction ends."""
    connection.execute(select(func.pg_advisory_xact_lock(_MAKES_TABLES)))
