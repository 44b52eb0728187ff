"""The seven analytical features, beside numbers that were worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.gpu.features import NAMES, analytic_features
from stormdrop.sketches.gpu.tiling import ContractionAxes, Operand, Tilings

M, N, K = 512, 256, 128
MATMUL = ContractionAxes(
    (("i", M), ("j", N)),
    (("k", K),),
    (Operand(((("i", 1),), (("k", 1),)), (M, K)), Operand(((("k", 1),), (("j", 1),)), (K, N))),
)


def tiling(i: tuple[int, ...], j: tuple[int, ...], k: tuple[int, ...]) -> Tilings:
    return Tilings(MATMUL, {name: np.array([values]) for name, values in zip("ijk", (i, j, k), strict=True)})


def test_a_matmul_by_hand() -> None:
    # Blocks of 64 x 32 by 16 x 8 threads, 4 x 4 outputs each; 16 of the reduction at a time.
    tilings = tiling((8, 1, 16, 1, 4), (8, 1, 8, 1, 4), (8, 1, 16))
    assert (tilings.blocks[0], tilings.threads[0], tilings.outputs[0], tilings.rounds[0]) == (64, 128, 16, 8)
    assert tilings.shared_bytes[0] == 4 * (64 * 16 + 16 * 32)
    values = dict(zip(NAMES, analytic_features(tilings, GPUS["a100"])[0].tolist(), strict=True))
    # 16 outputs, the 4 operands of a step, 24 for addresses; (64 + 32) * 16 elements are fetched by 128 threads.
    assert (tilings.least_registers[0], tilings.registers[0]) == (44, 44 + 12)
    operations = 2 * M * N * K
    assert values["OI_Global_Mem"] == operations / (64 * 8 * (64 * 16 + 16 * 32))
    assert values["Reg_Reuse_Factor"] == operations / (M * N)
    assert values["ILP"] == 16
    # Threads of a warp: 4 rows of 8. Of a they want 4 words, 64 apart, all in one bank; of b 8 words, 4 apart.
    assert [int(conflicts[0]) for conflicts in tilings.conflicts] == [4, 1]
    loads = 64 * 128 * K * 4 / 32
    assert values["OI_Shared_Mem"] == operations / (loads * 4 + loads)
    # 108 multiprocessors for 64 blocks: one block of 4 warps each, in less than a wave.
    assert values["WLP"] == 4
    assert values["Estimated_Occupancy"] == 4 / 64
    resident = min(
        32, 64 // 4, 65536 // (math.ceil(tilings.registers[0] * 32 / 256) * 256 * 4), (164 << 10) // (6144 + 1024)
    )
    assert values["Wave_Efficiency"] == pytest.approx(64 / (108 * resident))


def test_only_where_an_operand_begins_in_shared_memory_is_aligned() -> None:
    # 64 x 2 elements of a, 2 x 4 of b: 512 bytes and 32; the other way round b begins after 64.
    assert tiling((8, 1, 16, 1, 4), (64, 1, 1, 1, 4), (64, 1, 2)).shared_bytes[0] == 512 + 32
    assert tiling((128, 1, 1, 1, 4), (8, 1, 8, 1, 4), (64, 1, 2)).shared_bytes[0] == 64 + 2 * 32 * 4


def test_wave_efficiency_of_the_papers_example() -> None:
    # "128 SMs, 320 blocks, one block per SM at a time: three waves, two and a half useful."
    shape = ContractionAxes((("i", 320 * 1024),), (("k", 2),), MATMUL.operands)
    tilings = Tilings(
        ContractionAxes(shape.spatial, shape.reductions, (Operand(((("i", 1),), (("k", 1),)), (320 * 1024, 2)),) * 2),
        {"i": np.array([[320, 1, 1024, 1, 1]]), "k": np.array([[1, 1, 2]])},
    )
    assert GPUS["rtx4090"].multiprocessors == 128
    assert analytic_features(tilings, GPUS["rtx4090"])[0][NAMES.index("Wave_Efficiency")] == pytest.approx(2.5 / 3)


def test_many_at_once_are_each_alone() -> None:
    rng = np.random.default_rng(0)

    def split(extent: int, parts: int) -> list[int]:
        cuts = sorted(rng.integers(0, int(math.log2(extent)) + 1, parts - 1).tolist())
        return [2 ** (b - a) for a, b in zip([0, *cuts], [*cuts, int(math.log2(extent))], strict=True)]

    rows = {"i": [split(M, 5) for _ in range(50)], "j": [split(N, 5) for _ in range(50)]}
    rows["k"] = [split(K, 3) for _ in range(50)]
    together = analytic_features(
        Tilings(MATMUL, {name: np.array(values) for name, values in rows.items()}), GPUS["h100"]
    )
    for at in range(50):
        alone = Tilings(MATMUL, {name: np.array([values[at]]) for name, values in rows.items()})
        np.testing.assert_array_equal(analytic_features(alone, GPUS["h100"])[0], together[at])


def test_factors_must_multiply() -> None:
    with pytest.raises(ValueError, match="factors of axis j do not multiply to 256"):
        tiling((8, 1, 16, 1, 4), (8, 1, 8, 1, 2), (8, 1, 16))
