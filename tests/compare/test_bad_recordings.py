"""Recordings of somebody else: a small file does not cost much memory or time."""

from __future__ import annotations

import gzip
import io
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from stormdrop.compare import recordings
from stormdrop.errors import SpaceFileError
from stormdrop.records import Problem, Setting, State, StoredSession, StoredTrial, write_lines
from stormdrop.space import Space, Tile
from stormdrop.trial import Measurement, Status


def records_with(path: Path, **knob: Any) -> Path:
    """Records of one trial whose session describes its space by one knob, with these entries changed."""
    space = Space("s", [Tile("t", 24, 2)])
    description = space.describe()
    description["knobs"][0].update(knob)
    problem = Problem("ab" * 32, "def main", "matmul m=8", "llvm", "a CPU, 2 cores")
    setting = Setting("grid", 0, {"s": "1"}, method={"spaces": {"s": description}})
    session = StoredSession(str(uuid.UUID(int=1)), problem, setting, "2025-01-01T00:00:00.000000+00:00", State.FINISHED)
    trial = StoredTrial(0, 0, "s", "1", space.config(space.origin), Measurement(Status.OK, (1.0,)))
    out = io.BytesIO()
    write_lines([(session, [trial])], out)
    path.write_bytes(out.getvalue())
    return path


@pytest.mark.parametrize("name", ["bomb.json", "bomb.json.gz", "bomb.jsonl.gz"])
def test_a_small_file_that_decompresses_to_a_large_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b" " * (64 << 20)))
    with pytest.raises(SpaceFileError, match="decompresses to more than"):
        recordings.load(tmp_path / name)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("knob", [{"extent": (1 << 61) - 1}, {"levels": 1 << 40}, {"levels": 10**6}])
def test_a_knob_that_takes_too_long_to_make(tmp_path: Path, knob: dict[str, int]) -> None:
    with pytest.raises(SpaceFileError, match="at most") as raised:
        recordings.load(records_with(tmp_path / "r.jsonl", **knob))
    assert "\n" not in str(raised.value)


def test_without_a_change_the_records_are_read(tmp_path: Path) -> None:
    assert recordings.load(records_with(tmp_path / "r.jsonl")).optimum_seconds == 1.0


@pytest.mark.parametrize("text", ["\n", "\x1b[2J", "w" * 100_000])
def test_text_of_the_file_stays_one_short_line(tmp_path: Path, text: str) -> None:
    caches: list[dict[str, Any]] = [
        {"tune_params_keys": ["x"], "tune_params": {"x": [1]}, "cache": {text: {"x": text, "time": 1.0}}},
        {"tune_params_keys": [text], "tune_params": {text: [None]}, "cache": {"1": {}}},
    ]
    files = [records_with(tmp_path / "r.jsonl", **{text: 1})]
    for number, cache in enumerate(caches):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps(cache))
    for file in files:
        with pytest.raises(SpaceFileError) as raised:
            recordings.load(file)
        assert str(raised.value).isprintable() and len(str(raised.value)) < 1000


@pytest.mark.parametrize("knob", [7, "text", [], None])
def test_a_knob_that_is_no_object(tmp_path: Path, knob: Any) -> None:
    path = records_with(tmp_path / "r.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[2]["session"]["method"]["spaces"]["s"]["knobs"] = [knob]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SpaceFileError, match="make no space"):
        recordings.load(path)
