"""The benchmark of spaces: every operator has a kernel, but those that are left out with a reason."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import stormdrop as sd

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_every_operator_has_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (FOLDER, FOLDER / "kernels"):
        monkeypatch.syspath_prepend(str(folder))
    spaces = importlib.import_module("spaces")
    workloads = {text.split()[0]: spaces.workload_of(text) for text in spaces.KERNELS}
    assert sorted([*workloads, *spaces.LEFT_OUT]) == sorted(sd.operators.names())
