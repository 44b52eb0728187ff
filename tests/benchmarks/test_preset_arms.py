"""The benchmark of presets: its arms can be made, and an interrupted file of runs goes on."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.compare.search_spec import parse_searches
from stormdrop.space import Ordinal, Space

FOLDER = Path(__file__).parents[2] / "benchmarks" / "searches"
HOST = {"cpu": "A CPU", "cores": 2, "versions": {}}


@pytest.fixture
def arms(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("presets")


def test_every_arm_is_a_search(arms: ModuleType) -> None:
    space = Space("line", [Ordinal("x", range(9))])
    for name, of_search in arms.ARMS.items():
        for search in parse_searches(of_search):
            assert search.name == name
            assert search.create([space], 0).ask(4)


def test_runs_are_kept_and_not_repeated(
    arms: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the last line was cut off by a kill."""
    monkeypatch.setattr(arms.recordings, "load", lambda file: arms_recording())
    path = tmp_path / "runs.jsonl"
    arms.recorded(arms.Campaign(path), ["grid", "random"], 2, [tmp_path])
    whole = path.read_text()
    runs = arms.Campaign(path).entries
    assert [(run["arm"], run["seed"]) for run in runs] == [("grid", 0), ("random", 0), ("grid", 1), ("random", 1)]
    path.write_text(whole[:-20])
    assert len(arms.Campaign(path).entries) == 3
    arms.recorded(arms.Campaign(path), ["grid", "random"], 2, [tmp_path])
    assert path.read_text() == whole
    arms.show_recorded(arms.Campaign(path).entries)
    assert "1.000" in capsys.readouterr().out
    assert all(json.loads(line)["ratios"]["200"] == 1.0 for line in whole.splitlines())


@pytest.mark.compiles
def test_live_runs_are_kept_raced_and_not_repeated(
    arms: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a real kernel. Arms take turns by seed, and a run that a kill has cut off is repeated."""
    monkeypatch.setattr(arms, "KERNELS", {"matmul": sd.operators.matmul(16, 16, 16)})
    path = tmp_path / "runs.jsonl"
    arms.live(arms.Campaign(path, HOST), ["grid", "random"], 2, 0.2)
    runs = arms.Campaign(path).entries
    order = [("grid", 0), ("random", 0), ("grid", 1), ("random", 1)]
    assert [(run["arm"], run["seed"]) for run in runs if "arm" in run] == order
    assert all(run["evaluations"] >= 1 and run["seconds"] > 0 for run in runs[:4])
    assert runs[4]["machine"] == HOST
    assert {tuple(point) for _, point, seconds in runs[4]["raced"] if seconds} == {
        tuple(run["end"][1]) for run in runs[:4]
    }
    whole = path.read_text()
    arms.live(arms.Campaign(path, HOST), ["grid", "random"], 2, 0.2)
    assert path.read_text() == whole
    lines = whole.splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3][:20])
    arms.live(arms.Campaign(path, HOST), ["grid", "random"], 2, 0.2)
    assert path.read_text().startswith("".join(lines[:3]))
    assert [(run["arm"], run["seed"]) for run in arms.Campaign(path).entries if "arm" in run] == order
    arms.show_live(arms.Campaign(path).entries)
    assert "matmul" in capsys.readouterr().out


def arms_recording() -> object:
    from stormdrop.measure.replay import Recorded, Recording
    from stormdrop.trial import Candidate

    space = Space("line", [Ordinal("x", range(9))])
    times = np.linspace(1e-3, 2e-3, 9)
    return Recording("line", (space,), {Candidate("line", (x,)): Recorded((float(times[x]),)) for x in range(9)})
