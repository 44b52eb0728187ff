"""The benchmark of `ms.tune_tir`: what is saved is not done again, also if the last line was cut off by a kill."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for folder in (FOLDER, FOLDER / "kernels"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("tune_tir")


def test_it_goes_on_where_it_was_ended(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def tuned(shape: Any, strategy: str, seed: int, trials: int) -> dict[str, Any]:
        asked.append(strategy)
        return {"measured": trials, "failed": 0, "tuning_seconds": 1.0, "curve": [[1.0, 1e-3]], "trace": [[], []]}

    race = {"seconds": {}, "ratio": 1.25, "interval": [1.2, 1.3], "disturbed": 0, "agree": True}
    monkeypatch.setattr(script, "tuned", tuned)
    monkeypatch.setattr(script, "raced", lambda shape, done, rounds: race)
    path, shape = tmp_path / "runs.jsonl", script.SHAPES["M0"]

    def complete() -> Any:
        campaign = script.Campaign(path)
        script.complete(campaign, shape, 0, 256, 3)
        return campaign

    complete()
    whole = path.read_text()
    assert asked == ["evolutionary", "storm"] and len(script.Campaign(path).entries) == 3
    complete()
    assert path.read_text() == whole and len(asked) == 2
    path.write_text(whole[: whole.index('"storm"')])  # killed while it wrote the second line
    campaign = complete()
    assert asked == ["evolutionary", "storm", "storm"]
    assert path.read_text() == whole
    script.show(campaign.entries)
    assert "geometric mean: 1.250" in capsys.readouterr().out
