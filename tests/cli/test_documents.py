"""The JSON documents of the commands hold what docs/reference/documents.md describes."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import SMALL, document, sections_of_guide

pytestmark = pytest.mark.compiles


def test_every_key_of_the_documents_is_described(
    artifact: Path, database: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sections = sections_of_guide()
    sections["tune"] += sections["tune-op"]  # "as above"
    sections["compile"] += sections["tune"]
    records = artifact.with_name("records.db")
    tuned = document(
        capfd, "tune", artifact.with_name("small.onnx"), "--trials", 8, "--out", tmp_path / "m.sd", "--db", records
    )
    compiled = document(capfd, "compile", artifact.with_name("small.onnx"), "--out", tmp_path / "c.sd", "--db", records)
    assert compiled["recorded"] and compiled["kernels"] == len(tuned["tasks"])
    operator = document(
        capfd, "tune-op", *SMALL, "--db", database, "--trials", 12, "--show", "schedule", "--show", "tir"
    )
    listed = document(capfd, "db", "list", "--db", database)
    ran = document(capfd, "run", artifact, "--profile")
    documents = {
        "tune-op": [operator, operator["best"]],
        "tune": [tuned, tuned["verified"], tuned["phases"], *tuned["tasks"]],
        "compile": [compiled, compiled["verified"], compiled["phases"]],
        "run": [ran, *ran["outputs"].values(), ran["profile"], *ran["profile"]["kernels"], ran["profile"]["limits"]],
        "doctor": [document(capfd, "doctor")],
        "db": [listed, *listed["sessions"]],
    }
    for name, parts in documents.items():
        missing = {key for part in parts for key in part if f"`{key}`" not in sections[name]}
        assert not missing, f"{name}: {missing}"
