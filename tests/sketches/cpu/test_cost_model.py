"""The cost model: facts about machines that it has to know, and that every configuration gets a cost.

Nothing is measured here: `benchmarks/kernels/prior.py` does that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches import knowledge, registry
from stormdrop.sketches.contract import Estimator, Variant
from stormdrop.sketches.cpu.contractions import cost_model
from stormdrop.sketches.cpu.contractions.contraction_shape import ContractionShape, shape_of_contraction
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.space import Ordinal, Space
from stormdrop.trial import Candidate

AVX512 = Cpu("cpu", "some CPU", "znver4", cores=2, lanes=16, registers=32, l1=32 << 10, l2=1 << 20, l3=32 << 20)
AVX2 = dataclasses.replace(AVX512, lanes=8, registers=16)
NEON = dataclasses.replace(AVX512, lanes=4, registers=32, l3=0)
SKETCH = RegisterBlocked()

WORKLOADS = [
    operators.matmul(512, 512, 512),
    operators.matmul(37, 149, 17),
    operators.matmul(5, 3, 2),
    operators.matmul(1, 1000, 24),
    operators.dense(1, 1000, 64),
    operators.dense(9, 100, 32, bias=1, act="relu"),
    operators.batch_matmul(3, 17, 35, 8),
    operators.batch_matmul(12, 128, 128, 64, transpose_b=1),
    operators.attention_scores(2, 17, 35, 8, mask=1),
    operators.conv1d(1, 61, 24, 40, 3, pad=1),
    operators.conv2d(1, 28, 28, 64, 64, 3, 3, pad=1, bias=1),
    operators.conv2d(1, 15, 13, 3, 27, 7, 7, stride=2, pad=3),
    operators.conv2d(1, 14, 14, 16, 32, 3, 3, pad=1, layout="NCHW"),
    operators.conv2d(1, 17, 17, 24, 48, 1, 1),
    operators.conv2d(1, 9, 9, 16, 32, 1, 1, stride=2),
    operators.conv2d(1, 9, 9, 16, 24, 3, 3, pad=1, groups=4),
    operators.depthwise_conv2d(1, 13, 13, 40, 3, 3, pad=1),
    operators.depthwise_conv2d(1, 13, 13, 8, 5, 5, stride=2, pad=2, layout="NCHW"),
]


def space_of(workload: Workload, target: Cpu = AVX512) -> Space:
    space = SKETCH.space(workload, target)
    assert space is not None
    return space


def everything(workload: Workload, target: Cpu) -> tuple[Space, dict[str, NDArray[Any]], NDArray[np.float64]]:
    """The space, the values at all of its points, and their estimates."""
    space = space_of(workload, target)
    columns = space.columns(list(space.points()))
    return space, columns, SKETCH.estimate(workload, target, columns)


def estimates(workload: Workload, *configs: Mapping[str, Any], target: Cpu = AVX512) -> list[float]:
    knobs = {name: np.array([config[name] for config in configs]) for name in configs[0]}
    return SKETCH.estimate(workload, target, knobs).tolist()


def shape_of(workload: Workload) -> ContractionShape:
    return shape_of_contraction(workload.contraction)


def accumulators(columns: Mapping[str, Any], target: Cpu) -> tuple[Any, Any]:
    """Rows of a tile, and vectors of a row."""
    return columns["rows"] * columns.get("rows_outer", 1), -(-columns["columns"] // target.lanes)


@pytest.mark.parametrize("target", [AVX512, AVX2, NEON], ids=["AVX-512", "AVX2", "NEON"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_point_has_a_cost_and_the_origin_the_least(workload: Workload, target: Cpu) -> None:
    space, _, costs = everything(workload, target)
    assert costs.shape == (space.size,)
    assert np.isfinite(costs).all()
    assert (costs > 0).all()
    assert space.contains(space.origin)
    assert list(space.points())[int(np.argmin(costs))] == space.origin
    rows, vectors = accumulators(space.config(space.origin), target)
    in_a_cache = workload.name.startswith("matmul m=1 ")  # whole rows of an operand that is read as it lies
    assert (rows * vectors + vectors < target.registers) != in_a_cache


@pytest.mark.parametrize("target", [AVX512, AVX2, NEON], ids=["AVX-512", "AVX2", "NEON"])
@pytest.mark.parametrize(
    "workload",
    [operators.matmul(512, 512, 512), operators.conv2d(1, 28, 28, 64, 64, 3, 3, pad=1), operators.dense(1, 1000, 2048)],
    ids=lambda workload: workload.name,
)
def test_one_accumulator_waits_for_itself(workload: Workload, target: Cpu) -> None:
    _, columns, costs = everything(workload, target)
    rows, vectors = accumulators(columns, target)
    single = rows * vectors == 1
    assert single.any()
    assert costs[single].min() > 1.5 * costs.min()


def test_what_the_compiler_spills_is_charged() -> None:
    """Neighbouring rows of a depthwise convolution share what they read: registers hold that too."""
    workload = operators.depthwise_conv2d(1, 56, 56, 64, 3, 3, pad=1)
    space = space_of(workload)
    rows, vectors = accumulators(space.config(space.origin), AVX512)
    assert (2 * rows + 1) * vectors <= AVX512.registers
    _, columns, _ = everything(workload, AVX512)
    free = cost_model.cycles(shape_of(workload), columns, AVX512, cost_model.Costs(spill=0.0))
    charged = cost_model.cycles(shape_of(workload), columns, AVX512)
    rows, vectors = accumulators(columns, AVX512)
    fits = (2 * rows + 1) * vectors <= AVX512.registers
    padded = columns["prologue"] == "tile"  # in registers, which hold what the whole tile reads
    assert (charged[padded] > free[padded]).any() and (charged[padded] == free[padded]).any()
    charged, free, fits = charged[~padded], free[~padded], fits[~padded]
    assert fits.any() and not fits.all()
    assert (charged[fits] == free[fits]).all()
    assert (charged >= free).all()
    assert (charged[~fits] > free[~fits]).any()


@pytest.mark.parametrize(
    ("strides", "rows", "count"),
    [
        ((4096,), (16,), 16 * 5),
        ((4096,), (11,), 0),  # few enough to take turns
        ((4096 + 64,), (16,), 0),
        ((2048,), (26,), 2 * 13 * 2),  # every other row shares a set
        ((8192, 4096), (4, 4), 0),  # 16 rows on 10 lines
        ((8192, 64), (4, 4), 0),
        ((4,), (14,), 0),  # one line
    ],
)
def test_rows_that_share_sets_of_the_first_cache(strides: tuple[int, ...], rows: tuple[int, ...], count: int) -> None:
    assert cost_model._conflicts(strides, rows) == count


def test_conflicting_rows_are_charged() -> None:
    shape = shape_of(operators.matmul(512, 512, 1024))
    assert shape.strides == (4096,)
    spread = dataclasses.replace(shape, strides=(4096 + 64,))
    knobs = {
        "rows": np.array([4, 6, 8, 12, 14]),
        "columns": np.full(5, 32),
        "block": np.full(5, 1),
        "unroll": np.full(5, 4),
        "order": np.full(5, "columns"),
        "pack": np.full(5, 1),
    }
    extra = cost_model.cycles(shape, knobs, AVX512) - cost_model.cycles(spread, knobs, AVX512)
    assert (extra[:3] == 0).all()
    assert (extra[3:] > 0).all()


def test_cores_wait_where_tasks_are_few() -> None:
    workload = operators.matmul(48, 128, 64)
    config = {"rows": 16, "columns": 32, "block": 1, "unroll": 4, "order": "rows", "pack": 1}
    configs = [config, config | {"order": "columns"}]
    one, two, five = (
        np.array(estimates(workload, *configs, target=dataclasses.replace(AVX512, cores=cores))) for cores in (1, 2, 5)
    )
    assert one / two == pytest.approx([3 / 2, 2])  # three tasks, and twelve
    assert one / five == pytest.approx([3, 4])


def test_tiles_that_overlap_compute_twice() -> None:
    """48 rows in tiles of 16 or of 14: four tiles of 14 compute 56."""
    workload = operators.matmul(48, 128, 64)
    config = {"rows": 16, "columns": 16, "block": 1, "unroll": 4, "order": "columns", "pack": 1}
    exact, overlapping = estimates(workload, config, config | {"rows": 14})
    assert exact < overlapping


def test_more_work_costs_more() -> None:
    config = {"rows": 8, "columns": 32, "block": 1, "unroll": 4, "order": "columns", "pack": 0}
    base, *larger = (
        estimates(operators.matmul(*sizes), config)[0]
        for sizes in ((64, 64, 64), (128, 64, 64), (64, 128, 64), (64, 64, 128))
    )
    assert all(cost > base for cost in larger)


class Silent:
    """A sketch that does not say what it expects of its schedules."""

    name = "silent"
    max_error = 0.0

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        return Space(self.name, [Ordinal("size", [1, 2, 4])])

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        raise NotImplementedError


def test_a_sketch_that_does_not_tell_has_no_number() -> None:
    assert not isinstance(Silent(), Estimator)
    workload = operators.matmul(64, 64, 64)
    found = registry.sketches_for(workload, AVX512, [Silent(), SKETCH])
    space = space_of(workload)
    expected = knowledge.prior(found, workload, AVX512)
    assert expected is not None
    points = list(space.points())[:7]
    mixed = [Candidate("silent", (1,)), *(Candidate(space.name, point) for point in points), Candidate("silent", (2,))]
    costs = expected(mixed)
    assert np.isnan(costs[[0, -1]]).all()
    assert costs[1:-1].tolist() == SKETCH.estimate(workload, AVX512, space.columns(points)).tolist()
    assert np.isnan(expected(mixed[:1])).all()
    assert expected([]).shape == (0,)
    assert knowledge.prior(found[:1], workload, AVX512) is None


@pytest.mark.parametrize(
    ("workload", "parallel"),
    [
        (operators.matmul(1, 192, 64), False),  # a step of a recurrent layer
        (operators.matmul(1, 256, 128), True),
        (operators.conv2d(1, 9, 9, 4, 8, 3, 3, pad=1), False),
        (operators.conv2d(1, 9, 9, 8, 8, 3, 3, pad=1), True),
    ],
    ids=lambda value: getattr(value, "key", None),
)
def test_what_takes_a_microsecond_wakes_no_threads(workload: Workload, parallel: bool) -> None:
    space = space_of(workload)
    for point in (space.origin, *space.neighbours(space.origin)):
        main = SKETCH.apply(workload, AVX512, space.config(point)).main
        assert ("T.parallel" in main.script()) is parallel


def test_one_thread_has_no_use_for_many_cores() -> None:
    many = dataclasses.replace(AVX512, cores=8)
    for workload, helps in ((operators.matmul(1, 192, 64), False), (operators.matmul(64, 1024, 64), True)):
        spaces = {target: space_of(workload, target) for target in (AVX512, many)}
        two, eight = (
            float(SKETCH.estimate(workload, target, space.columns([space.origin]))[0])
            for target, space in spaces.items()
        )
        assert (eight < two) is helps
