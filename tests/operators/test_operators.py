"""Operators: their formulas, their default schedules, their arguments, and the messages for bad ones."""

from __future__ import annotations

import math
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from stormdrop import operators
from stormdrop.codegen.compile import TunedKernel
from stormdrop.errors import OperatorError
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.registry import sketches_for

Array = NDArray[Any]
Formula = Callable[..., Array]

TARGET = Cpu.detect()

FUNCTIONS: dict[str, Formula] = {
    "none": lambda x: x,
    "relu": lambda x: np.where(x > 0, x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * special.ndtr(x),  # x P(X <= x) of a normal X
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "exp": np.exp,
    "erf": special.erf,
    "sqrt": np.sqrt,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "bias_add": np.add,
}


def convolved(x: Array, w: Array, *, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1) -> Array:
    """Channels first: x [n, ci, image], w [co, ci/groups, window]."""
    dimensions = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *[(pad, pad)] * dimensions])
    reach = [dilation * (extent - 1) + 1 for extent in w.shape[2:]]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, x.ndim)))
    steps: tuple[Any, ...]
    steps = (..., *[slice(None, None, stride)] * dimensions, *[slice(None, None, dilation)] * dimensions)
    windows = windows[steps]
    image, window = "yz"[:dimensions], "uv"[:dimensions]
    parts = [
        np.einsum(f"nc{image}{window},oc{window}->no{image}", *pair)
        for pair in zip(np.split(windows, groups, axis=1), np.split(w, groups), strict=True)
    ]
    return np.concatenate(parts, axis=1)


def convolution(layout: str, act: str = "none", bias: int = 0, **place: int) -> Formula:
    """A convolution in a layout; `bias` says whether the third input is a bias, and all further ones are residuals."""

    def formula(x: Array, w: Array, *others: Array) -> Array:
        last = layout.endswith("C")
        images = [np.moveaxis(array, -1, 1) if last else array for array in (x, w)]
        y = convolved(images[0], images[1], **place)
        y = np.moveaxis(y, 1, -1) if last else y
        terms = list(others)
        if bias:
            b = terms.pop(0)
            y = y + (b if last else b.reshape(-1, *[1] * (y.ndim - 2)))
        for residual in terms:
            y = y + residual
        return FUNCTIONS[act](y)

    return formula


def depthwise(layout: str, act: str = "none", **place: int) -> Formula:
    """One group per channel."""

    def formula(x: Array, w: Array) -> Array:
        x, w = (np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 0)) if layout == "NHWC" else (x, w)
        y = FUNCTIONS[act](convolved(x, w[:, None], groups=len(w), **place))
        return np.moveaxis(y, 1, -1) if layout == "NHWC" else y

    return formula


def normalised(x: Array) -> Array:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3)


def scores(q: Array, k: Array, *mask: Array) -> Array:
    return special.softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2]) + sum(mask), axis=2)


CASES: list[tuple[Workload, Formula]] = [
    (operators.matmul(5, 19, 7), np.matmul),
    (operators.dense(5, 19, 7, bias=1, act="gelu"), lambda a, w, b: FUNCTIONS["gelu"](a @ w.T + b)),
    (operators.dense(5, 19, 7, act="relu", residual=1), lambda a, w, r: np.maximum(a @ w.T + r, 0)),
    (operators.batch_matmul(2, 5, 19, 7), np.matmul),
    (operators.attention_scores(2, 5, 19, 7), scores),
    (operators.attention_scores(2, 5, 19, 7, mask=1), scores),
    (operators.attention(2, 5, 19, 7, 6), lambda q, k, v: scores(q, k) @ v),
    (operators.attention(2, 5, 19, 7, 6, mask=1), lambda q, k, mask, v: scores(q, k, mask) @ v),
    (
        operators.conv1d(2, 19, 5, 7, 3, stride=2, pad=1, bias=1, act="gelu"),
        convolution("NLC", "gelu", 1, stride=2, pad=1),
    ),
    (
        operators.conv1d(1, 23, 6, 20, 5, pad=4, dilation=2, groups=2, layout="NCL", bias=1, act="relu"),
        convolution("NCL", "relu", 1, pad=4, dilation=2, groups=2),
    ),
    (operators.conv1d(1, 13, 5, 18, 1, act="silu"), convolution("NLC", "silu")),
    (
        operators.conv2d(1, 7, 9, 5, 18, 3, 2, stride=2, pad=1, bias=1, act="hardswish", residual=1),
        convolution("NHWC", "hardswish", 1, stride=2, pad=1),
    ),
    (
        operators.conv2d(2, 7, 6, 4, 6, 3, 3, pad=2, dilation=2, groups=2, act="relu6", residual=1, layout="NCHW"),
        convolution("NCHW", "relu6", pad=2, dilation=2, groups=2),
    ),
    (
        operators.depthwise_conv2d(1, 13, 11, 19, 3, 3, pad=2, dilation=2, act="silu"),
        depthwise("NHWC", "silu", pad=2, dilation=2),
    ),
    (operators.pool2d(1, 6, 8, 19, 2, 2, stride=2), lambda x: x.reshape(1, 3, 2, 4, 2, 19).max((2, 4))),
    (
        operators.pool2d(1, 6, 8, 3, 2, 2, stride=2, kind="avg", layout="NCHW"),
        lambda x: x.reshape(1, 3, 3, 2, 4, 2).mean((3, 5)),
    ),
    (operators.global_pool2d(2, 7, 5, 19), lambda x: x.mean((1, 2), keepdims=True)),
    (operators.global_pool2d(2, 7, 5, 19, "max", "NCHW"), lambda x: x.max((2, 3), keepdims=True)),
    (operators.reduce((3, 5, 7, 19), (1, 2)), lambda x: x.sum((1, 2))),
    (operators.reduce((3, 5, 7, 19), (-1, 1), "mean"), lambda x: x.mean((1, 3))),
    (operators.reduce((3, 5, 7), (0, 1, 2), "max"), lambda x: x.max(keepdims=True).reshape(1)),
    (operators.softmax(5, 19), lambda x: special.softmax(x, axis=1)),
    (operators.layer_norm(5, 19, eps=1e-3), lambda x, scale, shift: normalised(x) * scale + shift),
    (
        operators.rms_norm(5, 19, eps=1e-3),
        lambda x, scale: x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-3) * scale,
    ),
    (operators.elementwise((3, 19), "bias_add"), np.add),
    (operators.elementwise((3, 19), "erf"), special.erf),
    (operators.transpose((3, 5, 19), (0, 2, 1)), lambda x: x.transpose(0, 2, 1)),
    (operators.transpose((3, 5, 19), (2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    (operators.concatenate((2, 5, 7), (2, 5, 20), 2), lambda x, z: np.concatenate([x, z], axis=2)),
    (operators.concatenate((2, 5, 19), (2, 3, 19), -2), lambda x, z: np.concatenate([x, z], axis=1)),
]

MORE_FORMULAS: list[tuple[Workload, Formula]] = [
    *(
        (operators.dense(5, 19, 7, bias=1, act=act), lambda a, w, b, act=act: FUNCTIONS[act](a @ w.T + b))
        for act in ("relu6", "silu", "hardswish", "sigmoid", "tanh")
    ),
    *(
        (operators.elementwise((3, 19), kind), FUNCTIONS[kind])
        for kind in FUNCTIONS
        if kind not in ("none", "erf", "bias_add")
    ),
    (operators.conv2d(1, 5, 5, 3, 7, 1, 1, bias=1, layout="NCHW"), convolution("NCHW", bias=1)),
    (operators.depthwise_conv2d(1, 9, 9, 5, 3, 3, stride=2, layout="NCHW"), depthwise("NCHW", stride=2)),
    (operators.dense(5, 19, 7, bias=1, residual=1), lambda a, w, b, r: a @ w.T + b + r),
    (operators.batch_matmul(2, 5, 19, 7, transpose_b=1), lambda a, b: a @ b.transpose(0, 2, 1)),
    (operators.reduce((3, 5, 19), 1, "mean"), lambda x: x.mean(1)),
    (operators.reduce((3, 5, 7), (2, 0), "min"), lambda x: x.min((0, 2))),
]


@pytest.mark.parametrize(
    ("workload", "formula"), [pytest.param(*case, id=case[0].name) for case in (*CASES, *MORE_FORMULAS)]
)
def test_operators_compute_their_formulas(workload: Workload, formula: Formula) -> None:
    rng = np.random.default_rng(0)
    inputs = [(3 * rng.normal(size=spec.shape)).astype("float32") for spec in workload.inputs]
    with np.errstate(invalid="ignore"):
        expected = formula(*(array.astype("float64") for array in inputs))
    (output,) = workload.reference(inputs)
    assert output.shape == workload.outputs[0].shape
    np.testing.assert_allclose(output, expected, rtol=1e-6, atol=1e-6 * np.nanmax(np.abs(expected)), strict=False)


@pytest.mark.compiles
@pytest.mark.parametrize("workload", [workload for workload, _ in CASES], ids=lambda workload: workload.name)
def test_default_schedules_compute_them_too(workload: Workload) -> None:
    (sketch, space), *_ = sketches_for(workload, TARGET)
    kernel = TunedKernel(workload, TARGET, sketch.apply(workload, TARGET, space.config(space.origin)))
    inputs = workload.random_inputs(1)
    (expected,) = workload.reference(inputs)
    error = np.abs(kernel(*inputs) - expected).max() / np.abs(expected).max()
    assert error <= workload.tolerance([expected])


def test_flops_count_the_arithmetic() -> None:
    assert operators.conv1d(2, 10, 4, 6, 3, pad=1).flops == 2 * (2 * 10) * 6 * (3 * 4)
    plain, added = (operators.conv2d(1, 8, 8, 4, 6, 3, 3, pad=1, residual=residual) for residual in (0, 1))
    assert added.flops - plain.flops == 8 * 8 * 6
    assert operators.transpose((4, 5), (1, 0)).flops == operators.concatenate((4, 5), (4, 6), 1).flops == 0
    product = operators.batch_matmul(2, 64, 64, 64, transpose_b=1).flops
    assert product < operators.attention_scores(2, 64, 64, 64).flops < 1.1 * product


def test_weights_are_constant() -> None:
    assert operators.conv1d(1, 9, 4, 6, 3, bias=1).constants == (1, 2)
    assert operators.dense(4, 5, 6, residual=1).constants == (1,)
    assert operators.dense(4, 5, 6, bias=1, residual=1).constants == (1, 2)
    assert operators.layer_norm(4, 5).constants == (1, 2)
    assert operators.rms_norm(4, 5).constants == (1,)


@pytest.mark.parametrize(
    ("name", "arguments", "same"),
    [
        ("conv2d", "n=1 h=8 w=8 ci=4 co=6 kh=3 kw=3", operators.conv2d(1, 8, 8, 4, 6, 3, 3)),
        ("reduce", "shape=4x5 axis=-1", operators.reduce((4, 5), 1)),
        ("reduce", "shape=4x5x6 axis=1x2", operators.reduce((4, 5, 6), (1, 2))),
        ("reduce", "shape=4x5x6 axis=-1,1", operators.reduce((4, 5, 6), (1, 2))),
        ("reduce", "shape=4x5x6 axis=1", operators.reduce((4, 5, 6), (1,))),
        ("transpose", "shape=4x5x6 perm=0x2x1", operators.transpose((4, 5, 6), (0, 2, 1))),
        ("concatenate", "shape=4x5 shape2=4x6 axis=-1", operators.concatenate((4, 5), (4, 6), 1)),
        ("layer_norm", "m=4 n=5 eps=1e-3", operators.layer_norm(4, 5, 0.001)),
        ("global_pool2d", "n=1 h=4 w=5 c=6", operators.global_pool2d(1, 4, 5, 6, kind="avg", layout="NHWC")),
    ],
)
def test_text_and_python_make_the_same_workload(name: str, arguments: str, same: Workload) -> None:
    assert operators.create(name, dict(word.split("=") for word in arguments.split())).key == same.key


def test_the_name_is_what_to_type() -> None:
    workload = operators.reduce((4, 5, 6), (1, 2), "mean")
    assert workload.name == "reduce shape=4x5x6 axis=1x2 kind=mean"
    assert workload.arguments == {"shape": (4, 5, 6), "axis": (1, 2), "kind": "mean", "dtype": "float32"}
    assert operators.layer_norm(4, 5, eps=1e-3).name == "layer_norm m=4 n=5 eps=0.001"


CONV = "n=1 h=8 w=8 ci=4 co=4 kh=3 kw=3"
CONV1D = "n=1 l=8 ci=4 co=4 k=3"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("matmull", "", "did you mean 'matmul'"),
        ("matmul", "m=4 n=4", "matmul needs k"),
        ("matmul", "m=4 n=4 k=4 q=1", "no argument 'q'"),
        ("matmul", "m=four n=4 k=4", "matmul: m='four' is not a whole number"),
        ("matmul", "m=0 n=4 k=4", "matmul: m=0 must be positive"),
        ("matmul", "m=4 n=-4 k=4", "n=-4 must be positive"),
        ("dense", "m=4 n=4 k=4 dtype=float16", "dtype=float16 is not supported yet"),
        ("matmul", "m=99999999999 n=4 k=4", "m=99999999999 must be less than"),
        ("matmul", "m=100000 n=100000 k=4", "its tensors take 40 GB"),
        ("dense", "m=4 n=4 k=4 act=swish", "dense: act=swish must be none or relu or relu6 or silu or gelu or"),
        ("dense", "m=4 n=4 k=4 bias=2", "bias=2 must be 0 or 1"),
        ("dense", "m=4 n=4 k=4 residual=2", "residual=2 must be 0 or 1"),
        ("attention_scores", "b=1 m=4 n=4 k=4 mask=2", "mask=2 must be 0 or 1"),
        ("softmax", "m=4 n=1e3", "n='1e3' is not a whole number"),
        ("layer_norm", "m=4 n=4 eps=small", "layer_norm: eps='small' is not a number"),
        ("layer_norm", "m=4 n=4 eps=-1e-5", "eps=-1e-05 must be positive"),
        ("rms_norm", "m=4 n=4 eps=nan", "eps=nan must be positive"),
        ("reduce", "shape=4xfive axis=0", "a list of whole numbers such as 128x512"),
        ("reduce", "shape=4x0 axis=0", "shape=0 must be positive"),
        ("reduce", "shape=4x5 axis=2", "axis=2 is outside a shape of 2 dimensions"),
        ("reduce", "shape=4x5 axis=0x2", "axis=2 is outside"),
        ("reduce", "shape=4x5 axis=1x-1", "axis=1x-1 names an axis twice"),
        ("reduce", "shape=4x5 axis=last", "axis='last' is not a whole number, or several"),
        ("reduce", "shape=4x5 axis=0 kind=median", "kind=median must be sum or max or min or mean"),
        ("elementwise", "shape=4x5 kind=swish", "kind=swish must be"),
        ("transpose", "shape=4x5x6 perm=0x2", "perm=0x2 must name each of the 3 axes"),
        ("transpose", "shape=4x5 perm=0x0", "perm=0x0 must name each"),
        ("transpose", "shape=4x5 perm=0x-1", "perm=0x-1 must name each"),
        ("concatenate", "shape=4x5 shape2=4x6 axis=0", "shape=4x5 and shape2=4x6 differ in more than axis 0"),
        ("concatenate", "shape=4x5 shape2=4 axis=1", "shape=4x5 and shape2=4 differ"),
        ("concatenate", "shape=4x5 shape2=4x6 axis=2", "axis=2 is outside"),
        ("conv2d", f"{CONV} layout=HWCN", "conv2d: layout=HWCN must be NHWC or NCHW"),
        ("conv2d", f"{CONV} groups=3", "conv2d: groups=3 must divide ci=4 and co=4"),
        ("conv2d", f"{CONV} dilation=4", "kh=3 does not fit into 8 with pad=0 and dilation=4"),
        ("conv2d", f"{CONV} stride=0", "stride=0 must be positive"),
        ("conv2d", f"{CONV} pad=-1", "pad=-1 must be 0 or more"),
        ("conv1d", f"{CONV1D} layout=NHWC", "conv1d: layout=NHWC must be NLC or NCL"),
        ("conv1d", f"{CONV1D} dilation=4", "k=3 does not fit into 8"),
        ("depthwise_conv2d", "n=1 h=8 w=8 ci=4 kh=3 kw=3 dilation=0", "dilation=0 must be positive"),
        ("pool2d", "n=1 h=8 w=8 c=4 kh=3 kw=9", "pool2d: kw=9 does not fit into 8"),
        ("global_pool2d", "n=1 h=8 w=8 c=4 kind=sum", "kind=sum must be max or avg"),
    ],
)
def test_bad_arguments_get_one_clear_line(name: str, arguments: str, message: str) -> None:
    with pytest.raises(OperatorError, match=re.escape(message)) as caught:
        operators.create(name, dict(word.split("=") for word in arguments.split()))
    assert "\n" not in str(caught.value)


def test_python_calls_are_checked_too() -> None:
    with pytest.raises(OperatorError, match="matmul: m=0 must be positive"):
        operators.matmul(0, 4, 4)
    with pytest.raises(OperatorError, match="shape=-1 must be positive"):
        operators.elementwise((4, -1))


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("matmul", "m n k"),
        ("dense", "m n k [bias=0] [act=none]"),
        ("batch_matmul", "b m n k [transpose_b=0]"),
        (
            "conv2d",
            "n h w ci co kh kw [stride=1] [pad=0] [dilation=1] [groups=1] [bias=0] [act=none] [layout=NHWC]",
        ),
        ("depthwise_conv2d", "n h w ci kh kw [stride=1] [pad=0] [bias=0] [act=none] [layout=NHWC]"),
        ("pool2d", "n h w c kh kw [stride=1] [pad=0] [kind=max] [layout=NHWC]"),
        ("reduce", "shape axis [kind=sum]"),
        ("softmax", "m n"),
        ("elementwise", "shape [kind=relu]"),
    ],
)
def test_arguments_are_a_contract(name: str, first: str) -> None:
    """Arguments keep their positions. New ones come after them and have defaults."""
    usage = operators.usage(name)
    assert usage.startswith(f"{first} [")
    assert usage.endswith("[dtype=float32]")


def test_the_manual_lists_every_operator() -> None:
    docs = Path(__file__).parents[2] / "docs"
    if not docs.is_dir():
        pytest.skip("the tests run without the repository")
    pytest.importorskip("markdown")
    written = runpy.run_path(str(docs / "extensions" / "operators_table.py"))
    assert written["MARKER"] in (docs / "reference" / "operators.md").read_text().splitlines()
    rows = {row.split("`")[1]: row for row in written["table"]()[2:]}
    assert sorted(rows) == operators.names()
    assert "| `b m n k [transpose_b=0]` |" in rows["batch_matmul"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: operators.matmul(4.5, 4, 4), "m=4.5 is not a whole number"),  # type: ignore[arg-type]
        (lambda: operators.reduce("4x5", 1), "shape='4x5' is not a list of whole numbers"),  # type: ignore[arg-type]
        (lambda: operators.elementwise((4, 4), kind=1), "kind=1 is not text"),  # type: ignore[arg-type]
    ],
)
def test_arguments_of_another_type(make: Callable[[], object], message: str) -> None:
    with pytest.raises(OperatorError, match=re.escape(message)):
        make()


def test_lists_and_numpy_integers_are_taken() -> None:
    workload = operators.reduce([np.int64(4), 5, 6], [0, 2])  # type: ignore[arg-type]
    assert workload.key == operators.reduce((4, 5, 6), (0, 2)).key
