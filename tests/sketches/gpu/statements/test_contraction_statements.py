"""Features of a tiled contraction's statements, computed from its knobs, are those that TVM extracts of schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import te, tirx

from stormdrop import operators, parse_machine
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import Gpu, require_gpu
from stormdrop.machine.opencl import OpenCl, OpenClInfo
from stormdrop.sketches.gpu.contraction import GpuContraction
from stormdrop.sketches.statement_features import extractor
from stormdrop.space import Space
from stormdrop.trial import Point


def own_operands() -> Workload:
    """A product of matrices to which one of its operands is added, and which is compared with the other."""
    x, w, k = te.placeholder((96, 96), name="x"), te.placeholder((96, 96), name="w"), te.reduce_axis((0, 96))
    product = te.compute((96, 96), lambda i, j: te.sum(x[i, k] * w[k, j], k), name="product")
    y = te.compute((96, 96), lambda i, j: tirx.max(product[i, j], w[j, i]) + x[i, j], name="y")
    return Workload.create("own operands", te.create_prim_func([x, w, y]))


A100 = require_gpu(parse_machine("cuda/a100"))
conv2d = operators.conv2d
WORKLOADS = {
    "matmul": operators.matmul(96, 192, 384),
    "dense": operators.dense(64, 96, 128, bias=1),
    "convolution": conv2d(1, 28, 28, 64, 32, 3, 3, pad=1),
    "small": conv2d(1, 7, 7, 64, 32, 3, 3, pad=1, bias=1, act="relu"),
    "first": conv2d(1, 32, 32, 3, 16, 7, 7, pad=3, stride=2),
    "even window": conv2d(1, 16, 16, 16, 32, 4, 4, pad=1, stride=2),
    "order of terms": conv2d(1, 35, 62, 5, 16, 3, 4, pad=3, bias=1, act="relu6"),
    "common factors": conv2d(4, 48, 15, 8, 16, 4, 2, pad=2, stride=2, bias=1, act="relu6"),
    "dilated": conv2d(1, 30, 27, 24, 16, 3, 5, pad=2, dilation=2),
    "gaps beside steps": conv2d(1, 55, 18, 5, 16, 1, 7, pad=3, stride=2),
    "gaps": conv2d(1, 56, 56, 64, 32, 1, 1, stride=2),
    "batch": conv2d(2, 57, 57, 24, 36, 3, 3, pad=1, stride=2),
    "own operands": own_operands(),
    "depthwise": operators.depthwise_conv2d(1, 28, 28, 32, 3, 3, pad=1),
}


def of_tvm(workload: Workload, target: Gpu, sketch: GpuContraction, space: Space, points: list[Point]) -> list[Any]:
    extract = extractor(workload, target, threads=1)
    return extract([sketch.apply(workload, target, space.config(point)).main for point in points])


def compared(workload: Workload, target: Gpu, sketch: GpuContraction, number: int, seed: int) -> float:
    """Compares random points with TVM, to the last bit. Returns the share of points that are known."""
    space = sketch.space(workload, target)
    assert space is not None
    rng = np.random.default_rng(seed)
    points = [space.sample(rng) for _ in range(number)]
    stated = sketch.statements(workload, target, space.columns(points))
    assert stated is not None
    rows, known = stated
    chosen = np.flatnonzero(known).tolist()
    expected = of_tvm(workload, target, sketch, space, [points[index] for index in chosen])
    for index, right in zip(chosen, expected, strict=True):
        np.testing.assert_array_equal(rows[index], right, err_msg=str(space.config(points[index])))
    return len(chosen) / number


@pytest.mark.parametrize("name", ["convolution", "matmul"])
def test_some_points_are_equal(name: str) -> None:
    assert compared(WORKLOADS[name], A100, GpuContraction(listing_1=True), 8, seed=0) == 1.0


@pytest.mark.long
@pytest.mark.any_cpu
@pytest.mark.parametrize("name", WORKLOADS)
def test_many_points_are_equal(name: str) -> None:
    assert compared(WORKLOADS[name], A100, GpuContraction(listing_1=True), 24, seed=1) > 0.4


@pytest.mark.parametrize("name", ["matmul", "first", "gaps beside steps"])
def test_a_batch_gives_what_its_points_give_one_by_one(name: str) -> None:
    workload, sketch = WORKLOADS[name], GpuContraction(listing_1=True)
    space = sketch.space(workload, A100)
    assert space is not None
    rng = np.random.default_rng(4)
    points = [space.sample(rng) for _ in range(12)]
    together = sketch.statements(workload, A100, space.columns(points))
    assert together is not None
    for point, rows, known in zip(points, *together, strict=True):
        alone = sketch.statements(workload, A100, space.columns([point]))
        assert alone is not None
        np.testing.assert_array_equal(alone[0], rows[None])
        assert alone[1].tolist() == [known]


def test_points_are_equal_for_opencl() -> None:
    info = OpenClInfo(0, "Radeon RX 7900 XT", "AMD", "1", False, 256, 64 << 10, 84, 2400, True)
    target = OpenCl.of(info)
    assert compared(WORKLOADS["small"], target, GpuContraction(listing_1=True), 6, seed=2) == 1.0


def test_a_point_in_parts_or_stages_is_not_known() -> None:
    workload, sketch = WORKLOADS["matmul"], GpuContraction()
    space = sketch.space(workload, A100)
    assert space is not None
    rng = np.random.default_rng(3)
    columns = space.columns([space.sample(rng) for _ in range(60)])
    stated = sketch.statements(workload, A100, columns)
    assert stated is not None
    np.testing.assert_array_equal(stated[1], (columns["parts"] == 1) & (columns["stages"] == 1))
    assert 0 < stated[1].sum() < 60
    assert compared(workload, A100, sketch, 20, seed=3) > 0


@pytest.mark.parametrize(
    "workload",
    [
        operators.dense(64, 96, 128, bias=1, act="gelu"),
        operators.matmul(64, 64, 64, dtype="int8"),
    ],
    ids=["gelu", "int8"],
)
def test_other_functions_are_left_to_tvm(workload: Workload) -> None:
    sketch = GpuContraction()
    space = sketch.space(workload, A100)
    assert space is not None
    assert sketch.statements(workload, A100, space.columns([space.origin])) is None
