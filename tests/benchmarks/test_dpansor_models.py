"""The experiment of the DPAnsor paper on models: it goes on where a call has ended, and its means add up."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
CPU = SimpleNamespace(device="cpu")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    for folder in (FOLDER, FOLDER / "models"):
        monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("dpansor")
    monkeypatch.setattr(importlib.import_module("_slices"), "OUT", tmp_path)
    monkeypatch.setattr(module, "_FOLDER", tmp_path / "models")
    return module


def test_the_models_are_the_twenty_of_the_paper(script: ModuleType) -> None:
    assert len(script.NAMES) == 20
    assert {"squeezenet", "vgg16", "densenet201", "resnet152"} < set(script.NAMES)


def test_a_call_goes_on_where_the_last_one_has_ended(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first call ends in the second run. The seconds of a run are those of all calls."""
    asked: list[str] = []

    def tune(model: str, run: str, *_: Any) -> dict[str, Any]:
        asked.append(run)
        if asked == ["evolutionary", "N=1"]:
            raise script.SliceOver
        (tmp_path / "models" / "cpu" / model / run).mkdir(parents=True)
        return _figures(10.0, 8)

    monkeypatch.setattr(script, "tune", tune)
    monkeypatch.setattr(script.sd, "load", lambda _: SimpleNamespace(inputs=()))
    monkeypatch.setattr(script, "random_feeds", lambda *_: {})
    monkeypatch.setattr(script, "race", lambda specs, *_: {spec.name: {"speed": 1.0} for spec in specs})
    options = argparse.Namespace(
        target="cpu", trials=100, features="knobs", N=[1], exploiters=False, fresh=False, seed=0, rounds=3, file=None
    )
    setting = {"trials": 100, "cpu": "A CPU"}
    for finished in (False, True):
        campaign = script.Campaign(tmp_path / "kept.jsonl")
        experiment = script._recorded(campaign, setting).get("vgg16") or script.Experiment("vgg16")
        with script.Slice(minutes=5) as slice_:
            script.complete(campaign, experiment, setting, options, CPU, slice_)
        assert slice_.finished == finished
    assert asked == ["evolutionary", "N=1", "N=1"]
    (part,) = [entry["part"] for entry in campaign.entries if "part" in entry]
    experiment = script._recorded(script.Campaign(tmp_path / "kept.jsonl"), setting)["vgg16"]
    assert experiment.runs["N=1"]["seconds"] == 10.0 + part
    assert set(experiment.race) == {"evolutionary", "N=1"}


def test_means_are_those_of_all_models(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    experiments = []
    for speed, exploited in ((1.0, 10), (4.0, 50)):
        runs = {"evolutionary": _figures(40.0, 0), "N=100": _figures(10.0, exploited)}
        race = {"evolutionary": {"speed": 1.0}, "N=100": {"speed": speed}}
        experiments.append(script.Experiment("model", runs, race))
    script.show_means(experiments)
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("100")]
    assert row == ["100", "2", "2.000", "4.00", "30", "15.0"]


def _figures(seconds: float, exploited: int) -> dict[str, Any]:
    return {"seconds": seconds, "exploited": exploited, "layers": [{"name": "a"}, {"name": "b"}]}
