"""The bound of rounding: right kernels keep it in every order of summation, and lower precision does not."""

from __future__ import annotations

import numpy as np
import pytest

from stormdrop import operators
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.error_bounds import rounding_bounds, varied_inputs
from stormdrop.measure.worker.output_check import excess


@pytest.mark.parametrize("k", [1, 7, 64, 2048])
@pytest.mark.parametrize("seed", range(3))
def test_sums_in_float32_keep_the_bound_and_in_less_they_do_not(k: int, seed: int) -> None:
    workload = operators.matmul(24, 24, k)
    a, b = varied_inputs(workload, seed)
    (expected,) = workload.reference([a, b])
    (allowed,) = rounding_bounds(workload, [a, b])
    forwards, backwards = np.zeros((24, 24), "float32"), np.zeros((24, 24), "float32")
    low = np.zeros((24, 24), "float32")
    for step in range(k):
        forwards += np.outer(a[:, step], b[step])
        backwards += np.outer(a[:, k - 1 - step], b[k - 1 - step])
        low = ((low + np.outer(a[:, step], b[step])).view("uint32") & 0xFFFF0000).view("float32")
    assert excess("c", forwards, expected, allowed) == ""
    assert excess("c", backwards, expected, allowed) == ""
    assert excess("c", a @ b, expected, allowed) == ""
    assert "differ by more than rounding allows" in excess("c", low, expected, allowed)
    with np.errstate(over="ignore"):
        half = forwards.astype("float16").astype("float32")
    assert "differ by more than rounding allows" in excess("c", half, expected, allowed)


def test_the_inputs_are_varied_and_always_the_same() -> None:
    workload = operators.matmul(64, 64, 64)
    (a, b), again = varied_inputs(workload, 0), varied_inputs(workload, 0)
    assert np.array_equal(a, again[0]) and not np.array_equal(a, varied_inputs(workload, 1)[0])
    assert not np.array_equal(a, b)
    magnitudes = np.abs(a[a != 0])
    assert magnitudes.max() > 500 and magnitudes.min() < 2e-3
    assert 0.02 < np.mean(a == 0) < 0.1 and 0.4 < np.mean(a < 0) < 0.6
    assert np.mean(a.reshape(-1, 8)[:, 0] == -a.reshape(-1, 8)[:, 1]) > 0.85


def test_float16_has_a_bound_that_fits_its_precision() -> None:
    workload = operators.matmul(16, 16, 256, dtype="float16")
    inputs = varied_inputs(workload, 0)
    (expected,), (allowed,) = workload.reference(inputs), rounding_bounds(workload, inputs)
    right = (inputs[0].astype("float32") @ inputs[1].astype("float32")).astype("float16")
    assert np.isfinite(right).all()
    assert excess("c", right, expected, allowed) == ""
    wrong = right.copy()
    wrong[3, 4] += np.float16(0.1) * np.abs(expected).max()
    assert excess("c", wrong, expected, allowed).startswith("c[3, 4] is ")


@pytest.mark.parametrize(
    "workload",
    [
        operators.conv2d(1, 6, 6, 8, 8, 3, 3, 1, 1, bias=1, act="relu"),
        operators.depthwise_conv2d(1, 6, 6, 8, 3, 3, 1, 1),
        operators.pool2d(1, 6, 6, 4, 3, 3, 2, 1, "max"),
        operators.pool2d(1, 6, 6, 4, 3, 3, 2, 1, "avg"),
        operators.reduce((4, 8, 6), 1, "sum"),
        operators.elementwise((4, 6), "relu"),
    ],
    ids=lambda workload: str(workload.name),
)
def test_a_reference_in_float32_keeps_the_bound(workload: object) -> None:
    """The inputs are rounded to fewer bits, which must not stay unnoticed, and to none, which must."""
    from stormdrop.ir.workload import Workload

    assert isinstance(workload, Workload)
    inputs = varied_inputs(workload, 0)
    (expected,), (allowed,) = workload.reference(inputs), rounding_bounds(workload, inputs)
    assert excess("y", expected, expected, allowed) == ""
    assert allowed.max() < 1e-4 * np.abs(expected).max()
    low = [(array.view("uint32") & 0xFFFF0000).view("float32") for array in inputs]
    assert excess("y", workload.reference(low)[0], expected, allowed)


@pytest.mark.parametrize("workload", [operators.softmax(4, 8), operators.elementwise((4, 6), "gelu")])
def test_functions_that_hold_more_than_sums_have_no_bound(workload: object) -> None:
    from stormdrop.ir.workload import Workload

    assert isinstance(workload, Workload)
    with pytest.raises(UnsupportedFunction, match="has no bound"):
        rounding_bounds(workload, varied_inputs(workload, 0))
