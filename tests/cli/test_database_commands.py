"""`stormdrop db` as a user or another tool meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import document, output_of

from stormdrop import records

pytestmark = pytest.mark.compiles


def test_db(database: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (session, *_) = document(capfd, "db", "list", "--db", database)["sessions"]
    assert session["workload_name"].startswith("matmul m=32 n=32 k=32")
    assert session["state"] == "finished"
    exported = document(capfd, "db", "export", tmp_path / "all.jsonl", "--db", database)
    assert exported["sessions"] >= 1
    first = document(capfd, "db", "import", tmp_path / "all.jsonl", "--db", tmp_path / "other.db")
    second = document(capfd, "db", "merge", database, "--db", tmp_path / "other.db")
    assert first["added"] == exported["sessions"] == second["known"]
    assert second["added"] == 0
    assert "matmul m=32 n=32 k=32" in output_of(capfd, "db", "list", "--db", tmp_path / "other.db")
    records.open_store(tmp_path / "new.db").close()
    assert output_of(capfd, "db", "list", "--db", tmp_path / "new.db").strip() == "nothing was tuned yet"
    monkeypatch.setattr("stormdrop.records.default_path", lambda: tmp_path / "none.db")
    assert document(capfd, "db", "list") == {"sessions": []}
    monkeypatch.setenv("STORMDROP_DB", str(tmp_path / "other.db"))
    assert len(document(capfd, "db", "list")["sessions"]) == exported["sessions"]
    assert document(capfd, "db", "list", "--db", tmp_path / "new.db") == {"sessions": []}


def test_a_kernel_of_a_model_is_called_after_its_layers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = {"name": "net", "calls": 1, "layers": ["features.4.conv", "features.4.relu"]}
    with records.open_store(tmp_path / "records.db") as store:
        for name, method in (("fused_conv2d", {"model": model}), ("matmul m=8", {})):
            setting = records.Setting("storm", 0, {"tiled": "f"}, {}, method)
            store.open(records.Problem("5f", name, name, "llvm", "a CPU"), setting)
    operator, kernel = output_of(capfd, "db", "list", "--db", tmp_path / "records.db").splitlines()[1:]
    assert kernel.startswith("features.4: conv, relu ") and kernel.endswith(" fused_conv2d")
    assert operator.startswith("matmul m=8 ") and operator.endswith(" -")
    listed = document(capfd, "db", "list", "--db", tmp_path / "records.db")["sessions"]
    assert [session["layers"] for session in listed] == [[], model["layers"]]
