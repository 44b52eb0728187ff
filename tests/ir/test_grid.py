"""Expressions over a grid: where the values of a stage are written, against loops over all of its axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm.ir import Var
from tvm.tirx import const, decl_buffer, reinterpret

from stormdrop.ir.grid import GridEvaluator, store
from stormdrop.ir.stages import Axis, Stage

EXTENTS = (2, 3, 4)
INDICES: dict[str, tuple[tuple[int, ...], Callable[..., tuple[Any, ...]]]] = {
    "in order": ((2, 3, 4), lambda i, j, k: (i, j, k)),
    "transposed": ((4, 2, 3), lambda i, j, k: (k, i, j)),
    "inside a larger buffer": ((4, 6, 9), lambda i, j, k: (i + 1, j * 2, k + 5)),
    "at one place of a dimension": ((2, 3, 7, 4), lambda i, j, k: (i, j, 6, k)),
    "backwards": ((2, 3, 4), lambda i, j, k: (1 - i, j, k)),
    "two axes in a dimension": ((6, 4), lambda i, j, k: (i * 3 + j, k)),
    "all axes in a dimension": ((24,), lambda i, j, k: ((i * 3 + j) * 4 + k,)),
}


def stage_of(name: str) -> tuple[Stage, tuple[int, ...]]:
    shape, indices = INDICES[name]
    axes = tuple(Axis(Var(name, "int32"), extent) for name, extent in zip("ijk", EXTENTS, strict=True))
    buffer = decl_buffer(shape, "float32", "out")
    written = tuple(
        const(index, "int32") if isinstance(index, int) else index for index in indices(*(axis.var for axis in axes))
    )
    value = const(0.0, "float32")
    return Stage(name, axes, buffer, written, value), shape


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("broadcast", [(2, 3, 4), (1, 3, 1), ()], ids=str)
def test_values_are_written_where_the_indices_say(name: str, broadcast: tuple[int, ...]) -> None:
    stage, shape = stage_of(name)
    value = np.arange(1.0, 1.0 + np.prod(broadcast, dtype=int)).reshape(broadcast)
    result, expected = np.zeros(shape), np.zeros(shape)
    store(stage, result, value, {})
    whole = np.broadcast_to(value, EXTENTS)
    for position in np.ndindex(EXTENTS):
        place = INDICES[name][1](*position)
        expected[place] = whole[position]
    assert np.array_equal(result, expected)


def test_a_part_of_an_axis_is_written_at_its_offset() -> None:
    stage, shape = stage_of("in order")
    first = stage.axes[0]
    part = Stage(stage.name, (Axis(first.var, 1), *stage.axes[1:]), stage.buffer, stage.indices, stage.value)
    result = np.zeros(shape)
    store(part, result, np.ones((1, 3, 4)), {first.var: 1})
    assert result[0].sum() == 0 and result[1].sum() == 12


@pytest.mark.parametrize(("begin", "step"), [(-1, 1), (0, 2), (2, -1), (1, 1)])
def test_loads_outside_of_a_buffer_are_clipped(begin: int, step: int) -> None:
    axes = (Axis(Var("i", "int32"), 5), Axis(Var("j", "int32"), 2))
    buffer = decl_buffer((2, 3), "float32", "x")
    values = np.arange(6.0).reshape(2, 3)
    loaded = GridEvaluator(axes, {buffer: values}, {})(buffer[axes[1].var, axes[0].var * step + begin])
    expected = [[values[j, min(max(i * step + begin, 0), 2)] for j in range(2)] for i in range(5)]
    assert loaded.tolist() == expected


def test_bits_become_numbers_and_numbers_bits() -> None:
    numbers = np.array([0.0, 1.0, -2.5, 3.0e38, np.inf, np.nan], np.float32)
    axis, buffer = Axis(Var("i", "int32"), len(numbers)), decl_buffer(numbers.shape, "float32", "x")
    evaluate = GridEvaluator([axis], {buffer: numbers.astype(np.float64)}, {})
    bits = reinterpret("uint32", buffer[axis.var])
    np.testing.assert_array_equal(evaluate(bits), numbers.view(np.uint32))
    np.testing.assert_array_equal(evaluate(reinterpret("float32", bits)), numbers)
