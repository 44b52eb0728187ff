"""The benchmark of AutoTVM's way of tuning: it goes on where it was ended, and its tables say what is kept."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import stormdrop as sd
from stormdrop.records import Filter

FOLDER = Path(__file__).parents[2] / "benchmarks"
ARMS = ["droplet", "grid"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for folder in (FOLDER, FOLDER / "models"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("autotvm")


@pytest.fixture
def asked(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What is tuned and raced, in its order. Nothing is tuned in truth: grid finds nothing that works for "b"."""
    layers = [_layer(script, 0, "a", 2, True), _layer(script, 1, "b", 1, True), _layer(script, 2, "pool", 1, False)]
    log: list[str] = []
    script.tried = tried = []  # type: ignore[attr-defined]

    def tuned(workload: Any, arm: str, trials: int, *_: Any) -> dict[str, Any]:
        log.append(f"{workload.name} {arm}")
        tried.append(trials)
        works = (workload.name, arm) != ("b", "grid")
        best = {"sketch": "register_blocked", "config": {}} if works else None
        counts = {"space": 99, "search_seconds": 30.0, "measured": trials, "failed": 0, "converged": works, "curve": []}
        return {"best": best, "error": "" if works else "it does not compile", **counts}

    def race_layer(workload: Any, found: Any, *_: Any) -> dict[str, Any]:
        log.append(f"race {workload.name}")
        return {arm: _figures(1e-3 * (1 + (arm == "grid"))) for arm, best in found.items() if best} | {"disturbed": 0}

    def race_models(*_: Any) -> dict[str, Any]:
        log.append("race of models")
        models = {name: {"error": 1e-6, "replaced": []} for name in (script.UNTUNED, *ARMS)}
        models["grid"]["without"] = ["b"]
        times = {script.UNTUNED: 9e-3, "droplet": 4e-3, "grid": 4.0001e-3}
        return {"models": models, "race": {name: _figures(each) for name, each in times.items()} | {"disturbed": 1}}

    monkeypatch.setattr(importlib.import_module("_slices"), "OUT", tmp_path)
    monkeypatch.setattr(script, "exported", lambda model, path: None)
    monkeypatch.setattr(script, "import_model", lambda source: SimpleNamespace(tasks=layers))
    monkeypatch.setattr(script, "layers_of", lambda graph, target: layers)
    for function in (tuned, race_layer, race_models):
        monkeypatch.setattr(script, function.__name__, function)
    return log


def test_it_goes_on_where_it_was_ended(script: ModuleType, asked: list[str], tmp_path: Path) -> None:
    options = _options(tmp_path)
    _complete(script, "vgg16", options)
    assert asked == ["a droplet", "a grid", "b droplet", "b grid", "race a", "race b", "race of models"]
    whole = options.file.read_text()
    _complete(script, "vgg16", options)
    assert options.file.read_text() == whole and len(asked) == 7
    lines = whole.splitlines(keepends=True)
    options.file.write_text("".join(lines[:3]) + lines[3][:30])
    _complete(script, "vgg16", options)
    assert asked[7:] == ["b droplet", "b grid", "race a", "race b", "race of models"]
    assert options.file.read_text() == whole


def test_another_cpu_has_its_own_tunings_and_tables(
    script: ModuleType,
    asked: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = _options(tmp_path)
    _complete(script, "vgg16", options)
    _complete(script, "vgg16", options, "Another CPU")
    assert asked[7:] == asked[:7]
    arguments = ["autotvm.py", "--table", "--trials", "7", "--searches", ",".join(ARMS), "--file", str(options.file)]
    monkeypatch.setattr("sys.argv", arguments)
    script.main()
    assert [line for line in capsys.readouterr().out.splitlines() if line.endswith("CPU")] == ["A CPU", "Another CPU"]


def test_kernels_of_another_model_are_not_tuned_again(script: ModuleType, asked: list[str], tmp_path: Path) -> None:
    options = _options(tmp_path)
    _complete(script, "vgg16", options)
    _complete(script, "bert_base", options)
    assert asked[7:] == ["race of models"]  # the paper's Figure 18 has no layers of BERT


def test_candidates_of_a_model_are_shared_out_to_its_kernels(
    script: ModuleType, asked: list[str], tmp_path: Path
) -> None:
    options = _options(tmp_path)
    options.shared = True
    _complete(script, "vgg16", options)
    assert script.tried == [3] * 4  # of 7, two kernels have a template


@pytest.mark.compiles
def test_a_tuning_that_a_call_has_ended_goes_on(script: ModuleType) -> None:
    workload, target = sd.operators.matmul(8, 32, 16), sd.Cpu.detect()
    with sd.open_store("sqlite://") as store:
        with script.Slice(minutes=0) as slice_:
            script.tuned(workload, "grid", 40, 0, target, store, slice_)
        assert not slice_.finished
        batch = sum(len(list(trials)) for _, trials in store.dump(Filter()))
        with script.Slice(minutes=5) as slice_:
            found = script.tuned(workload, "grid", batch + 1, 0, target, store, slice_)
        assert 0 < batch < 40 and found["measured"] == batch + 1


def test_the_template_of_a_gpu_is_that_of_contractions(script: ModuleType) -> None:
    target = sd.parse_machine("cuda/a100")
    functions = {
        "product": sd.operators.matmul(64, 64, 64),
        "softmax": sd.operators.softmax(8, 8),
        "convolution": sd.operators.conv2d(1, 28, 28, 64, 64, 3, 3, pad=1),  # Winograd's comes first
    }
    tasks = [
        SimpleNamespace(index=index, name=name, function=workload.function, constants=workload.constants, weight=1)
        for index, (name, workload) in enumerate(functions.items())
    ]
    layers = script.layers_of(SimpleNamespace(tasks=tasks), target)
    assert {layer.workload.name: layer.template for layer in layers} == {
        "product": True,
        "softmax": False,
        "convolution": True,
    }


def test_the_tables_tell_failures_and_what_is_similar(script: ModuleType, asked: list[str], tmp_path: Path) -> None:
    options = _options(tmp_path)
    _complete(script, "vgg16", options)
    entries = script.Campaign(options.file).entries
    rows = [line.split(" | ") for line in script.model_table(entries, ["vgg16", "bert_base"], ARMS).splitlines()]
    untuned, droplet, grid, missing = rows[2:]
    assert (untuned[2], droplet[2], grid[2]) == ("9.00 ms", "4.00 ms =", "4.00 ms =")
    assert droplet[4:6] == ["1.0 min", "14 (0 failed), 2 of 2 kernels converged"]
    assert "nothing works for b" in grid[6] and "1 rounds disturbed" in grid[6]
    assert "no race yet" in missing[1]
    rows = [line.strip("| ").split(" | ") for line in script.layer_table(entries, ["vgg16"], ARMS).splitlines()]
    assert rows[2:] == [
        ["a (2 calls)", "99", "1.000 ms =, 30 s, 7", "2.000 ms, 30 s, 7"],
        ["b (1 call)", "99", "1.000 ms =, 30 s, 7", "failed"],
        ["sum", "", "2.000 ms, 60 s, 14", "2.000 ms, 30 s, 7"],
    ]


@pytest.mark.compiles
def test_a_kernel_is_tuned_by_every_search(script: ModuleType) -> None:
    """In truth, on one that is small. Each search measures in the template's space alone."""
    workload = sd.operators.matmul(8, 32, 16)
    for arm in script.SEARCHES:
        with sd.open_store("sqlite://") as store, script.Slice(minutes=5) as slice_:
            found = script.tuned(workload, arm, 2, 0, sd.Cpu.detect(), store, slice_)
        assert found["measured"] == 2 and found["best"] is not None, (arm, found["error"])
        assert (found["best"]["sketch"] == "register_blocked") == (arm != script.ANSOR)


def test_the_test_of_the_paper(script: ModuleType) -> None:
    similar = importlib.import_module("_race").similar
    assert similar([1.0, 1.1, 0.9, 5.0], [1.05, 0.95, 1.0, 9.0])  # three samples count
    assert not similar([1.0, 1.001, 1.002], [1.1, 1.101, 1.102])
    assert not similar([1.1, 1.101, 1.102], [1.0, 1.001, 1.002])


def _layer(script: ModuleType, index: int, name: str, weight: int, template: bool) -> Any:
    return script.Layer(index, SimpleNamespace(key=f"key of {name}", name=name), weight, template)


def _figures(seconds: float) -> dict[str, Any]:
    samples = [seconds, 1.001 * seconds, 0.999 * seconds]
    return {"seconds": seconds, "samples": samples, "speed": 1.0, "speed_interval": [0.9, 1.1]}


def _complete(script: ModuleType, model: str, options: argparse.Namespace, cpu: str = "A CPU") -> None:
    setting = {"trials": 7, "seed": 0, "cpu": cpu}
    with script.Slice(minutes=5) as slice_:
        script.complete(script.Campaign(options.file), model, options, setting, SimpleNamespace(), slice_)


def _options(folder: Path) -> argparse.Namespace:
    return argparse.Namespace(
        searches=ARMS, trials=7, shared=False, fresh=False, seed=0, rounds=3, file=folder / "kept.jsonl"
    )
