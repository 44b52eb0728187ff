"""Operators from text: what is taken, and what is refused with which line."""

from __future__ import annotations

import pytest

from stormdrop.errors import OperatorError
from stormdrop.kernel import operators


def test_text_and_python_make_the_same_workload() -> None:
    text = operators.create("conv2d", {"n": "1", "h": "8", "w": "8", "ci": "4", "co": "6", "kh": "3", "kw": "3"})
    assert text.key == operators.conv2d(1, 8, 8, 4, 6, 3, 3).key
    assert operators.create("reduce", {"shape": "4x5", "axis": "-1"}).key == operators.reduce((4, 5), 1).key


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("matmull", {}, "did you mean 'matmul'"),
        ("matmul", {"m": "4", "n": "4"}, "needs k"),
        ("matmul", {"m": "4", "n": "4", "k": "4", "q": "1"}, "no argument 'q'"),
        ("matmul", {"m": "four", "n": "4", "k": "4"}, "m='four' is not a whole number"),
        ("matmul", {"m": "0", "n": "4", "k": "4"}, "m=0 must be positive"),
        ("matmul", {"m": "4", "n": "-4", "k": "4"}, "n=-4 must be positive"),
        ("matmul", {"m": "4", "n": "4", "k": "4", "dtype": "float16"}, "not supported yet"),
        ("reduce", {"shape": "4xfive", "axis": "0"}, "a shape such as"),
        ("reduce", {"shape": "4x5", "axis": "2"}, "axis=2 is outside"),
        ("reduce", {"shape": "4x5", "axis": "0", "kind": "median"}, "kind=median must be"),
        ("dense", {"m": "4", "n": "4", "k": "4", "act": "gelu"}, "act=gelu must be"),
        ("dense", {"m": "4", "n": "4", "k": "4", "bias": "2"}, "bias=2 must be 0 or 1"),
        ("softmax", {"m": "4", "n": "1e3"}, "n='1e3' is not a whole number"),
        ("matmul", {"m": "99999999999", "n": "4", "k": "4"}, "m=99999999999 must be less than"),
        ("matmul", {"m": "100000", "n": "100000", "k": "4"}, "its tensors take 40 GB"),
    ],
)
def test_bad_arguments_get_one_clear_line(name: str, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        operators.create(name, arguments)
    assert "\n" not in str(caught.value)


CONV = {"n": "1", "h": "8", "w": "8", "ci": "4", "co": "4", "kh": "3", "kw": "3"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layout": "HWCN"}, "layout=HWCN must be NHWC or NCHW"),
        ({"groups": "3"}, "groups=3 must divide"),
        ({"kh": "9"}, "kh=9 does not fit into 8"),
        ({"stride": "0"}, "stride=0 must be positive"),
        ({"pad": "-1"}, "pad=-1 must be 0 or more"),
    ],
)
def test_bad_convolutions(changed: dict[str, str], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        operators.create("conv2d", {**CONV, **changed})


def test_usage_names_every_argument() -> None:
    assert operators.usage("dense") == "m n k [bias=0] [act=none] [dtype=float32]"
    assert set(operators.names()) == {
        "batch_matmul",
        "conv2d",
        "dense",
        "depthwise_conv2d",
        "elementwise",
        "matmul",
        "pool2d",
        "reduce",
        "softmax",
    }


def test_python_calls_are_checked_too() -> None:
    with pytest.raises(OperatorError, match="m=0 must be positive"):
        operators.matmul(0, 4, 4)
    with pytest.raises(OperatorError, match="shape=-1 must be positive"):
        operators.elementwise((4, -1))
