"""Fully connected layers with codes for weights: what they compute, and that every point of their space is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stormdrop import operators
from stormdrop.errors import OperatorError
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.sketches.cpu.contractions.tiled_contraction import BY_COLUMN, DECODE_PER_TASK, MIXED
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing.sketches import check_points, covering_points, run_all


def decoded(codes: np.ndarray, scale: np.ndarray, zero: np.ndarray, bits: int) -> np.ndarray:
    """The weights that codes stand for, by the formula of the docstring."""
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
    group = codes.shape[1] // scale.shape[1]
    spread = np.repeat(zero.astype(np.float64), group, axis=1), np.repeat(scale.astype(np.float64), group, axis=1)
    return (codes.astype(np.float64) - spread[0]) * spread[1]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero_points", [0, 1])
def test_the_reference_follows_the_formula(bits: int, zero_points: int) -> None:
    workload = operators.weight_only_dense(3, 20, 64, bits, 16, zero_points, bias=1, act="relu")
    inputs = workload.random_inputs(1)
    a, codes, *rest = inputs
    zero = rest.pop(0) if zero_points else np.full((20, 4), 2 ** (bits - 1), np.uint8)
    scale, bias = rest
    assert codes.max() > 200, "both halves of a byte are tried"
    expected = np.maximum(a @ decoded(codes, scale, zero, bits).T + bias, 0)
    np.testing.assert_array_equal(workload.reference(inputs)[0], expected)
    assert workload.constants == tuple(range(1, len(inputs)))


@pytest.mark.compiles
@pytest.mark.parametrize(
    "workload",
    [
        operators.weight_only_dense(1, 40, 64, bits=4, group=32),
        operators.weight_only_dense(5, 33, 96, bits=4, group=32, zero_points=1, bias=1, act="silu"),
        operators.weight_only_dense(1, 24, 128, bits=8, group=128, residual=1),
        operators.weight_only_dense(16, 17, 30, bits=4, group=2, zero_points=1),
        operators.weight_only_dense(3, 20, 31, bits=8, group=31, zero_points=1),
    ],
    ids=lambda workload: workload.name.replace(" ", "-"),
)
def test_points_of_the_space_are_right(workload: Workload) -> None:
    target = Cpu.detect()
    inputs = workload.random_inputs(0)
    (expected,) = workload.reference(inputs)
    allowed = workload.tolerance([expected])
    assert "register_blocked" in [sketch.name for sketch, _ in sketches_for(workload, target)]
    for sketch, space in sketches_for(workload, target):
        configs = [space.config(point) for point in covering_points(space)]
        variants = [sketch.apply(workload, target, config) for config in configs]
        for config, (result,) in zip(configs, run_all(variants, workload, target, inputs), strict=True):
            error = np.abs(result - expected).max() / np.abs(expected).max()
            assert error <= max(allowed, sketch.max_error), (sketch.name, config)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bits": 3}, "bits=3 must be 4 or 8"),
        ({"group": 24}, "group=24 must divide k=64 and be even for bits=4"),
        ({"group": 64, "bits": 8, "zero_points": 2}, "zero_points=2 must be 0 or 1"),
    ],
)
def test_arguments_that_make_no_sense_are_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=f"^weight_only_dense: {message}$"):
        operators.weight_only_dense(1, 8, 64, **arguments)


@pytest.mark.compiles
@pytest.mark.parametrize(
    "workload",
    [
        operators.weight_only_dense(37, 50, 96, bits=4, group=32, zero_points=1, bias=1, act="relu"),
        operators.weight_only_dense(19, 33, 60, bits=8, group=20, residual=1),
        operators.weight_only_dense(64, 16, 128, bits=8, group=128),
    ],
    ids=lambda workload: workload.name.replace(" ", "-"),
)
def test_panels_that_a_task_decodes_are_right(workload: Workload) -> None:
    target, sketch = Cpu.detect(), RegisterBlocked()
    space = sketch.space(workload, target)
    assert space is not None
    points = [point for point in covering_points(space, 2) if space.config(point)["decode"] == DECODE_PER_TASK]
    assert {space.config(point)["order"] for point in points} == {BY_COLUMN, MIXED}, "a task has one panel"
    check_points(sketch, workload, target, space, points)


def test_panels_are_decoded_once_if_there_are_many_rows() -> None:
    target = parse_machine("cpu/x86-64-v3")
    assert isinstance(target, Cpu)
    for rows, once in ((128, True), (1, None)):
        space = RegisterBlocked().space(operators.weight_only_dense(rows, 256, 256), target)
        assert space is not None
        decode = space.config(space.origin).get("decode")
        assert decode == (DECODE_PER_TASK if once else None)
    numbers = RegisterBlocked().space(operators.dense(128, 256, 256), target)
    assert numbers is not None
    assert "decode" not in numbers.config(numbers.origin)
