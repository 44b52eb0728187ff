"""Logs of TVM's tuners as recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stormdrop.compare import recordings
from stormdrop.errors import SpaceFileError
from stormdrop.search import create
from stormdrop.trial import Status

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def ansor(factors: list[int], unroll: int, seconds: float, error: int = 0, workload: str = "matmul") -> dict[str, Any]:
    steps = [["CHW", 2, "local"], ["SP", 2, 0, 16, factors, 1], ["PR", 4, 0, f"auto_unroll_max_step${unroll}"]]
    program = [[json.dumps([workload, 16, 16]), "llvm", [], "", 0, []], [[], steps]]
    return {"i": program, "r": [[seconds], error, 1.5, 1710092205], "v": "v0.6"}


def autotvm(tile: list[int], order: list[int], seconds: float) -> dict[str, Any]:
    entity = [["tile_x", "sp", tile], ["order", "re", order], ["unroll", "ot", 16]]
    return {
        "input": ["llvm", "dense.x86", [["TENSOR", [4, 8], "float32"]], {}],
        "config": {"index": 1, "code_hash": None, "entity": entity},
        "result": [[seconds, seconds], 0, 1.0, 1.0],
        "version": 0.2,
    }


def meta_schedule(workload: int, tile: list[int], choice: int, seconds: list[float] | None) -> list[Any]:
    instructions = [
        ["GetBlock", [], ["C", "main"], ["b0"]],
        ["SamplePerfectTile", ["l1"], [2, 64], ["v1", "v2"]],
        ["SampleCategorical", [], [[0, 16, 64], [0.5, 0.25, 0.25]], ["v3"]],
        ["EnterPostproc", [], [], []],
        ["Annotate", ["b0", str(tile)], ["what postprocessors did"], []],
    ]
    return [workload, [[instructions, [[1, tile], [2, choice]]], seconds, {"kind": "llvm"}, []]]


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_ansor(tmp_path: Path) -> None:
    lines = [ansor([1, 4], 0, 2e-3), ansor([2, 2], 512, 1e-3), ansor([2, 4], 512, 1e10, error=4)]
    recording = recordings.load(written(tmp_path / "ansor.log", lines))
    (space,) = recording.spaces
    assert (recording.name, space.name) == ("matmul 16 16", "ansor.0")
    assert {knob.name for knob in space.knobs} >= {"unroll2", "split1_1"}
    assert recording.optimum_seconds == 1e-3
    assert [entry.status for entry in recording.recorded.values()].count(Status.RUNTIME) == 1


def test_autotvm(tmp_path: Path) -> None:
    lines = [autotvm([-1, 4], [0, 1], 3e-3), autotvm([-1, 8], [1, 0], 2e-3)]
    recording = recordings.load(written(tmp_path / "autotvm.log", lines))
    assert recording.name == "dense.x86 TENSOR 4 8 float32"
    (space,) = recording.spaces
    assert space.config(recording.optimum.point) == {"tile_x_1": 8, "order": "[1, 0]", "unroll": 16}


def test_meta_schedule_holds_several_workloads(tmp_path: Path) -> None:
    lines = [
        meta_schedule(0, [4, 2], 1, [2e-3, 4e-3]),
        meta_schedule(0, [2, 4], 0, [1e10]),
        meta_schedule(1, [1, 8], 2, [5e-3]),
        meta_schedule(1, [1, 8], 2, None),
    ]
    path = written(tmp_path / "database_tuning_record.json", lines)
    recording = recordings.load(f"{path}#workload 0")
    (space,) = recording.spaces
    assert space.config(recording.optimum.point) == {"tile0_1": 2, "choice0": 16}
    assert recording.optimum_seconds == 3e-3
    assert len(recording.recorded) == 2
    with pytest.raises(SpaceFileError, match="holds several workloads: workload 0; workload 1"):
        recordings.load(path)
    with pytest.raises(SpaceFileError, match="no workload 'workload 7'; did you mean"):
        recordings.load(f"{path}#workload 7")
    with pytest.raises(SpaceFileError, match="none of its 1 candidates worked"):
        recordings.load(f"{path}#workload 1")


@pytest.mark.parametrize(
    "line",
    [
        '{"i": [["[]"]], "r": 3}',
        '{"input": []}',
        "[0, [[[[]]]]]",
        '{"i": [[5, 1], [[], [["SP"]]]], "r": [[1.0], 0, 1]}',
    ],
)
def test_malformed_logs_are_one_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.log"
    path.write_text(line + "\n")
    with pytest.raises(SpaceFileError, match="line 1 is no program of") as caught:
        recordings.load(path)
    assert "\n" not in str(caught.value)


def test_a_real_log_is_a_ground_for_searches() -> None:
    path = DATA / "ansor" / "a100_matmul_16_1024_1024.log.gz"
    if not path.exists():
        pytest.skip(f"there is no recorded log {path.name}")
    recording = recordings.load(path)
    assert recording.name == "matmul_layer 16 1024 1024"
    assert len(recording.recorded) > 900
    assert 1e-6 < recording.optimum_seconds < 3e-5
    import numpy as np

    search = create("random", recording.spaces, np.random.default_rng(0))
    assert all(request.candidate in recording.recorded for request in search.ask(8))
