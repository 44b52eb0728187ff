"""Files in the format T4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stormdrop.compare import recordings
from stormdrop.compare.kernel_tuner_writer import write_cache, write_t4
from stormdrop.errors import SpaceFileError
from stormdrop.measure.replay import Recorded, Recording
from stormdrop.space import Categorical, Ordinal, Space, Tile
from stormdrop.trial import Candidate, Phases, Status


def recording() -> Recording:
    space = Space("matmul", [Ordinal("block", [16, 32]), Categorical("order", ["ij", "ji"]), Tile("tile", 4, 2)])
    recorded: dict[Candidate, Recorded] = {}
    for number, point in enumerate(space.points()):
        seconds = (1e-3 * (1 + number), 1.1e-3 * (1 + number))
        recorded[Candidate("matmul", point)] = Recorded(seconds, phases=Phases(build=0.5, run=0.25, check=0.125))
    failed = Candidate("matmul", space.origin)
    recorded[failed] = Recorded((), Status.COMPILE_DEVICE, "too many registers")
    return Recording("matmul", (space,), recorded)


@pytest.mark.parametrize("write", [write_cache, write_t4])
def test_what_is_written_is_read_again(tmp_path: Path, write: Any) -> None:
    before = recording()
    write(before, tmp_path / "matmul.json")
    after = recordings.load(tmp_path / "matmul.json")
    assert after.optimum_seconds == pytest.approx(before.optimum_seconds)
    assert [knob.name for knob in after.spaces[0].knobs] == ["block", "order", "tile_0", "tile_1"]
    assert len(after.recorded) == len(before.recorded)
    statuses = [entry.status for entry in after.recorded.values()]
    assert statuses.count(Status.COMPILE_DEVICE) == 1
    assert after.recorded[after.optimum].phases.build == pytest.approx(0.5)


def result(**changes: Any) -> dict[str, Any]:
    good = {"configuration": {"x": 1}, "times": {"runtimes": [2.0]}, "invalidity": "correct", "correctness": 1}
    return {**good, **changes}


def test_units_constraints_and_measurements_are_understood(tmp_path: Path) -> None:
    measured = [{"name": "time", "value": 3.0, "unit": "ms"}]
    results = [
        result(),
        result(configuration={"x": 2}, invalidity="constraints"),
        result(configuration={"x": 3}, times={}, measurements=measured),
    ]
    path = tmp_path / "t4.json"
    path.write_text(json.dumps({"results": results, "metadata": {"timeunit": "microseconds"}}))
    seconds = [entry.seconds for entry in recordings.load(path).recorded.values()]
    assert [value for (value,) in seconds] == pytest.approx([2e-6, 3e-3])


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"results": []}, "no list, or an empty one"),
        ({"results": [{}]}, "result 0 has no 'configuration'"),
        ({"results": [result(times=None)]}, "result 0 has no 'times'"),
        ({"results": [result(invalidity="strange")]}, "'invalidity' 'strange' is unknown"),
        ({"results": [result(times={})]}, "neither 'runtimes' nor a measurement"),
        ({"results": [result(times={"runtimes": ["fast"]})]}, "no numbers"),
        ({"results": [result(), result(configuration={"y": 1})]}, "other parameters"),
        ({"results": [result(configuration={"x": [1]})]}, "neither a number nor text"),
        ({"results": [result()], "metadata": {"timeunit": "hours"}}, "'timeunit' 'hours' is unknown"),
    ],
)
def test_malformed_files_are_one_line(tmp_path: Path, document: Any, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(SpaceFileError, match=message):
        recordings.load(path)
