"""The experiment of the AF-DS paper on a GPU: its arms are those of the paper, and its figures add up."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stormdrop.trial import Measurement, Status

FOLDER = Path(__file__).parents[2] / "benchmarks"
OPTIONS = argparse.Namespace(budgets=[1.0, 2.0], trials=1000, runs=3, fresh=False)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for folder in (FOLDER, FOLDER / "kernels", FOLDER / "gpu"):
        monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("gpu_run", FOLDER / "gpu" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_run", module)
    spec.loader.exec_module(module)
    return module


def test_the_arms_are_those_of_the_paper(script: ModuleType) -> None:
    arms = script.arms(OPTIONS, "cuda")
    systems = {"Ansor", "Ansor-AF", "Ansor-DS", "Ansor-AF-DS"}
    bounds = {"1 min", "2 min", "1000 trials"}
    of_the_paper = {f"{system}, {bound}" for system in systems for bound in bounds}
    others = ["ROLLER's best 50", "storm, 2 min", "MetaSchedule, 2 min"]
    assert list(arms)[len(of_the_paper) :] == others and set(arms) == {*of_the_paper, *others}
    printed = [arms[name] for name in of_the_paper]
    assert {(arm.search, arm.features) for arm in printed} == {
        ("evolutionary", "statements"),
        ("evolutionary", "analytic"),
        ("gradient", "statements"),
        ("gradient", "analytic"),
    }
    assert {(arm.minutes, arm.trials) for arm in printed} == {(1.0, 0), (2.0, 0), (0.0, 1000)}
    assert all(arm.options == {"preset": "paper"} for arm in printed)
    assert list(script.arms(OPTIONS, "opencl")) == list(arms)[:-1]


def test_every_tuning_is_kept_and_the_next_call_goes_on(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first call ends at the third tuning. One tuning fails, which is an entry, too."""
    asked: list[str] = []
    best = SimpleNamespace(sketch="gpu_contraction", config={})
    measured = [
        SimpleNamespace(batch=batch, position=position, elapsed=1.0 + position, measurement=measurement)
        for position, (batch, measurement) in enumerate(
            [(0, _measurement(4.0)), (0, Measurement(Status.RUNTIME)), (1, _measurement(6.0)), (1, _measurement(2.0))]
        )
    ]

    def tuned(_: Any, name: str, workload: Any, **how: Any) -> SimpleNamespace:
        asked.append(name.split(", NVIDIA")[0])
        assert "bias" not in workload.name and not how["transfer"]
        if len(asked) == 3:
            raise script.SliceOver
        result = SimpleNamespace(best=None if len(asked) == 2 else best, error="nothing works", trials=4)
        return SimpleNamespace(result=result, seconds=9.0, trials=measured)

    monkeypatch.setattr(script, "tuned", tuned)
    monkeypatch.setattr(script, "scheduled", lambda *_, **schedule: schedule)
    monkeypatch.setattr(script, "replay", lambda _, trace: SimpleNamespace(main=trace))
    functions = [SimpleNamespace(trace=["a trace"])]
    peer = SimpleNamespace(functions=functions, seconds=60.0, measured=64)
    monkeypatch.setattr(script._metaschedule_peer, "tune", lambda *_, **__: peer)
    monkeypatch.setattr(script, "race", lambda _, functions, target: {name: [1.0] for name in functions})
    target = SimpleNamespace(device="cuda", machine="NVIDIA A100")
    for finished in (False, True):
        campaign = script.Campaign(tmp_path / "kept.jsonl", retries=True)
        with script.Slice(minutes=5) as slice_:
            entry = script.measure("R2", target, OPTIONS, campaign, slice_)
        assert slice_.finished == finished
    arms = list(script.arms(OPTIONS, "cuda"))
    assert asked[:4] == [f"R2: {arms[0]}, run {run}" for run in (1, 2, 3, 3)]
    assert len(asked) == 3 * 14 + 1
    efforts = entry["efforts"]
    assert efforts[f"{arms[0]} #0"] == {"seconds": 9.0, "trials": 4, "curve": [[2, 2.0, 4.0], [4, 4.0, 2.0]]}
    assert efforts[f"{arms[0]} #1"] == {"failed": "StormdropError: no candidate of evolutionary worked: nothing works"}
    assert efforts["MetaSchedule, 2 min #2"] == {"seconds": 60.0, "trials": 64}
    assert set(entry["times"]) == set(efforts) - {f"{arms[0]} #1"}


def test_speeds_are_means_of_runs_over_torch_and_ansor(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("gpu._table_1_figures"), "bars", lambda *_: "no picture")
    efforts = {f"{kind} #{run}": {"seconds": 60.0, "trials": 100} for kind in ("Ansor", "DS") for run in range(2)}
    times = {"torch": [1.0] * 9, "Ansor #0": [1.0] * 9, "Ansor #1": [1.0] * 9, "DS #0": [0.5] * 9, "DS #1": [0.25] * 9}
    script.show("gpu", {"M0": {"efforts": efforts, "times": times}}, "Ansor")
    lines = capsys.readouterr().out.splitlines()
    # Speeds of 2 and 4, whose mean is 3; they differ by half of the faster one.
    assert any(line.split()[:1] == ["DS"] and "3.000 / 3.000, 50.0%" in line for line in lines)
    assert any(line.split()[:1] == ["Ansor"] and "1.000 / 1.000, 0.0%" in line for line in lines)


def test_runs_are_compared_by_trials(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    efforts = {
        "Ansor #0": {"curve": [[60, 1.0, None], [100, 2.0, 4.0], [300, 3.0, 1.0]]},
        "Ansor #1": {"curve": [[100, 2.0, 2.0]]},
        "MetaSchedule #0": {"seconds": 1.0},
    }
    importlib.import_module("gpu._table_1_figures").show_curves({"M0": {"efforts": efforts}})
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["M0"]]
    nothing, one, both = "0.00 0.00 0.00", "0.25 0.38 0.50", "0.50 0.75 1.00"
    assert " ".join(row.split()[1:]) == f"Ansor {nothing} {one} {one} {both} {both}"


def _measurement(seconds: float) -> Measurement:
    return Measurement(Status.OK, (seconds,))
