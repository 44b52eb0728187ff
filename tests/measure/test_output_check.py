"""Which outputs count as right, and what an output holds before a kernel writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stormdrop.measure.worker.output_check import difference, fill

NAN, INF = float("nan"), float("inf")


def floats(*values: float) -> Any:
    return np.array(values, "float32")


@pytest.mark.parametrize("tolerance", [0.0, 1e-4])
def test_the_same_values_that_are_not_finite_are_equal(tolerance: float) -> None:
    expected = floats(1, NAN, INF, -INF)
    assert difference("out", expected.copy(), expected, tolerance) == ""
    assert difference("out", floats(NAN, NAN), floats(NAN, NAN), tolerance) == ""


@pytest.mark.parametrize("tolerance", [0.0, 1e-4])
@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        (7, NAN, "out[1] is 7, not nan; 1 of 2 elements"),
        (NAN, 7, "out[1] is nan, not 7; 1 of 2 elements"),
        (INF, NAN, "out[1] is inf, not nan; 1 of 2 elements"),
        (-INF, INF, "out[1] is -inf, not inf; 1 of 2 elements"),
        (7, INF, "out[1] is 7, not inf; 1 of 2 elements"),
        (INF, 7, "out[1] is inf, not 7; 1 of 2 elements"),
    ],
)
def test_other_values_that_are_not_finite_differ(
    tolerance: float, actual: float, expected: float, message: str
) -> None:
    assert difference("out", floats(1, actual), floats(1, expected), tolerance).startswith(message)


def test_an_expected_infinity_allows_no_error_elsewhere() -> None:
    assert difference("out", floats(1.5, INF), floats(1, INF), 1e-4).startswith("out[0] is 1.5, not 1; 1 of 2")
    assert difference("out", floats(1.5, NAN), floats(1, NAN), 1e-4).startswith("out[0] is 1.5, not 1; 1 of 2")
    assert difference("out", floats(1.00001, INF), floats(1, INF), 1e-4) == ""


def test_the_tolerance_is_relative_to_the_largest_element() -> None:
    assert difference("out", floats(0.005, 100), floats(0, 100), 1e-4) == ""
    assert difference("out", floats(0.02, 100), floats(0, 100), 1e-4) == (
        "out[0] is 0.02, not 0; 1 of 2 elements differ by more than 0.01"
    )
    assert difference("out", floats(0, 100.001), floats(0, 100), 0.0).startswith("out[1] is 100.001, not 100")


def test_truth_values_and_integers() -> None:
    yes, no = np.array([True, True]), np.array([True, False])
    assert difference("out", yes, no, 0.0).startswith("out[1] is 1, not 0; 1 of 2")
    assert difference("out", yes, yes, 0.0) == ""
    assert difference("out", np.array([3], "int32"), np.array([2], "int32"), 0.0).startswith("out[0] is 3, not 2")
    assert difference("out", np.zeros((0, 3)), np.zeros((0, 3)), 0.0) == ""


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_unwritten_elements_are_finite_and_unlike_any_expected_value(dtype: str) -> None:
    view = np.zeros((3, 5), dtype)
    fill(view)
    assert np.isfinite(view).all()
    assert np.abs(view.astype("float64")).min() > 2**15
    assert view.min() < 0 < view.max()  # neither a maximum nor a minimum over the old values goes unnoticed
    for expected in (np.full_like(view, NAN), np.full_like(view, INF), np.ones_like(view)):
        assert "15 of 15 elements differ" in difference("out", view, expected, 1e-4)


def test_a_value_may_be_rounded_to_either_side_of_a_tie() -> None:
    expected, tie = floats(2, 8, 4), floats(2, 9, 4)
    for right in (floats(2, 8, 4), floats(2, 9, 4), floats(2.00001, 9.00001, 4)):
        assert difference("out", right, expected, 1e-4, tie) == ""
    for wrong, place in ((floats(2, 10, 4), 1), (floats(2, 7, 4), 1), (floats(3, 9, 4), 0), (floats(2, NAN, 4), 1)):
        assert difference("out", wrong, expected, 1e-4, tie).startswith(f"out[{place}] is")
    assert difference("out", floats(INF, 9), floats(INF, 8), 1e-4, floats(INF, 9)) == ""
    assert difference("out", floats(1, 9), floats(INF, 8), 1e-4, floats(INF, 9)).startswith("out[0] is 1, not inf")
