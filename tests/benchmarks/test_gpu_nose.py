"""The experiment of the NoSE paper on a GPU: its template's space, what is refused, and what is printed."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import stormdrop as sd

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for folder in (FOLDER, FOLDER / "searches", FOLDER / "gpu"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("nose")


def test_the_spaces_have_the_sizes_that_the_paper_prints(script: ModuleType) -> None:
    printed = {"C2": 90_316_800, "C6": 36_864_000, "C9": 9_123_840, "C12": 844_800}
    target = sd.parse_machine("cuda/a100")
    assert {name: script.direct_cuda.space(script.LAYERS[name], target).size for name in printed} == printed


@pytest.mark.long
def test_random_points_are_scheduled_or_refused_as_autotvm_refuses_them(script: ModuleType) -> None:
    target, workload = sd.parse_machine("cuda/a100"), script.LAYERS["C4"]
    space, rng, refused = script.direct_cuda.space(workload, target), np.random.default_rng(0), 0
    for _ in range(10):
        config = space.config(space.sample(rng))
        try:
            (launch,) = script.launches(script.direct_cuda.apply(workload, target, config).main, target)
            assert launch.threads == config["tile_f"][2] * config["tile_y"][2] * config["tile_x"][2]
        except script.InstantiationError:
            refused += 1
    assert 0 < refused < 10
    cases: list[tuple[dict[str, object], str]] = [
        ({"tile_f": (1, 1, 128, 1)}, "1 x 1 x 128 threads"),
        ({"tile_f": (1, 1, 1, 128), "tile_rc": (1, 64), "tile_ry": (1, 3)}, "bytes of shared memory"),
    ]
    for changes, message in cases:
        with pytest.raises(script.InstantiationError, match=message):
            script.direct_cuda.apply(workload, target, {**space.config(space.origin), **changes})


def test_speeds_and_failures_are_printed_by_time(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    flops = script.LAYERS["C12"].flops
    entries = [
        {
            "layer": "C12",
            "search": "random",
            "seed": seed,
            "time": 100.0,
            "curve": [[15.0, flops / 1e9], [60.0, flops / (2 + 2 * seed) / 1e9]],
            "statuses": {"ok": 3, "runtime": seed},
            "status_seconds": {"ok": 9.0, "runtime": 2.0 * seed},
        }
        for seed in range(2)
    ]
    script.show(entries, 100.0)
    shown = capsys.readouterr().out
    assert "0.0 +- 0.0" in shown  # before anything worked
    assert "1.0 +- 0.0" in shown
    assert "3.0 +- 1.0" in shown
    with pytest.raises(SystemExit, match="no run is finished yet"):
        script.show(entries, 60.0)
