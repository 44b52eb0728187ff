"""The calls of scripts that measure in slices: they end in time, and the next one goes on with what is left."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import stormdrop as sd
from stormdrop.errors import TargetError

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("_slices")


def test_what_is_begun_after_the_end_is_left_to_the_next_call(
    slices: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    done = []
    with slices.Slice(minutes=1) as slice_:
        slice_.check()
        slice_.progress(None)
        done.append(slice_.whole(SimpleNamespace(interrupted=False)))
    assert done and slice_.finished
    with slices.Slice(minutes=0) as slice_:
        slice_.check()
        done.append(None)
    assert len(done) == 1 and not slice_.finished
    assert "call it again to go on" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        slice_.progress(None)  # as Ctrl-C, so that a tuning keeps what it has
    with slices.Slice(minutes=1) as slice_:
        slice_.whole(SimpleNamespace(interrupted=True))
    assert not slice_.finished


def test_other_errors_are_not_taken_for_the_end(slices: ModuleType) -> None:
    with pytest.raises(ValueError, match="a fault"), slices.Slice(minutes=1):
        raise ValueError("a fault")


def test_a_tuning_goes_on_with_the_time_that_earlier_calls_have_left(
    slices: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call is over after a batch, the second one finishes; a tuning that is finished leaves no database."""
    given = []

    def tune(_: object, *, time: float, store: Any, resume: bool, on_progress: object) -> SimpleNamespace:
        given.append(time)
        space = sd.Space("numbers", [sd.Ordinal("x", [1, 2, 3])])
        trials = 1 if len(given) == 1 else None
        sd.minimize(space, lambda config: config["x"], search="grid", trials=trials, store=store, name="x")
        return SimpleNamespace(interrupted=len(given) == 1, seconds=5.0)

    monkeypatch.setattr(slices, "OUT", tmp_path)
    monkeypatch.setattr(slices, "tune", tune)
    with slices.Slice(minutes=1) as slice_:
        slices.tuned(slice_, "a: b", sd.operators.matmul(4, 4, 4), seconds=60.0)
    assert not slice_.finished and given == [60.0]
    assert [file.name for file in (tmp_path / "tunings").glob("*.db")] == ["a__b.db"]
    tuning = slices.tuned(slice_, "a: b", sd.operators.matmul(4, 4, 4), seconds=60.0)
    assert given[1] < 60.0 and tuning.seconds == pytest.approx(60.0 - given[1] + 5.0)
    assert {trial.config["x"] for trial in tuning.trials} == {1, 2, 3}
    assert not list((tmp_path / "tunings").glob("*.db"))


def test_without_the_device_there_is_one_line(slices: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse_machine(name: str) -> object:
        raise TargetError(f"target {name}: there is no NVIDIA GPU here")

    assert slices.target_here("cpu").device == "cpu"
    monkeypatch.setattr(slices, "parse_machine", parse_machine)
    with pytest.raises(SystemExit, match="there is no NVIDIA GPU here"):
        slices.target_here("cuda")


def test_a_campaign_of_each_kind_of_device_has_a_file(slices: ModuleType) -> None:
    names = [slices.kept_in("autotvm", name) for name in ("cpu", "cuda", "cuda/a100", "opencl/0")]
    assert [f"{file.parent.name}/{file.name}" for file in names] == [
        "recorded/autotvm.jsonl",
        "out/autotvm_cuda.jsonl",
        "out/autotvm_cuda.jsonl",
        "out/autotvm_opencl.jsonl",
    ]
