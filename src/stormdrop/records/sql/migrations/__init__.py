"""Brings the tables of an older version to the present one: one module for each version, by Alembic's operations.

The version stays where every version of stormdrop looks for it, in `stormdrop_meta`, and not in a table of Alembic's.
To change the tables, change `schema.py`, raise its `VERSION`, and add the module `version_N.py` with a function
`upgrade`. A test compares what it makes of a database of version 0.1 with `schema.py`.

version_2.py  when a session was written last, and an index for lists of sessions
"""

from __future__ import annotations

import importlib

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection

from .. import schema


def upgrade(connection: Connection, found: int) -> None:
    """Upgrades the tables in the caller's transaction, version by version.

    Args:
        connection: A connection in a transaction that writes.
        found: The version of the tables, as `schema.check_schema` returned it.
    """
    with Operations.context(MigrationContext.configure(connection)):
        for version in range(found + 1, schema.VERSION + 1):
            importlib.import_module(f"{__name__}.version_{version}").upgrade()
    connection.execute(schema.meta.update().where(schema.meta.c.name == "version").values(value=str(schema.VERSION)))
