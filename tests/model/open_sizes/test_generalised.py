"""Functions that several functions are at any size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.tirx import PrimFunc

from stormdrop.errors import UnsupportedFunction
from stormdrop.model.open_sizes.generalised import OpenFunction
from stormdrop.model.open_sizes.probes import Probes

SIZES = (4, 9, 16, 33)
PROBES = Probes([{"n": n} for n in SIZES])


def scaled(n: int, factor: float = 2.0, width: int = 8) -> PrimFunc:
    x = te.placeholder((n, width), name="x")
    return te.create_prim_func([x, te.compute((n, width), lambda i, j: x[n - 1 - i, j] * factor, name="y")])


def test_it_is_each_of_them() -> None:
    opened = OpenFunction([scaled(n) for n in SIZES], PROBES)
    for n in (*SIZES, 100):
        tvm.ir.assert_structural_equal(opened.at({"n": n}), scaled(n))


@pytest.mark.compiles
def test_its_kernel_takes_any_size() -> None:
    kernel = tvm.compile(OpenFunction([scaled(n) for n in SIZES], PROBES).with_variables(), target="llvm")
    for n in (1, 7, 50):
        x = np.random.default_rng(n).normal(size=(n, 8)).astype("float32")
        y = tvm.runtime.tensor(np.zeros_like(x))
        kernel(tvm.runtime.tensor(x), y)
        np.testing.assert_array_equal(y.numpy(), 2 * x[::-1])


def test_a_function_without_a_size_is_not_open() -> None:
    tvm.ir.assert_structural_equal(OpenFunction([scaled(7)] * 4, PROBES).at({"n": 100}), scaled(7))


@pytest.mark.parametrize(
    "made",
    [
        lambda n: scaled(n, factor=float(n)),
        lambda n: scaled(n) if n < 10 else te.create_prim_func([te.placeholder((n,), name="x")]),
        lambda n: scaled({4: 4, 9: 8, 16: 16, 33: 32}[n]),
    ],
    ids=["a_number_of_floats", "other_statements", "no_terms"],
)
def test_others_are_refused(made: Callable[[int], PrimFunc]) -> None:
    with pytest.raises(UnsupportedFunction):
        OpenFunction([made(n) for n in SIZES], PROBES)


def test_no_argument_has_the_parameter_as_extent() -> None:
    opened = OpenFunction([scaled(2 * n) for n in SIZES], PROBES)
    with pytest.raises(UnsupportedFunction, match="none of its arguments has n as an extent"):
        opened.with_variables()


def test_vectors_have_fixed_lengths() -> None:
    def vectorized(n: int) -> PrimFunc:
        schedule = tvm.s_tir.Schedule(scaled(n))
        schedule.vectorize(schedule.get_loops(schedule.get_sblock("y"))[0])
        return schedule.mod["main"]

    with pytest.raises(UnsupportedFunction, match="open extent"):
        OpenFunction([vectorized(n) for n in SIZES], PROBES).with_variables()
