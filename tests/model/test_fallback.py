from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from stormdrop.codegen.compile import compile_kernel
from stormdrop.ir.reference import evaluate
from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.fallback import schedule_fallback

pytestmark = pytest.mark.compiles


def scale_relu() -> tirx.PrimFunc:
    x = te.placeholder((64, 128), name="x")
    doubled = te.compute((64, 128), lambda i, j: x[i, j] * 2.0, name="doubled")
    return te.create_prim_func([x, te.compute((64, 128), lambda i, j: te.max(doubled[i, j], 0.0), name="y")])


def row_sums() -> tirx.PrimFunc:
    x = te.placeholder((64, 128), name="x")
    k = te.reduce_axis((0, 128))
    return te.create_prim_func([x, te.compute((64, 1), lambda i, j: te.sum(x[i, k], axis=k), name="y")])


def column_sums() -> tirx.PrimFunc:
    x = te.placeholder((3, 64, 128), name="x")
    k = te.reduce_axis((0, 64))
    return te.create_prim_func([x, te.compute((3, 128), lambda i, j: te.sum(x[i, k, j], axis=k), name="y")])


def tiny() -> tirx.PrimFunc:
    x = te.placeholder((7,), name="x")
    return te.create_prim_func([x, te.compute((7,), lambda i: x[i] + 1.0, name="y")])


@pytest.mark.parametrize(
    ("make", "reached", "marks"),
    [
        (scale_relu, "parallel, vectorised", ("T.parallel", "T.vectorized")),
        (row_sums, "parallel", ("T.parallel",)),
        (column_sums, "parallel, vectorised", ("T.parallel", "T.vectorized")),
        (tiny, "parallel, vectorised", ()),
    ],
)
def test_schedules_say_what_they_are_and_compute_the_same(
    make: Callable[[], tirx.PrimFunc], reached: str, marks: tuple[str, ...], target: Cpu
) -> None:
    function = make()
    fallback = schedule_fallback(function)
    assert fallback.reached == reached
    text = fallback.function.script()
    assert all(mark in text for mark in marks)
    arrays = [_integers(parameter) for parameter in function.params]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(fallback.function, target.tvm()).jit()["main"](*tensors)
    (expected,) = evaluate(function, arrays[:1])
    assert np.array_equal(tensors[-1].numpy(), expected)


def test_elementwise_chain_is_one_loop_nest() -> None:
    assert "doubled" not in schedule_fallback(scale_relu()).function.script()


def _integers(parameter: Any) -> np.ndarray:
    shape = tuple(int(extent) for extent in parameter.shape)
    return np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)


def test_marks_of_scopes_are_dropped_and_nothing_is_said(target: Cpu, capfd: pytest.CaptureFixture[str]) -> None:
    from tvm import topi

    x, index = te.placeholder((8,), name="x"), te.placeholder((2,), "int64", name="index")
    values = te.placeholder((2,), name="values")
    function = te.create_prim_func([x, index, values, topi.index_put(x, [index], values)])
    assert "pragma_scope" in function.script()
    fallback = schedule_fallback(function)
    assert fallback.reached == "plain" and "pragma_scope" not in fallback.function.script()
    arrays = [np.zeros(8, "float32"), np.array([3, 1]), np.ones(2, "float32"), np.empty(8, "float32")]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    capfd.readouterr()
    tvm.compile(fallback.function, target.tvm()).jit()["main"](*tensors)
    assert "pragma" not in capfd.readouterr().err
    assert tensors[-1].numpy().tolist() == [0, 1, 0, 1, 0, 0, 0, 0]


def turned_pairs() -> tirx.PrimFunc:
    """Pairs of numbers, each half of a row apart, as rotary embeddings have them."""
    x, turns = te.placeholder((3, 3, 16), name="x"), te.placeholder((2, 3, 8), name="turns")

    def value(h: Any, s: Any, d: Any) -> Any:
        own, other = x[s, h, d], x[s, h, (1 - d // 8) * 8 + d % 8]
        return own * turns[0, s, d % 8] + tirx.Select(d // 8 == 0, -other, other) * turns[1, s, d % 8]

    pairs = te.compute((3, 3, 16), value, name="pairs")
    joined = te.compute((9, 16), lambda row, d: pairs[row // 3, row % 3, d], name="joined")
    return te.create_prim_func([x, turns, joined])


def test_what_is_behind_a_modulo_is_read_where_it_stands(target: Cpu) -> None:
    """LLVM 22 reads elsewhere, if it makes vectors of these loops for a CPU with AVX-512."""
    function = turned_pairs()
    arrays = [_integers(parameter) for parameter in function.params]
    (expected,) = evaluate(function, arrays[:-1])
    kernel = compile_kernel(schedule_fallback(function).function, target.tvm())
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    kernel.call(*tensors)
    np.testing.assert_array_equal(tensors[-1].numpy(), expected)
