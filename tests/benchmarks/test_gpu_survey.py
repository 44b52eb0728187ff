"""The benchmark of whole models for GPUs: what it expects of kernels, and what it takes for right."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from stand_ins.cuda_on_host import UNWRITTEN
from stand_ins.opencl_execution import Execution
from stormdrop import operators
from stormdrop.machine.gpu import GPUS
from stormdrop.model.graph.place import Place
from stormdrop.sketches.contract import Estimator
from stormdrop.tuning.kernel import KernelTask
from stormdrop.tuning.options import TuneOptions

A100 = GPUS["a100"]
EXPECTED = np.arange(8.0).reshape(2, 4)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _imported("gpu._expected_seconds", monkeypatch)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _imported("gpu._executed_kernels", monkeypatch)


def _imported(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = Path(__file__).parents[2] / "benchmarks"
    for each in (folder, folder / "models"):
        monkeypatch.syspath_prepend(str(each))
    return importlib.import_module(name)


def test_bytes_take_the_bandwidth_and_a_launch(times: ModuleType) -> None:
    full = times.CompiledLaunch(blocks=108 * 800, threads=256, registers=32, shared=0, spilled=0)
    seconds = times.seconds_by_bytes([full], A100.bandwidth, A100)
    assert 1.0 < seconds < 2.0, "the second cache is not hidden as a whole"
    assert times.seconds_by_bytes([full, full], A100.bandwidth, A100) == pytest.approx(seconds, rel=0.01)
    few_bytes = 4.0 * full.blocks * full.threads
    starved = replace(full, registers=255, blocks=8 * full.blocks, threads=32)  # eight warps on a multiprocessor
    assert times.seconds_by_bytes([starved], few_bytes, A100) > times.seconds_by_bytes([full], few_bytes, A100)
    assert times.seconds_by_bytes([full], 0.0, A100) > 2e-6


def test_a_schedule_takes_what_its_sketch_expects(times: ModuleType) -> None:
    kernel = KernelTask.create(operators.softmax(4096, 512), A100, TuneOptions())
    (sketch, space), *_ = kernel.sketches
    assert isinstance(sketch, Estimator)
    points = [space.origin, space.sample(np.random.default_rng(0))]
    seconds = [times.seconds_by_sketch(kernel, (sketch.name, space.config(point)), A100) for point in points]
    assert seconds == sketch.estimate(kernel.workload, A100, space.columns(points)).tolist()
    assert np.isnan(times.seconds_by_sketch(kernel, ("plain", {}), A100))


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
