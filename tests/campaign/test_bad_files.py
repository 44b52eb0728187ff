from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from bad_files import KINDS, Reader, attempt, damaged, run

from stormdrop.errors import SpaceFileError


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_read_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    outcomes = run(tmp_path, kind, 40, seed=7)
    assert sum(outcomes.values()) == 40
    assert set(outcomes) <= {"read", "refused"}, "see the results in the folder of the test"
    assert outcomes["refused"] > 0
    assert outcomes["read"] > 0 or kind == "records", "almost every change of a record is noticed"


def test_a_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", "space", 12)
    results, current = tmp_path / "cut" / "space-0.jsonl", tmp_path / "cut" / "space-0.current"
    run(tmp_path / "cut", "space", 5)
    results.write_bytes(results.read_bytes()[:-9])  # a line is cut off, as by a power failure
    assert run(tmp_path / "cut", "space", 12) == whole
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert sorted(line["number"] for line in lines) == list(range(12))
    current.write_text("12")  # the process ended while it read this file
    assert run(tmp_path / "cut", "space", 13)["finding"] == 1


def test_the_same_number_is_the_same_file() -> None:
    for kind in KINDS:
        first = damaged(kind, 3, 5)
        assert damaged(kind, 3, 6) != first
        for number in range(200 if kind != "onnx" else 20):
            damaged(kind, 3, number)
        assert damaged(kind, 3, 5) == first, "a file does not depend on those before it"


def test_damage_leaves_a_document_finite() -> None:
    """File 516 once held itself: an empty list was shared by several places, and by all files."""
    for number in range(500, 560):
        assert len(damaged("space", 1, number)[0]) < 10_000_000


def test_what_is_wrong_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: object) -> None:
        raise KeyError("x")

    def refuse(file: object) -> None:
        raise SpaceFileError("two\nlines")

    assert attempt(fail, "")[:2] == ("finding", "KeyError")
    reader = Reader()
    monkeypatch.setattr(reader, "_loaded", lambda file: attempt(refuse, file))
    assert reader.read(tmp_path / "f.json")["outcome"] == "finding"
    reader.close()


def test_a_reader_that_hangs_or_crashes_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text("{}")
    impatient = Reader(seconds=0.01)
    result = impatient.read(tmp_path / "f.json")
    assert (result["outcome"], result["error"]) == ("finding", "hang")
    reader = Reader()
    assert reader.read(tmp_path / "f.json")["outcome"] == "refused"
    assert reader._child is not None
    os.kill(reader._child.pid, signal.SIGSEGV)
    result = reader.read(tmp_path / "f.json")
    assert (result["outcome"], result["error"]) == ("finding", "crash") and "SIGSEGV" in result["message"]
    assert reader.read(tmp_path / "f.json")["outcome"] == "refused", "another child takes its place"
    reader.close()
