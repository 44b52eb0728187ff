"""The seconds that are expected of the GPU sketches besides tilings of contractions: what has to be slower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import GPUS, Gpu
from stormdrop.sketches.contract import Estimator
from stormdrop.sketches.gpu.attention.mma import GpuMmaAttention
from stormdrop.sketches.gpu.mma import GpuMma
from stormdrop.sketches.gpu.streaming import GpuStreaming
from stormdrop.sketches.gpu.tensor_core import GpuTensorCore
from stormdrop.sketches.gpu.times.waves import LAUNCH
from stormdrop.sketches.gpu.transpose import GpuTranspose
from stormdrop.sketches.knowledge import prior
from stormdrop.sketches.registry import gpu_sketches, sketches_for
from stormdrop.trial import Candidate

A100, T4 = GPUS["a100"], GPUS["t4"]
HALF = operators.matmul(2048, 2048, 2048, dtype="float16")
TILES = {"rows": (16, 2, 4), "columns": (16, 4, 2), "steps": (64, 2)}
ATTENTION = operators.attention(16, 2048, 2048, 64, 64, dtype="float16")
ROWS = operators.reduce((4096, 4096), (1,))
COLUMNS = operators.reduce((4096, 4096), (0,))


def seconds(sketch: Any, workload: Workload, device: Gpu, config: dict[str, Any]) -> float:
    """What a sketch expects of a configuration, which is in its space."""
    space = sketch.space(workload, device)
    assert space is not None
    return float(sketch.estimate(workload, device, space.columns([space.point(config)]))[0])


def on_tensor_cores(device: Gpu = A100, **changes: Any) -> float:
    return seconds(GpuMma(), HALF, device, {**TILES, "stages": 3, **changes})


def streamed(workload: Workload, device: Gpu = A100, **changes: Any) -> float:
    space = GpuStreaming().space(workload, device)
    assert space is not None
    return seconds(GpuStreaming(), workload, device, {**space.config(space.origin), **changes})


CASES = {name: operators.create(name, dict(word.split("=") for word in text.split())) for name, text in
         operators.EXAMPLES.items()} | {"half": operators.matmul(64, 96, 128, dtype="float16"),
         "half_attention": operators.attention(2, 35, 200, 32, 16, dtype="float16")}  # fmt: skip


@pytest.mark.parametrize("device", [A100, T4, GPUS["rtx3090"]], ids=lambda device: device.name)
@pytest.mark.parametrize("name", CASES)
def test_every_sketch_expects_seconds_of_every_operator(name: str, device: Gpu) -> None:
    work, rng = CASES[name], np.random.default_rng(0)
    for sketch in gpu_sketches():
        space = sketch.space(work, device)
        if space is None:
            continue
        assert isinstance(sketch, Estimator)
        points = [space.origin, *(space.sample(rng) for _ in range(20))]
        expected = sketch.estimate(work, device, space.columns(points))
        least = LAUNCH + max(work.bytes / device.bandwidth * 0.4, 0.0)  # a contraction leaves out bias and residual
        assert expected.shape == (21,) and np.isfinite(expected).all() and (expected > least).all()
        alone = [sketch.estimate(work, device, space.columns([point]))[0] for point in points[:5]]
        assert alone == expected[:5].tolist()


@pytest.mark.parametrize(
    "slower",
    [
        {"rows": (128, 1, 1), "columns": (128, 1, 1)},  # each fragment that is fetched is used once
        {"stages": 1},  # nothing is multiplied beside copies
        {"steps": (128, 1)},  # a barrier for each fragment of the depth
        {"rows": (8, 4, 4), "columns": (16, 2, 4)},  # 128 blocks of 8 warps leave one of two rounds nearly empty
    ],
    ids=["no reuse", "no stages", "barriers", "tail"],
)
def test_worse_tilings_of_tensor_cores_are_expected_to_be_slower(slower: dict[str, Any]) -> None:
    assert on_tensor_cores(**slower) > 1.01 * on_tensor_cores()


@pytest.mark.parametrize(
    "slower",
    [
        {"warps": 1},  # each block of 16 queries reads all keys and values
        {"keys": 1},  # a barrier for each 16 keys
        {"stages": 1},  # fewer copies are on their way
    ],
    ids=["no reuse", "barriers", "no stages"],
)
def test_worse_divisions_of_attention_are_expected_to_be_slower(slower: dict[str, Any]) -> None:
    config = {"rows": 1, "warps": 4, "keys": 4, "stages": 2, "parts": 1}
    usual = seconds(GpuMmaAttention(), ATTENTION, A100, config)
    assert seconds(GpuMmaAttention(), ATTENTION, A100, {**config, **slower}) > 1.01 * usual


def test_tensor_cores_of_geforce_are_slower() -> None:
    geforce, professional = GPUS["rtx3090"], GPUS["rtxa6000"]
    alike = replace(geforce, name=professional.name)
    assert on_tensor_cores(geforce) > 1.2 * on_tensor_cores(alike)


def test_products_before_sm_80_want_wide_fetches_and_padding() -> None:
    tiles = {"rows": (64, 1, 2), "columns": (32, 2, 2), "steps": (64, 2), "write": 4}
    wide = {**tiles, "fetch0": 8, "fetch1": 8, "padding": 8}
    usual = seconds(GpuTensorCore(), HALF, T4, wide)
    assert usual < seconds(GpuTensorCore(), HALF, T4, {**wide, "fetch0": 1, "fetch1": 1})
    assert usual < seconds(GpuTensorCore(), HALF, T4, {**wide, "padding": 0})


def test_tensor_cores_come_before_other_cores() -> None:
    for device, first in ((A100, GpuMma.name), (T4, GpuTensorCore.name)):
        found = sketches_for(HALF, device)
        origins = prior(found, HALF, device)
        assert origins is not None
        expected = origins([Candidate(space.name, space.origin) for _, space in found]).tolist()
        assert found[0][0].name == first and len(found) == 2 and expected == sorted(expected)


def test_sketches_are_in_the_order_of_what_is_expected_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(self: Any, workload: Any, target: Any, knobs: Any) -> Any:
        return np.full(len(knobs["stages"]), 1.0)

    monkeypatch.setattr(GpuMma, "estimate", slow)
    assert [sketch.name for sketch, _ in sketches_for(HALF, A100)][-1] == GpuMma.name


def test_neighbours_share_sectors() -> None:
    assert streamed(ROWS, lanes=32) < 0.5 * streamed(ROWS, lanes=1), "a thread for each row"
    assert streamed(COLUMNS, threads=256, lanes=32) < 0.5 * streamed(COLUMNS, threads=256, lanes=256), "a row a block"


def test_what_is_moved_takes_its_bytes_and_no_more_than_twice_of_them() -> None:
    for work in (ROWS, operators.elementwise((4096, 4096)), operators.softmax(8192, 1024)):
        for device in (A100, GPUS["rtx3080"]):
            least = work.bytes / device.bandwidth
            assert least < streamed(work, device) < 3 * least
    assert streamed(ROWS, replace(A100, bandwidth=2 * A100.bandwidth)) < streamed(ROWS)


def test_vectors_and_unrolled_loops_are_expected_to_be_faster() -> None:
    wide = operators.elementwise((4096, 4096))
    assert streamed(wide, vector=4) < streamed(wide, vector=1)
    assert streamed(ROWS, unroll=64, lanes=128, threads=128) < streamed(ROWS, unroll=0, lanes=128, threads=128)


def test_a_row_that_few_threads_share_takes_longer() -> None:
    few_long_rows = operators.softmax(64, 32000)
    assert streamed(few_long_rows, threads=1024) < 0.5 * streamed(few_long_rows, threads=32)


def test_a_tile_in_shared_memory_beats_threads_across_rows() -> None:
    work = operators.transpose((4096, 4096), (1, 0))
    tiled = {"write": 32, "read": 32, "threads": 256}
    assert seconds(GpuTranspose(), work, A100, tiled) < 0.5 * streamed(work)
    assert seconds(GpuTranspose(), work, A100, {**tiled, "threads": 32}) > seconds(GpuTranspose(), work, A100, tiled)


def test_the_default_of_what_is_streamed_is_clearly_not_the_slower_one() -> None:
    for work in (ROWS, COLUMNS, operators.softmax(64, 32000), operators.elementwise((4096, 4096))):
        space = GpuStreaming().space(work, A100)
        assert space is not None
        expected = GpuStreaming().estimate(work, A100, space.columns([space.origin, *space.points()]))
        assert expected[0] <= expected.min() / 0.9
