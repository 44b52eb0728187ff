"""The tables of a database of records, and the check that a database holds them.

    stormdrop_meta       name, value: the schema version
    stormdrop_workload   one row per normalised function, however many sessions tune it
    stormdrop_session    one row per session, with a running summary of its trials
    stormdrop_trial      one row per trial, numbered within its session

Structured values (options, configurations, samples) are JSON text: they are compared and shown, but no query looks
into them.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    select,
)

from ...errors import StoreError

VERSION = 2
"""Version of the tables below. Raise it with every change to them, and add a module to `migrations/`."""

_metadata = MetaData()
_long_text = Text().with_variant(Text(2**31 - 1), "mysql", "mariadb")  # their plain TEXT ends at 64 KiB
_id = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only if the type is INTEGER

meta = Table(
    "stormdrop_meta",
    _metadata,
    Column("name", String(32), primary_key=True),
    Column("value", String(255), nullable=False),
)

workload = Table(
    "stormdrop_workload",
    _metadata,
    Column("id", _id, primary_key=True),
    Column("key", String(128), nullable=False),
    Column("digest", String(64), nullable=False),  # of the text, which is too long for an index of its own
    Column("text", _long_text, nullable=False),
    UniqueConstraint("key", "digest"),
)

session = Table(
    "stormdrop_session",
    _metadata,
    Column("number", _id, primary_key=True),
    Column("id", String(36), nullable=False, unique=True),
    Column("workload", ForeignKey(workload.c.id), nullable=False),
    Column("workload_name", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("machine", Text, nullable=False),
    Column("search", String(128), nullable=False),
    Column("seed", Text, nullable=False),  # a seed of NumPy's has any size, an integer of a database does not
    Column("options", _long_text, nullable=False),
    Column("method", _long_text, nullable=False),
    Column("versions", _long_text, nullable=False),
    Column("sketches", _long_text, nullable=False),
    Column("created", String(40), nullable=False),
    Column("state", String(16), nullable=False),
    Column("writer", Text),
    Column("outcome", _long_text),
    Column("trials", Integer, nullable=False, default=0),
    Column("failed", Integer, nullable=False, default=0),
    Column("best_seconds", Double),
    Column("written", String(40)),  # when; unknown of a session that version 1 wrote
    Index("stormdrop_session_workload", "workload"),
    Index("stormdrop_session_created", "created"),
)

trial = Table(
    "stormdrop_trial",
    _metadata,
    Column("session", ForeignKey(session.c.number), primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("batch", Integer, nullable=False),
    Column("sketch", Text, nullable=False),
    Column("config", _long_text, nullable=False),
    Column("status", String(32), nullable=False),
    Column("seconds", _long_text, nullable=False),
    Column("error", _long_text, nullable=False),
    Column("schedule_seconds", Double, nullable=False),
    Column("build_seconds", Double, nullable=False),
    Column("run_seconds", Double, nullable=False),
    Column("check_seconds", Double, nullable=False),
    Column("suspect", Boolean, nullable=False),
    Column("elapsed", Double, nullable=False),
)


def check_schema(connection: Connection, name: str) -> int | None:
    """Checks that a database holds records or nothing.

    Args:
        connection: A connection in a transaction.
        name: The name of the database, for messages.

    Returns:
        The version of its tables, which is `VERSION` or an older one; None if it is empty.

    Raises:
        StoreError: If the database holds something else, a newer version of the tables, or only some of them.
    """
    tables = set(inspect(connection).get_table_names())
    if not tables:
        return None
    if meta.name not in tables:
        raise StoreError(f"{name} is a database of something else (table {min(tables)}); give a new or a stormdrop one")
    version = connection.execute(select(meta.c.value).where(meta.c.name == "version")).scalar()
    if version is None or not version.isascii() or not version.isdigit():
        raise StoreError(f"{name} does not say which version of records it holds; it is damaged: give another one")
    if int(version) > VERSION:
        raise StoreError(
            f"{name} holds records of version {version}, and this stormdrop knows up to {VERSION}: "
            "upgrade stormdrop or give another database"
        )
    missing = {table.name for table in _metadata.sorted_tables} - tables
    if missing:
        raise StoreError(f"{name} lacks the table {min(missing)}; it is damaged: give another one")
    return int(version)


def create_schema(connection: Connection) -> None:
    """Creates the tables and writes their version, in the caller's transaction."""
    _metadata.create_all(connection)
    connection.execute(meta.insert().values(name="version", value=str(VERSION)))
