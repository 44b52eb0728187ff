"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from pages import PACKAGE
from small_budgets import small_budget
from small_network import save_small_network, save_small_product, save_small_words

import stormdrop as sd
from stormdrop.tuning.options import TuneOptions

HEAVY = ("bench", "codegen", "measure", "model", "sketches", "testing", "tuning")
"""Rooms whose examples compile kernels or start workers."""


FENCE = re.compile(r"^```python\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def modules() -> list[ParameterSet]:
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
    if ".integrations." in name:
        pytest.importorskip(name, reason="the other tool is not installed")
    failed, tried = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert tried, "its examples are in no docstring of the module"
    assert not failed, "see the output above"


def fenced() -> list[ParameterSet]:
    """The examples in docstrings that stand in a fence, because they suppose that a model is there."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if "```python" not in path.read_text():  # to parse all modules takes a second
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for block in FENCE.findall((ast.get_docstring(node) or "").replace("\n    ", "\n")):
                    name = "module" if isinstance(node, ast.Module) else node.name
                    found.append(pytest.param(block, id=f"{path.relative_to(PACKAGE).as_posix()}:{name}"))
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of the examples, one of them before and after its tuning."""
    folder = tmp_path_factory.mktemp("models")
    save_small_product(folder / "bert.onnx")
    save_small_words(folder / "words.onnx")
    save_small_network(folder / "resnet50.onnx", image="data")
    model = sd.tune_model(folder / "resnet50.onnx", trials=4, out=folder / "resnet50.sd").model
    if shutil.which("cc") is not None:
        model.save(folder / "native.sd", native=True)
    return folder


@pytest.mark.compiles
@pytest.mark.parametrize("block", fenced())
def test_fenced_examples(block: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if ("native=True" in block or "native.sd" in block) and shutil.which("cc") is None:
        pytest.skip("no linker here: cc")
    if "kernel_tuner" in block:
        pytest.importorskip("kernel_tuner", reason="the example is about Kernel Tuner")
    if "import torch" in block:
        pytest.importorskip("torch", reason="the example is about torch")
    shutil.copytree(models, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TuneOptions, "budget", small_budget)
    image = np.ones((1, 3, 224, 224), "float32")
    names = {"x": image, "image": image, "images": image, "model": sd.load("resnet50.sd")}
    exec(block, {"sd": sd, "stormdrop": sd, **names})
