"""Derived sketches of contractions: every point schedules and is right to the last element."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te

from stormdrop import operators
from stormdrop.ir.reference import evaluate
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.rules import derive
from stormdrop.testing.sketches import check_sketch

pytestmark = pytest.mark.compiles

TARGET = Cpu.detect()


def chain() -> Workload:
    """Two contractions with an activation between them; the second operand of the second is computed, too."""
    x, w, v = (te.placeholder(shape, name=name) for name, shape in (("x", (8, 6)), ("w", (6, 12)), ("v", (12, 6))))
    r, s = te.reduce_axis((0, 6), name="r"), te.reduce_axis((0, 12), name="s")
    first = te.compute((8, 12), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), name="first")
    active = te.compute((8, 12), lambda i, j: te.max(first[i, j], 0.0), name="active")
    squashed = te.compute((12, 6), lambda i, j: te.tanh(v[i, j]), name="squashed")
    second = te.compute((8, 6), lambda i, j: te.sum(active[i, s] * squashed[s, j], axis=s), name="second")
    y = te.compute((8, 6), lambda i, j: second[i, j] + x[i, j], name="y")
    return Workload.create("chain", te.create_prim_func([x, w, v, y]), constants=(1,))


@pytest.mark.parametrize(
    "workload",
    [
        operators.matmul(6, 20, 4),
        operators.dense(6, 20, 4, bias=1, act="relu"),
        operators.conv2d(1, 4, 4, 2, 8, 3, 3, pad=1, bias=1, act="relu"),
        operators.depthwise_conv2d(1, 4, 4, 6, 3, 3, stride=2, pad=1),
    ],
    ids=lambda workload: workload.name,
)
def test_every_sketch_is_right(workload: Workload) -> None:
    for sketch in derive(workload, TARGET):
        check_sketch(sketch, workload, TARGET)


def test_contractions_that_feed_each_other() -> None:
    workload = chain()
    sketches = derive(workload, TARGET)
    assert len({sketch.name for sketch in sketches}) == len(sketches) > 2
    for sketch in (sketches[0], sketches[-1]):
        check_sketch(sketch, workload, TARGET, samples=3)


def read_twice() -> Workload:
    x, w = te.placeholder((6, 5), name="x"), te.placeholder((5, 8), name="w")
    r = te.reduce_axis((0, 5), name="r")
    product = te.compute((6, 8), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), name="product")
    y = te.compute((6, 8), lambda i, j: product[i, j] - product[i, 0], name="y")
    return Workload.create("read twice", te.create_prim_func([x, w, y]))


@pytest.mark.parametrize(
    "workload",
    [read_twice(), operators.conv2d(1, 6, 6, 4, 12, 3, 3, pad=1, groups=2)],
    ids=lambda workload: workload.name,
)
def test_what_is_read_at_other_places_is_neither_cached_nor_cut(workload: Workload) -> None:
    for sketch in derive(workload, TARGET):
        check_sketch(sketch, workload, TARGET, samples=3)


def test_a_contraction_with_few_results_is_factored() -> None:
    workload = operators.matmul(2, 2, 96)
    (sketch,) = [sketch for sketch in derive(workload, TARGET) if sketch.name == "rules.rfactor"]
    check_sketch(sketch, workload, TARGET, samples=3)


def test_a_constant_operand_is_packed_in_the_order_of_the_tiles() -> None:
    workload = operators.dense(4, 12, 6)
    sketch = next(sketch for sketch in derive(workload, TARGET) if sketch.name == "rules.tile")
    config = {"s0_i0": (4, 1, 1, 1), "s0_i1": (1, 3, 2, 2), "s0_r2": (3, 2), "unroll": 0}
    transform = sketch.apply(workload, TARGET, config).transforms[1]
    weight = np.arange(12 * 6, dtype=np.float32).reshape(12, 6)
    (packed,) = evaluate(transform, [weight])
    # n = (n0, n1, n2, n3), k = (k0, k1); in memory n0 n1 k0 n2 k1 n3
    expected = weight.reshape(1, 3, 2, 2, 3, 2).transpose(0, 1, 4, 2, 5, 3)
    assert packed.shape == expected.shape
    np.testing.assert_array_equal(packed, expected)
