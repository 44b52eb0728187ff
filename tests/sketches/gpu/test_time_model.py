"""The model of the time that tilings take: what has to be slower, and how it orders recorded measurements."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from stormdrop import operators
from stormdrop.codegen.cuda import cuda_source, resources_of
from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.gpu.contraction import GpuContraction, find_fused_contraction
from stormdrop.sketches.gpu.tiling import ContractionAxes, Operand, Tilings
from stormdrop.sketches.gpu.times.tilings import expected_seconds
from stormdrop.sketches.gpu.times.waves import LAUNCH

A100 = GPUS["a100"]
SIZE = 1024
Tiles = dict[str, tuple[int, ...]]
TILES: Tiles = {"i": (16, 1, 16, 1, 4), "j": (16, 1, 16, 1, 4), "k": (64, 1, 16)}


def matmul(m: int = SIZE, n: int = SIZE, k: int = SIZE, transposed: bool = False) -> ContractionAxes:
    """The axes of a[i, k] b[k, j], or of a[i, k] b[j, k]."""
    row, column, depth = (("i", 1),), (("j", 1),), (("k", 1),)
    b = Operand((column, depth), (n, k)) if transposed else Operand((depth, column), (k, n))
    return ContractionAxes((("i", m), ("j", n)), (("k", k),), (Operand((row, depth), (m, k)), b))


def seconds(changes: Tiles | None = None, axes: ContractionAxes | None = None) -> float:
    """What is expected of one tiling on an A100."""
    return float(expected_seconds(one(changes, axes), A100)[0])


def one(changes: Tiles | None = None, axes: ContractionAxes | None = None) -> Tilings:
    return Tilings(axes or matmul(), {name: np.array([tiles]) for name, tiles in {**TILES, **(changes or {})}.items()})


def test_what_has_more_terms_takes_longer() -> None:
    twice = seconds({"k": (128, 1, 16)}, matmul(k=2 * SIZE))
    assert 1.5 < (twice - LAUNCH) / (seconds() - LAUNCH) < 2.5


@pytest.mark.parametrize(
    "slower",
    [
        {"i": (64, 1, 16, 1, 1), "j": (64, 1, 16, 1, 1)},  # an output a thread: all comes from shared memory
        {"i": (1024, 1, 1, 1, 1), "j": (32, 1, 32, 1, 1)},  # nothing that a block fetches is used again
        {"i": (2, 1, 16, 1, 32), "j": (4, 1, 16, 1, 16)},  # 512 outputs do not fit in registers; blocks are 8
        {"k": (1024, 1, 1)},  # a barrier for each term
        {"j": (1, 1, 1, 1, 1024), "i": (32, 1, 32, 1, 1)},  # writes of neighbouring threads are 4 KiB apart
    ],
    ids=["no registers", "no reuse", "spills", "barriers", "strides"],
)
def test_a_bad_tiling_is_expected_to_be_slower(slower: Tiles) -> None:
    assert seconds(slower) > 1.5 * seconds()


def test_blocks_that_begin_another_wave_cost_a_wave() -> None:
    # A multiprocessor holds some blocks. A row of blocks more than all of them hold begins a wave.
    def rows(count: int) -> float:
        return seconds({"i": (count, 1, 16, 1, 4), "j": (1, 1, 16, 1, 4)}, matmul(m=64 * count, n=64))

    assert rows(1) > 0.9 * rows(A100.multiprocessors)  # only the memory has more to do
    assert rows(A100.multiprocessors + 1) > 1.05 * rows(A100.multiprocessors)


def test_a_better_device_is_expected_to_take_no_longer() -> None:
    tiling = one()
    base = expected_seconds(tiling, A100)[0]
    wider = replace(A100, bandwidth=2 * A100.bandwidth)
    larger = replace(A100, multiprocessors=2 * A100.multiprocessors, flops=2 * A100.flops)
    assert all(expected_seconds(tiling, better)[0] < base for better in (wider, larger))


def test_wide_fetches_and_unrolled_loops_are_expected_to_be_faster() -> None:
    tiling = one()
    wide, narrow = (expected_seconds(tiling, A100, fetch=(width, width))[0] for width in (4, 1))
    unrolled, loops = (expected_seconds(tiling, A100, unroll=steps)[0] for steps in (1024, 0))
    assert wide < narrow and unrolled < loops


def test_an_operand_that_is_read_across_its_rows_costs_sectors() -> None:
    # A block needs 64 x 1 elements of b in a round: 64 neighbours, or one of each of 64 rows.
    along, across = (seconds({"k": (1024, 1, 1)}, matmul(transposed=transposed)) for transposed in (False, True))
    assert along < across


def test_n_tilings_are_expected_to_take_what_each_of_them_does() -> None:
    variants = [TILES, {**TILES, "k": (128, 1, 8)}, {**TILES, "i": (8, 2, 16, 2, 2), "j": (32, 1, 32, 1, 1)}]
    together = Tilings(matmul(), {name: np.array([tiles[name] for tiles in variants]) for name in TILES})
    assert expected_seconds(together, A100).tolist() == [seconds(tiles) for tiles in variants]


def test_recorded_kernels_of_an_a100_are_ordered() -> None:
    """No constant of the model was chosen on these two convolutions. Both figures were reached when it was made."""
    document = json.loads((Path(__file__).parent / "recorded_a100.json").read_text())
    for ground, rank in zip(document["grounds"], (0.83, 0.86), strict=True):
        n, rows, columns, channels, outputs, kernel, stride = (
            ground[key] for key in ("images", "rows", "columns", "channels", "outputs", "kernel", "stride")
        )
        work = operators.conv2d(
            n, rows * stride, columns * stride, channels, outputs, kernel, kernel, stride=stride, pad=kernel // 2,
            layout="NCHW",
        )  # fmt: skip
        axes = find_fused_contraction(work).axes
        names = [name for name, _ in (*axes.spatial, *axes.reductions)]
        factors = {name: np.array(tiles) for name, tiles in zip(names, ground["factors"], strict=True)}
        fetch, unroll = np.array(ground["fetch"]), np.array(ground["unroll"])
        expected = expected_seconds(Tilings(axes, factors), A100, (fetch[0], fetch[1]), unroll)
        assert spearmanr(expected, ground["seconds"]).statistic > rank - 0.02


@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_occupancy_is_that_of_the_registers_that_ptxas_gives() -> None:
    work, sketch = operators.matmul(256, 512, 128), GpuContraction(listing_1=True)
    rng = np.random.default_rng(3)
    space = sketch.space(work, A100)
    assert space is not None
    axes = find_fused_contraction(work).axes
    names = [name for name, _ in (*axes.spatial, *axes.reductions)]
    configs = [space.config(space.sample(rng)) for _ in range(16)]
    tilings = Tilings(axes, {name: np.array([config[name] for config in configs]) for name in names})
    kernels = resources_of([cuda_source(sketch.apply(work, A100, config).main, A100) for config in configs], A100)
    registers = np.array([kernel.registers for (kernel,) in kernels])
    room = A100.registers_per_thread(tilings.threads)
    counts = [
        A100.blocks_per_multiprocessor(tilings.threads, np.minimum(given, room), tilings.shared_bytes)
        for given in (tilings.registers, registers)
    ]
    predicted, given = (count * tilings.threads / (A100.warps * 32) for count in counts)
    # Random tilings: occupancy is within a quarter of the device for three of four, and orders them.
    assert (np.abs(predicted - given) <= 0.25).mean() >= 0.75
    assert spearmanr(predicted, given).statistic > 0.5
