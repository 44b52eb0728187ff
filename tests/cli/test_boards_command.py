"""`--tracker` and `--runner` of the commands that tune, with a rack of two boards on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import SMALL, complaint, document, output_of

from stand_ins.rack import Rack

pytestmark = pytest.mark.compiles


def test_an_operator_is_tuned_on_a_rack(rack: Rack, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--target", "cpu/x86-64-v3", "--tracker", rack.tracker, "--device", "board", "--db", tmp_path / "r.db"]
    tuned = document(capfd, "tune-op", *SMALL, *words, "--trials", 8, "--search", "random")
    assert (tuned["trials"], tuned["failed"]) == (8, 0)
    assert tuned["target"].startswith(f"x86-64 with AVX2 at {rack.address}, ")
    assert tuned["best"]["seconds"] > 0
    (session,) = document(capfd, "db", "list", "--db", tmp_path / "r.db")["sessions"]
    assert (session["machine"], session["trials"]) == (tuned["target"], 8)


def test_a_model_is_tuned_on_a_rack(
    rack: Rack, artifact: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, out = artifact.with_name("small.onnx"), tmp_path / "board.sd"
    words = ["--target", "cpu/x86-64-v3", "--tracker", rack.tracker, "--device", "board", "--db", tmp_path / "r.db"]
    shown = output_of(capfd, "tune", model, *words, "--trials", 6, "--out", out)
    assert f"at {rack.address}: the kernels were not timed inside the model" in shown
    assert json.loads((out / "metadata.json").read_text())["target"]["mcpu"] == "x86-64-v3"
    assert document(capfd, "run", out)["outputs"]["y"]["shape"] == [1, 16, 1, 1]
    again = document(capfd, "tune", model, *words, "--trials", 6, "--out", out)
    assert again["reused"] > 0, "the records are those of the rack"
    assert again["left_out"]


def test_a_place_that_does_not_answer_is_one_line(
    rack: Rack, artifact: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = ["tune", artifact.with_name("small.onnx"), "--trials", 1, "--out", tmp_path / "m.sd", "--db", "sqlite://"]
    for command in (model, ["tune-op", *SMALL]):
        assert "runner 127.0.0.1:1: no TVM RPC server answers" in complaint(capfd, *command, "--runner", "127.0.0.1:1")
        gone = complaint(capfd, *command, "--tracker", "127.0.0.1:1", "--device", "board")
        assert gone.startswith("tracker 127.0.0.1:1: no TVM RPC tracker answers")
        wrong = complaint(capfd, *command, "--tracker", rack.tracker, "--device", "bord")
        assert "it has no board of the key 'bord'; did you mean 'board'?" in wrong
    native = complaint(capfd, *model, "--native", "--tracker", rack.tracker, "--device", "board")
    assert native.startswith("a native model is linked on the machine that it is for")
