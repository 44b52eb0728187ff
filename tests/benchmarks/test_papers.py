"""The benchmark of the papers' models: which they are, and its table."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for folder in (FOLDER, FOLDER / "models"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("papers")


def test_the_models_of_both_papers_are_there(script: ModuleType) -> None:
    """Figure 9 of the Droplet Search paper, Figure 17 of the DPAnsor paper."""
    of = {paper: [model.papers[paper] for model in script.MODELS.values() if paper in model.papers] for paper in PAPERS}
    assert {paper: sorted(names) for paper, names in of.items()} == PAPERS


def test_every_network_of_keras_is_one_of_the_models(script: ModuleType) -> None:
    keras = importlib.import_module("_keras_networks")
    assert keras.NETWORKS.keys() <= script.MODELS.keys()
    assert keras.contenders("alexnet") == []
    assert [spec.arguments for spec in keras.contenders("vgg16")] == [
        {"network": "VGG16", "xla": False},
        {"network": "VGG16", "xla": True},
    ]


def test_the_table_has_the_latest_entry_of_each_model(script: ModuleType) -> None:
    entries = [{"model": "vgg16", "failed": "a | b"}, _entry("alexnet", 1.0), _entry("alexnet", 2.0)]
    rows = [line.strip("| ").split(" | ") for line in script.table(entries).splitlines()]
    alexnet, vgg16 = rows[2:]
    assert alexnet[:3] == ["alexnet", "2.0 s", "60 s, 12 trials"]
    assert alexnet[6:] == [
        "4.00 ms",
        "openvino 1.250 (1.200 to 1.300)",
        "onnxruntime 1.50, torch 0.10, torch-compiled does not run it, torch differs by 5e-01, "
        "tensorflow (Keras' own) 2.00, 3 rounds disturbed",
    ]
    assert vgg16[1] == "failed: a / b"


def _entry(name: str, seconds: float) -> dict[str, Any]:
    def contender(name: str, ratio: float, error: float = 0.0) -> dict[str, Any]:
        return {
            "name": name,
            "seconds": 4e-3 * ratio,
            "ratio": ratio,
            "ratio_interval": [ratio - 0.05, ratio + 0.05],
            "max_error": error,
            "agrees": error < 1e-3,
        }

    contenders = [contender("stormdrop", 1.0), contender("onnxruntime", 1.5), contender("openvino", 1.25)]
    bench = {"contenders": [*contenders, contender("torch", 0.1, 0.5)], "skipped": {"torch-compiled": "?"}}
    return {
        "model": name,
        "import": seconds,
        "tuning": 60.0,
        "trials": 12,
        "kernels": 9,
        "calls": 14,
        "plain": [],
        "elsewhere": [],
        "error": 1e-6,
        "bench": {**bench, "disturbed": 1},
        "keras": {"stormdrop": {"speed": 1.0}, "tensorflow": {"speed": 0.5}, "disturbed": 2},
    }


PAPERS = {
    "Droplet Search": ["bert", "inception_v3", "mobilenet", "mxnet", "resnet-18", "vgg-16"],
    "DPAnsor": sorted(
        [
            *("alexnet", "googlenet", "inception_v3", "mnasnet1_0", "mobilenet_v2", "shufflenet", "squeezenet"),
            *(f"densenet{depth}" for depth in (121, 161, 169, 201)),
            *(f"resnet{depth}" for depth in (18, 34, 50, 101, 152)),
            *(f"vgg{depth}" for depth in (11, 13, 16, 19)),
        ]
    ),
}
