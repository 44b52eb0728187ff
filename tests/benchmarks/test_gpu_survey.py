"""The benchmark of whole models for GPUs: what its roofline predicts, and what it takes for right."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from stand_ins.cuda_on_host import UNWRITTEN
from stand_ins.opencl_execution import Execution
from stormdrop.machine.gpu import GPUS
from stormdrop.model.graph.place import Place

A100 = GPUS["a100"]
EXPECTED = np.arange(8.0).reshape(2, 4)


@pytest.fixture
def roofline(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _imported("gpu._roofline", monkeypatch)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _imported("gpu._executed_kernels", monkeypatch)


def _imported(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = Path(__file__).parents[2] / "benchmarks"
    for each in (folder, folder / "models"):
        monkeypatch.syspath_prepend(str(each))
    return importlib.import_module(name)


def test_a_full_device_computes_at_its_peak(roofline: ModuleType) -> None:
    full = roofline.CompiledLaunch(blocks=108 * 8, threads=256, registers=32, shared=0, spilled=0)
    (seconds,) = roofline.predicted_seconds([full], A100.flops, 1.0, A100)
    assert seconds == pytest.approx(1.0)
    (seconds,) = roofline.predicted_seconds([full], 1.0, A100.bandwidth, A100)
    assert seconds == pytest.approx(1.0)
    (one_more,) = roofline.predicted_seconds([replace(full, blocks=108 * 8 + 1)], A100.flops, 1.0, A100)
    assert one_more == pytest.approx(9 / 8, rel=0.01)


def test_few_threads_are_slower(roofline: ModuleType) -> None:
    few = roofline.CompiledLaunch(blocks=108, threads=64, registers=32, shared=0, spilled=0)
    (seconds,) = roofline.predicted_seconds([few], A100.flops, 1.0, A100)
    assert seconds == pytest.approx(4.0)  # 64 threads of the 256 that 64 lanes need
    (seconds,) = roofline.predicted_seconds([few], A100.flops, 1.0, A100, independent=2)
    assert seconds == pytest.approx(2.0)
    (seconds,) = roofline.predicted_seconds([few], 1.0, A100.bandwidth, A100)
    assert seconds == pytest.approx(500e-9 * A100.bandwidth / (108 * 64 * 16))


def test_a_launch_takes_its_time(roofline: ModuleType) -> None:
    empty = roofline.CompiledLaunch(blocks=1, threads=32, registers=32, shared=0, spilled=0)
    assert roofline.predicted_seconds([empty, empty], 0.0, 0.0, A100) == [2e-6, 2e-6]


def test_what_the_blocks_that_ran_wrote_is_compared(kernels: ModuleType) -> None:
    half = EXPECTED.copy()
    half[1] = UNWRITTEN
    assert _judged(kernels, half, whole=False) == ("right", 4)
    assert _judged(kernels, half, whole=True) == ("wrong", 8)
    assert _judged(kernels, np.full_like(half, UNWRITTEN), whole=False) == ("wrong", 0)
    half[0, 3] += 1
    assert _judged(kernels, half, whole=False) == ("wrong", 4)


def test_a_slice_is_written_and_nothing_beside_it(kernels: ModuleType) -> None:
    wide = np.full((2, 10), float(UNWRITTEN))
    wide[:, 3:7] = EXPECTED
    assert _judged(kernels, wide, whole=True, place=Place(3, 10)) == ("right", 8)
    wide[1, 7] = 0.0
    assert _judged(kernels, wide, whole=True, place=Place(3, 10)) == ("wrong", 8)


def test_what_sanitizers_find_is_named(kernels: ModuleType) -> None:
    found = Execution((EXPECTED,), "", ("data race", "heap-buffer-overflow on address"))
    assert kernels._judged([found], [EXPECTED], None, True)["verdict"] == "race, out of bounds"
    slow = Execution((), "takes more than 60 s", ())
    assert kernels._judged([slow], [EXPECTED], None, True)["verdict"] == "failed"
    assert kernels._judged([Execution((EXPECTED,), "", ())], None, None, True)["verdict"] == "not compared"


def _judged(kernels: ModuleType, output: object, whole: bool, place: Place | None = None) -> tuple[str, int]:
    found = kernels._judged([Execution((output,), "", ())], [EXPECTED], place, whole)  # type: ignore[arg-type]
    return found["verdict"], found["compared"]
