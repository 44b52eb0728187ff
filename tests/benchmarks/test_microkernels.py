"""The micro-kernels of the papers on any target: who takes part beside them, and how schedules become contenders."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

import stormdrop as sd

FOLDER = Path(__file__).parents[2] / "benchmarks"
WORKLOAD = sd.operators.matmul(16, 64, 32)
A100 = sd.parse_machine("cuda/a100")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for folder in (FOLDER, FOLDER / "models", FOLDER / "kernels"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("microkernels")


def test_each_kind_of_device_has_its_own_peers(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def against(*arguments: str) -> list[str]:
        monkeypatch.setattr("sys.argv", ["microkernels.py", *arguments])
        found: list[str] = script._options().against
        return found

    assert against() == ["torch", "torch-packed", "tensorflow", "tensorflow-xla"]
    assert against("--target", "cuda/a100") == ["torch", "original"]
    assert against("--target", "opencl") == ["original"]
    assert against("--target", "cuda", "--against", "") == []
    with pytest.raises(SystemExit, match="there is no peer torch-packed; there are torch, original"):
        against("--target", "cuda", "--against", "torch-packed")


def test_schedules_of_a_gpu_are_contenders_that_it_times(script: ModuleType) -> None:
    config = {"space0": [2, 1, 8, 1, 1], "space1": [2, 1, 32, 1, 1], "reduce0": [4, 8, 1]}
    best = {"sketch": "gpu_contraction", "config": {**config, "fetch0": 1, "fetch1": 1, "unroll": 0}}
    tuned, torch, original = script.operator_specs(WORKLOAD, A100, {"storm": best}, ["torch", "original"], 0)
    assert [spec.name for spec in (tuned, torch, original)] == ["storm", "torch", "original"]
    assert {spec.device for spec in (tuned, torch, original)} == {"cuda"}
    assert tuned.maker == original.maker != torch.maker
    assert "shared" in tuned.arguments["variant"].main.script()
    text = original.arguments["variant"].main.script()
    assert "blockIdx.x" in text and "shared" not in text


def test_the_original_of_a_cpu_has_no_schedule(script: ModuleType) -> None:
    (original,) = script.operator_specs(WORKLOAD, sd.Cpu.detect(), {}, ["original"], 0)
    assert original.arguments["variant"].main is WORKLOAD.function
