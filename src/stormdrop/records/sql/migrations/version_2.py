"""Version 2: when a session was written last, and an index for lists of sessions, which are sorted by their beginning.

Version 1 is that of stormdrop 0.1 and 0.2. Programs of these versions that have the database open may go on: they write
sessions without this time.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, String


def upgrade() -> None:
    """Adds the column and the index."""
    op.add_column("stormdrop_session", Column("written", String(40)))
    op.create_index("stormdrop_session_created", "stormdrop_session", ["created"])
