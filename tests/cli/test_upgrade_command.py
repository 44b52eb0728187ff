"""`stormdrop db upgrade` as a user meets it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from command_line import complaint, document, output_of

from stormdrop.records.sql.schema import VERSION

OLD = Path(__file__).parents[1] / "records" / "version_0_1" / "sqlite.sql"


def test_db_upgrade(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(OLD.read_text())
    assert f"stormdrop db upgrade --db {path}" in complaint(capfd, "db", "list", "--db", path)
    assert document(capfd, "db", "upgrade", "--db", path) == {"found": 1, "version": VERSION}
    assert output_of(capfd, "db", "upgrade", "--db", path).strip() == f"it is up to date (version {VERSION})"
    newest, oldest = document(capfd, "db", "list", "--db", path)["sessions"]
    assert (newest["state"], oldest["state"], oldest["trials"]) == ("interrupted", "finished", 3)
    assert "does not exist" in complaint(capfd, "db", "upgrade", "--db", tmp_path / "none.db")
