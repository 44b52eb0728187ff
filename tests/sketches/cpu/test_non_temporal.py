"""Stores past the caches: when they are a choice, that they are made, and that the results are right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stand_ins.cpus import cpu
from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.cpu.non_temporal import NON_TEMPORAL, STORES, stores_knob
from stormdrop.sketches.registry import sketches_for
from stormdrop.space import Categorical, Space
from stormdrop.testing.sketches import check_point

WITHOUT_CACHES = replace(Cpu.detect(), l2=1, l3=1)
HAS_NON_TEMPORAL = bool(stores_knob(operators.elementwise(shape=(64,)), WITHOUT_CACHES))


def test_a_choice_where_results_are_larger_than_the_caches() -> None:
    target = cpu("cpu/x86-64-v3")  # 4 cores of 256 KiB, and 8 MiB
    assert not stores_knob(operators.elementwise(shape=(9 << 18,)), target)
    (knob,) = stores_knob(operators.elementwise(shape=(9 << 18 | 1,)), target)
    assert isinstance(knob, Categorical) and (knob.name, knob.values[0]) == (STORES, NON_TEMPORAL)


def test_no_choice_where_the_caches_are_not_known() -> None:
    target = replace(cpu("cpu/x86-64-v3"), l2=0, l3=0)
    assert not stores_knob(operators.elementwise(shape=(1 << 26,)), target)


def test_no_choice_where_no_fence_orders_them() -> None:
    assert not stores_knob(operators.elementwise(shape=(1 << 26,)), cpu("cpu/neoverse-n1"))


@pytest.mark.compiles
@pytest.mark.skipif(not HAS_NON_TEMPORAL, reason="no non-temporal stores on this machine")
@pytest.mark.parametrize(
    "workload",
    [
        operators.elementwise(shape=(33, 40)),
        operators.depthwise_conv2d(n=2, h=9, w=9, ci=20, kh=3, kw=3, pad=1, bias=1, act="relu"),
        operators.pool2d(n=2, h=9, w=9, c=36, kh=2, kw=2, stride=2),
        operators.matmul(m=33, n=52, k=17),
        operators.softmax(m=20, n=36),
        # Vectors begin at an offset of their tile.
        operators.concatenate((8,), (64,), 0),
        operators.concatenate((24,), (40,), 0),
        operators.concatenate((5, 24), (5, 40), 1),
        operators.matmul(m=33, n=64, k=17).placed(8, 96),
        operators.matmul(m=33, n=64, k=17).placed(4, 100),
    ],
    ids=str,
)
@pytest.mark.parametrize("stores", [NON_TEMPORAL, "cached"])
def test_results_are_right(workload: Workload, stores: str) -> None:
    applying = [(sketch, space, _stores_index(space)) for sketch, space in sketches_for(workload, WITHOUT_CACHES)]
    choices = [(sketch, space, index) for sketch, space, index in applying if index is not None]
    assert choices
    for sketch, space, index in choices:
        point = list(space.origin)
        point[index] = 0 if stores == NON_TEMPORAL else 1
        assert space.config(tuple(point))[STORES] == stores
        check_point(sketch, workload, WITHOUT_CACHES, space, tuple(point))


def _stores_index(space: Space) -> int | None:
    """The index of the knob `stores`; None if the space does not have it."""
    return next((index for index, knob in enumerate(space.knobs) if knob.name == STORES), None)
