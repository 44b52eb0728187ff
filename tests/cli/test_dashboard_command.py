"""`stormdrop dashboard` as a user meets it, up to where it listens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from command_line import complaint

from stormdrop.records import open_store


def test_what_it_does_not_begin_with(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records.db"
    open_store(path).close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = complaint(capfd, "dashboard", "--db", path, "--port", port)
        assert said == f"127.0.0.1:{port} cannot be listened on: Address already in use"
    assert "cannot be listened on" in complaint(capfd, "dashboard", "--db", path, "--host", "203.0.113.1")
    assert "--port" in complaint(capfd, "dashboard", "--port", 99999)
    monkeypatch.setenv("STORMDROP_DASHBOARD_TOKEN", "short")
    assert "at least 12" in complaint(capfd, "dashboard", "--db", path)
