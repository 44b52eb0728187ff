"""Element types by their names."""

from __future__ import annotations

import numpy as np
import pytest

from stormdrop.ir.dtypes import BFLOAT16, is_float, is_integer, limits, native


@pytest.mark.parametrize(
    ("dtype", "floats", "integers"),
    [
        ("float32", True, False),
        ("float16", True, False),
        (BFLOAT16, True, False),
        ("int8", False, True),
        ("uint32", False, True),
        ("bool", False, False),
    ],
)
def test_kinds_of_types(dtype: str, floats: bool, integers: bool) -> None:
    assert (is_float(dtype), is_integer(dtype)) == (floats, integers)


def test_limits_are_those_of_the_type() -> None:
    assert float(limits("float32").eps) == float(np.finfo(np.float32).eps)
    assert float(limits(BFLOAT16).max) == float(np.array(0x7F7F0000, "uint32").view("float32"))
    assert limits("uint8").max == 255


def test_only_bfloat16_needs_another_type() -> None:
    values = np.array([1.5, -2.0], BFLOAT16)
    assert native(values).dtype == np.float32 and native(values).tolist() == [1.5, -2.0]
    plain = np.zeros(2, np.float16)
    assert native(plain) is plain
