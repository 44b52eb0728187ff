"""The experiment of the AF-DS paper on a GPU: its arms are those of the paper, and its figures add up."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import stormdrop as sd

FOLDER = Path(__file__).parents[2] / "benchmarks"


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


def test_the_arms_are_those_of_the_paper(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def tune(workload: Any, **options: Any) -> SimpleNamespace:
        asked.append({"workload": workload.name, **options})
        return SimpleNamespace(best=None, error="nothing is tuned here")

    monkeypatch.setattr(script.sd, "tune", tune)
    monkeypatch.setattr(script, "tunable", lambda workload: workload)
    monkeypatch.setattr(
        script._metaschedule_peer, "tune", lambda *_, **__: SimpleNamespace(functions=[SimpleNamespace(trace=None)])
    )
    monkeypatch.setattr(script, "race", lambda *_: {})
    options = argparse.Namespace(minutes=[1.0, 2.0], trials=1000, runs=3)
    entry = script.measure("R2", sd.parse_machine("cuda/a100"), options, math.inf)

    arms = {label.partition(" #")[0] for label in entry["efforts"]}
    systems = {"Ansor", "Ansor-AF", "Ansor-DS", "Ansor-AF-DS"}
    bounds = {"1 min", "2 min", "1000 trials"}
    assert {f"{system}, {bound}" for system in systems for bound in bounds} < arms
    assert arms - {f"{system}, {bound}" for system in systems for bound in bounds} == {
        "ROLLER's best 50",
        "storm",
        "MetaSchedule",
    }
    assert len(entry["efforts"]) == 3 * len(arms)
    assert all("bias" not in each["workload"] for each in asked)
    printed = [each for each in asked if each["options"] == {"preset": "paper"}]
    assert {(each["search"], each["features"]) for each in printed} == {
        ("evolutionary", "statements"),
        ("evolutionary", "analytic"),
        ("gradient", "statements"),
        ("gradient", "analytic"),
    }
    assert {(each["time"], each["trials"]) for each in printed} == {(60, None), (120, None), (None, 1000)}


def test_speeds_are_means_of_runs_over_torch_and_ansor(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "bars", lambda *_: "no picture")
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
    script.show_curves({"M0": {"efforts": efforts}})
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["M0"]]
    nothing, one, both = "0.00 0.00 0.00", "0.25 0.38 0.50", "0.50 0.75 1.00"
    assert " ".join(row.split()[1:]) == f"Ansor {nothing} {one} {one} {both} {both}"
