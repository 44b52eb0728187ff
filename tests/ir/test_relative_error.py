from __future__ import annotations

import numpy as np

from stormdrop.ir.relative_error import relative_error


def test_the_largest_difference_is_divided_by_the_largest_reference_value() -> None:
    reference = np.array([1.0, -4.0])
    assert relative_error(reference, reference) == 0.0
    assert relative_error(np.array([1.0, -3.0]), reference) == 0.25


def test_other_shapes_and_other_non_finite_values_are_an_infinite_error() -> None:
    reference = np.array([1.0, -4.0])
    assert relative_error(np.array([1.0, np.nan]), reference) == np.inf
    assert relative_error(np.array([1.0]), reference) == np.inf
    assert relative_error(np.array([1.0]), np.array([0.0])) == np.inf
    assert relative_error(np.array([np.inf, 2.0]), np.array([np.inf, 2.0])) == 0.0
    assert relative_error(np.array([-np.inf, 2.0]), np.array([np.inf, 2.0])) == np.inf
