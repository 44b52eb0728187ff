"""The kernel benchmark: its shapes are what they say, and its figures add up."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "kernels"
MACHINE = {"peak_gflops": 100.0, "bandwidth_gbs": 10.0}


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("_shapes")


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("_results")


def test_there_are_68_different_kernels(shapes: ModuleType) -> None:
    workloads = {name: shape.workload() for name, shape in shapes.SHAPES.items()}
    assert len(workloads) == 68
    assert len({workload.key for workload in workloads.values()}) == 68
    assert workloads["Y6"].outputs[0].shape == (1, 68, 68, 512)
    assert workloads["R0"].outputs[0].shape == (1, 112, 112, 64)
    assert workloads["K2"].outputs[0].shape == (128, 42, 42, 84)
    assert workloads["S11"].outputs[0].shape == (16, 11008)
    assert workloads["IN3"].outputs[0].shape == (1, 17, 17, 192)


def test_what_bounds_a_kernel(shapes: ModuleType) -> None:
    kinds = {name: shapes.kind(shapes.SHAPES[name].workload(), 200e9, 40e9) for name in ("M1", "R2", "K4", "BE3")}
    assert kinds == {"M1": "compute", "R2": "compute", "K4": "memory", "BE3": "memory"}


def test_pixels_that_no_window_touches_are_not_moved(shapes: ModuleType) -> None:
    pool = shapes.SHAPES["K3"].workload()
    output = pool.outputs[0].bytes
    assert shapes.moved(pool) == pytest.approx(2 * output)  # one pixel read for each that is written
    dense = shapes.SHAPES["DN2"].workload()
    assert shapes.moved(dense) == dense.bytes


def entry(name: str, ratios: dict[str, float], wrong: tuple[str, ...] = (), kind: str = "compute") -> dict[str, Any]:
    contenders = [
        {
            "name": who,
            "seconds": 1e-3 * ratio,
            "ratio": ratio,
            "ratio_interval": [ratio / 1.02, ratio * 1.02],
            "agrees": who not in wrong,
        }
        for who, ratio in {"stormdrop": 1.0, **ratios}.items()
    ]
    sizes = {"flops": 50e6, "bytes": 5e6, "kind": kind, "in_cache": kind == "memory"}
    return {"name": name, **sizes, "bench": {"contenders": contenders, "disturbed": 0}}


def test_a_kernel_is_judged_by_the_best_peer_that_is_right(results: ModuleType) -> None:
    row = results.row(entry("a", {"fast": 0.5, "torch": 1.2, "slow": 3.0}, wrong=("fast",)), MACHINE)
    assert (row["peer"], row["ratio"]) == ("torch", 1.2)
    assert row["gflops"] == pytest.approx(50.0)
    assert row["share"] == pytest.approx(0.5)
    assert results.row(entry("a", {}), MACHINE)["ratio"] is None


def test_the_summary_of_all_kernels(results: ModuleType) -> None:
    entries = [
        entry("a", {"torch": 2.0}),
        entry("b", {"torch": 0.5}),
        entry("c", {"torch": 0.94}, kind="memory"),
        entry("d", {}, wrong=("stormdrop",)),
    ]
    summary = results.summary([results.row(kernel, MACHINE) for kernel in entries])
    mean, low, high = summary["geometric_mean"]
    assert mean == pytest.approx(0.94 ** (1 / 3))
    assert 1 < high / mean < 1.02  # the mean of three is known better than a single ratio
    assert low * high == pytest.approx(mean**2)
    assert (summary["below"], summary["surely_below"], summary["wrong"]) == (["b", "c"], ["b"], ["d"])
    assert summary["share_of_peak"] == pytest.approx(0.5)
    assert (summary["share_of_bandwidth"], summary["share_of_bandwidth_in_cache"]) == (None, pytest.approx(0.5))
