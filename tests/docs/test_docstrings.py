"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
from pages import PACKAGE
from small_network import save_small_network

HEAVY = ("bench", "codegen", "measure", "model", "sketches", "testing", "tuning")
"""Rooms whose examples compile kernels or start workers."""


def modules() -> list[object]:
    """Every module with an example."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>>" not in path.read_text():
            continue
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        heavy = len(parts) > 1 and parts[1] in HEAVY
        found.append(pytest.param(name, id=name, marks=[pytest.mark.compiles] if heavy else []))
    return found


@pytest.mark.parametrize("name", modules())
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write files
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "120")
    save_small_network(tmp_path / "model.onnx")  # what the examples of models read
    failed, tried = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert tried, "its examples are in no docstring of the module"
    assert not failed, "see the output above"
