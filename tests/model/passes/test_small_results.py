"""Functions whose small results TVM's formulas lose: every digit of float32 is right, however small the result is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from stormdrop.model.untuned import compile_model

pytestmark = pytest.mark.compiles

NEGATIVE = -np.logspace(-6, 1.9, 501)
NUMBERS = {
    "Softplus": np.r_[NEGATIVE, 0.0, -NEGATIVE],
    "Mish": np.r_[NEGATIVE, 0.0, -NEGATIVE],
    "Atanh": np.r_[0.99 * np.logspace(-12, 0, 501), -np.logspace(-7, -0.01, 500), 0.0],
}
TRUTH: dict[str, Callable[[Any], Any]] = {
    "Softplus": lambda x: _softplus(x),
    "Mish": lambda x: x * np.tanh(_softplus(x)),
    "Atanh": np.arctanh,
}


@pytest.mark.parametrize("operator", TRUTH)
def test_small_results_keep_their_digits(operator: str) -> None:
    x = NUMBERS[operator].astype(np.float32)
    y = compile_model(_model(operator, x.shape)).run({"x": x})["y"]
    right = TRUTH[operator](x.astype(np.float64))
    np.testing.assert_allclose(y, right, rtol=2e-6, atol=0)


@pytest.mark.parametrize("operator", ["Softplus", "Mish"])
def test_infinities_and_nan(operator: str) -> None:
    x = np.array([np.inf, 1e30, 88.8, np.nan, 0.0, 1.0], np.float32)
    y = compile_model(_model(operator, x.shape)).run({"x": x})["y"]
    np.testing.assert_allclose(y, TRUTH[operator](x.astype(np.float64)), rtol=2e-6)


def test_outside_of_its_domain() -> None:
    x = np.array([1.0, -1.0, 1.5, np.nan], np.float32)
    y = compile_model(_model("Atanh", x.shape)).run({"x": x})["y"]
    np.testing.assert_array_equal(y, [np.inf, -np.inf, np.nan, np.nan])


def _softplus(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(invalid="ignore"):  # of NaN
        return np.logaddexp(0, x)


def _model(operator: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], operator, [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
