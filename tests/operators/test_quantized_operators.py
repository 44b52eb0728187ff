"""Operators on bytes: what they compute, beside NumPy, and which arguments they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from stormdrop import operators
from stormdrop.errors import OperatorError


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_products_of_bytes_are_summed_in_32_bits(dtype: str) -> None:
    workload = operators.matmul(4, 6, 300, dtype=dtype)
    assert [spec.dtype for spec in (*workload.inputs, *workload.outputs)] == [dtype, "int8", "int32"]
    a, b = workload.random_inputs(0)
    np.testing.assert_array_equal(workload.reference([a, b])[0], a.astype("int32") @ b.astype("int32"))


def test_batches_of_bytes() -> None:
    workload = operators.batch_matmul(2, 4, 6, 9, transpose_b=1, dtype="uint8")
    a, b = workload.random_inputs(0)
    expected = a.astype("int32") @ b.astype("int32").transpose(0, 2, 1)
    np.testing.assert_array_equal(workload.reference([a, b])[0], expected)


def test_a_layer_subtracts_the_zero_point_and_adds_the_bias() -> None:
    workload = operators.dense(4, 6, 9, bias=1, act="relu", dtype="int8", zero_point=-11)
    assert workload.constants == (1, 2)
    a, w, bias = workload.random_inputs(0)
    expected = np.maximum((a.astype("int32") + 11) @ w.astype("int32").T + bias, 0)
    np.testing.assert_array_equal(workload.reference([a, w, bias])[0], expected)


@pytest.mark.parametrize(("act", "result"), [("none", "int8"), ("relu", "uint8")])
def test_sums_are_requantised(act: str, result: str) -> None:
    workload = operators.dense(40, 6, 9, act=act, dtype="uint8", requantize=1)
    assert workload.constants == (1, 2)
    a, w, _ = workload.random_inputs(0)
    scale = np.array([1, 0.5, 0.25, 2, 100, -1], "float32")
    sums = a.astype("int32") @ w.astype("int32").T
    scaled = np.rint((np.maximum(sums, 0) if act == "relu" else sums) * scale)
    expected = np.clip(scaled, np.iinfo(result).min, np.iinfo(result).max).astype(result)
    (actual,) = workload.reference([a, w, scale])
    assert actual.dtype == result
    np.testing.assert_array_equal(actual, expected)


def test_images_are_padded_by_their_zero_point() -> None:
    workload = operators.conv2d(1, 4, 5, 3, 2, 3, 3, pad=1, dtype="uint8", zero_point=9)
    x, w = workload.random_inputs(0)
    image = np.pad(x[0].astype("int32") - 9, ((1, 1), (1, 1), (0, 0)))
    expected = [
        [[np.sum(image[i : i + 3, j : j + 3] * w[o].astype("int32")) for o in range(2)] for j in range(5)]
        for i in range(4)
    ]
    np.testing.assert_array_equal(workload.reference([x, w])[0], [expected])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("dense", {"dtype": "int8", "act": "gelu"}, "act=gelu is for floats: bytes have none or relu"),
        ("dense", {"dtype": "int8", "residual": "1"}, "residual=1 is for floats"),
        ("dense", {"dtype": "uint8", "zero_point": "-1"}, "zero_point=-1 must be between 0 and 255 for dtype=uint8"),
        ("dense", {"dtype": "int8", "zero_point": "128"}, "must be between -128 and 127 for dtype=int8"),
        ("dense", {"zero_point": "1"}, "zero_point and requantize are for dtype=int8 and uint8, not for float32"),
        ("dense", {"requantize": "1"}, "are for dtype=int8 and uint8, not for float32"),
        ("dense", {"dtype": "int8", "requantize": "2"}, "requantize=2 must be 0 or 1"),
    ],
)
def test_arguments_that_do_not_fit(name: str, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        operators.create(name, {"m": "4", "n": "4", "k": "4", **arguments})


def test_keys_of_float_operators_are_what_they_were() -> None:
    """Records are found by these: they must not change."""
    assert operators.dense(64, 32, 16, bias=1, act="relu").key == "d7b11b2a2b9c3fd653fa"
    assert operators.conv2d(1, 6, 6, 8, 16, 3, 3, pad=1).key == "5521b4f0642fa0ed83ba"
