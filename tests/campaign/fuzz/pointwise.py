"""Operators that compute each element by itself, with broadcasting."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from fuzz.drawing import FLOATS, INTEGERS, Drawing, Value
from fuzz.registry import operator
from fuzz.telling import Rejected

_NUMBERS = (*FLOATS, *INTEGERS)


@operator("Identity", "Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Selu", "Sin", "Cos", "Atan")
def anywhere(d: Drawing, name: str) -> Value:
    dtypes = (*FLOATS, *INTEGERS, "bool") if name == "Identity" else FLOATS
    return d.add(name, d.tensor(dtypes), exact=name in ("Identity", "Relu"))


@operator("Erf", "Asinh", since=9)
@operator("HardSwish", since=14)
@operator("Mish", since=18)
def newer(d: Drawing, name: str) -> Value:
    return d.add(name, d.tensor())


@operator("Abs", "Neg")
def signs(d: Drawing, name: str) -> Value:
    return d.add(name, d.tensor(_NUMBERS), exact=True)


@operator("Elu", "LeakyRelu")
@operator("Celu", since=12)
def with_alpha(d: Drawing, name: str) -> Value:
    return d.add(name, d.tensor(), alpha=d.choice([None, 0.1, 0.7, 2.5]))


@operator("Gelu", since=20)
def gelu(d: Drawing, name: str) -> Value:
    return d.add(name, d.tensor(), approximate=d.choice([None, "none", "tanh"]))


@operator("HardSigmoid")
def hard_sigmoid(d: Drawing, name: str) -> Value:
    return d.add(name, d.tensor(), alpha=d.choice([None, 0.3]), beta=d.choice([None, 0.4]))


@operator("ThresholdedRelu", since=10)
def thresholded(d: Drawing, name: str) -> Value:
    alpha, x = d.choice([None, 0.5]), d.tensor()
    return d.add(name, d.far(x, np.abs(x.array - (alpha or 1.0))), alpha=alpha)


@operator("Shrink", since=9)
def shrink(d: Drawing, name: str) -> Value:
    edge, x = d.choice([None, 0.8]), d.tensor()
    return d.add(name, d.far(x, np.abs(np.abs(x.array) - (edge or 0.5))), lambd=edge, bias=d.choice([None, 0.25]))


def bounded(d: Drawing, x: Value, largest: float = 1.0) -> Value:
    """Something of the same shape between -largest and largest, whatever x is."""
    inside = d.add(d.choice(["Tanh", "Softsign"]), x)  # a sine of something large is nothing but rounding
    d.hide(inside)
    scaled = d.add("Mul", inside, d.constant(np.float32(largest)))
    d.hide(scaled)
    return scaled


def positive(d: Drawing, x: Value, least: float) -> Value:
    """Something of the same shape that is at least so large, whatever x is."""
    above = d.add(d.choice(["Abs", "Softplus", "Sigmoid"]), x)
    d.hide(above)
    moved = d.add("Add", above, d.constant(np.float32(least)))
    d.hide(moved)
    return moved


@operator("Exp", "Tan", "Asin", "Acos")
@operator("Sinh", "Cosh", "Atanh", since=9)
def of_small(d: Drawing, name: str) -> Value:
    return d.add(name, bounded(d, d.tensor(), 0.9))


@operator("Sqrt", "Log", "Reciprocal")
@operator("Acosh", since=9)
def of_positive(d: Drawing, name: str) -> Value:
    return d.add(name, positive(d, d.tensor(), 1.1 if name == "Acosh" else d.choice([0.3, 0.7])))


@operator("Floor", "Ceil")
@operator("Round", since=11)
@operator("Sign", since=9)
def steps(d: Drawing, name: str) -> Value:
    x = d.tensor(_NUMBERS if name == "Sign" else FLOATS)
    edge = {"Round": 0.5}.get(name, 0.0)
    distance = np.abs(x.array) if name == "Sign" else np.abs((x.array - edge + 0.5) % 1 - 0.5)
    return d.add(name, d.far(x, distance), exact=True)


@operator("PRelu")
def prelu(d: Drawing, name: str) -> Value:
    x = d.tensor(ranks=(1, 2, 3, 4))
    shape = [extent if d.chance(0.6) else 1 for extent in x.shape]
    return d.add(name, x, d.constant(d.array(shape[d.choice([0, 0, 1]) :])))


@operator("Add", "Sub", "Mul", weight=2)
def arithmetic(d: Drawing, name: str) -> Value:
    x = d.tensor(_NUMBERS if d.opset >= 7 else FLOATS)
    pair = [x, d.partner(x)]
    return d.add(name, *(reversed(pair) if d.chance(0.3) else pair))


@operator("Div")
def division(d: Drawing, name: str) -> Value:
    x = d.tensor(_NUMBERS)
    if x.dtype in INTEGERS:
        return d.add(name, x, d.constant(np.asarray(d.choice([-3, 1, 2, 7]), x.dtype)))
    return d.add(name, x, positive(d, d.partner(x), 0.5))


@operator("Pow")
def power(d: Drawing, name: str) -> Value:
    x = d.tensor()
    if d.chance(0.4):
        return d.add(name, x, d.constant(np.float32(d.choice([2.0, 3.0, 1.0, 0.0 if x.array.size == 1 else 2.0]))))
    if d.chance(0.3) and d.opset >= 12:
        return d.add(name, x, d.constant(np.asarray(d.choice([2, 3]), d.choice(INTEGERS))))
    exponent = d.constant(np.float32(d.choice([0.5, -1.0, 1.5, -0.5]))) if d.chance(0.7) else d.partner(x)
    if not exponent.constant:
        exponent = bounded(d, exponent)
    return d.add(name, positive(d, x, 0.3), exponent)


@operator("Mod", since=10)
def modulo(d: Drawing, name: str) -> Value:
    x = d.tensor((*INTEGERS, *FLOATS))
    if x.dtype in INTEGERS:
        by = d.constant(np.asarray(d.choice([3, 7, -5, 2]), x.dtype))
        return d.add(name, x, by, fmod=d.choice([None, 0, 1]))
    by = d.choice([0.7, 2.0, -1.5])
    return d.add(name, d.far(x, np.abs((x.array / by + 0.5) % 1 - 0.5)), d.constant(np.float32(by)), fmod=1)


@operator("Max", "Min", "Sum", "Mean", since=8)
def several(d: Drawing, name: str) -> Value:
    integers = name in ("Max", "Min") and d.opset >= 12
    x = d.tensor(_NUMBERS if integers else FLOATS)
    others = [d.partner(x) for _ in range(d.choice([0, 1, 1, 1, 2]))]
    return d.add(name, x, *others, exact=name in ("Max", "Min"))


@operator("Equal", "Less", "Greater")
@operator("LessOrEqual", "GreaterOrEqual", since=12)
def comparisons(d: Drawing, name: str) -> Value:
    dtypes = INTEGERS if name == "Equal" and d.opset < 11 else FLOATS if d.opset < 9 else _NUMBERS
    if name == "Equal" and d.chance(0.3):
        dtypes = ("bool",)
    x = d.tensor(dtypes)
    y = d.partner(x)
    if x.dtype == "float32":
        # If one of both is rounded, a tie is decided by rounding.
        rounded = Value("", x.array, x.exact and y.exact)
        d.far(rounded, np.abs(x.array - y.array))
    return d.add(name, x, y)


@operator("And", "Or", "Xor")
def logic(d: Drawing, name: str) -> Value:
    x = d.tensor(("bool",))
    return d.add(name, x, d.partner(x))


@operator("Not")
def negation(d: Drawing, name: str) -> Value:
    return d.add(name, d.tensor(("bool",)))


@operator("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", since=18)
def bits(d: Drawing, name: str) -> Value:
    x = d.tensor((*INTEGERS, "uint8", "int8"))
    return d.add(name, x) if name == "BitwiseNot" else d.add(name, x, d.partner(x))


@operator("BitShift", since=11)
def shifts(d: Drawing, name: str) -> Value:
    x = d.tensor(("uint8", "uint32"))
    by = d.constant(np.asarray(d.rng.integers(0, 5, x.shape if d.chance(0.5) else ()), x.dtype))
    return d.add(name, x, by, direction=d.choice(["LEFT", "RIGHT"]))


@operator("Where", since=9)
def where(d: Drawing, name: str) -> Value:
    condition = d.tensor(("bool",))
    x = d.partner(condition, d.choice(_NUMBERS))
    y = d.partner(x) if d.chance(0.7) else d.constant(np.asarray(0, x.dtype))
    return d.add(name, condition, x, y, exact=True)


@operator("IsNaN", since=9)
@operator("IsInf", since=10)
def not_finite(d: Drawing, name: str) -> Value:
    inside = d.tensor()
    spoilt = np.where(d.rng.random(inside.shape) < 0.5, np.nan if name == "IsNaN" else np.inf, 1).astype(np.float32)
    attributes = {"detect_negative": d.choice([None, 0, 1])} if name == "IsInf" else {}
    larger = positive(d, inside, 0.5)
    with d.anything():
        product = d.add("Mul", larger, d.constant(spoilt))
    d.hide(product)
    return d.add(name, product, **attributes)


@operator("Clip", weight=1.5)
def clip(d: Drawing, name: str) -> Value:
    low, high = d.choice([(-0.5, 0.5), (0.0, 6.0), (-1.0, None), (None, 0.7), (None, None)])
    if d.opset < 11:
        return d.add(name, d.tensor(), min=low, max=high)
    x = d.tensor(_NUMBERS if d.opset >= 12 else FLOATS)
    scale = 1 if x.dtype == "float32" else 20
    bounds = [None if bound is None else d.constant(np.asarray(bound * scale, x.dtype)) for bound in (low, high)]
    return d.add(name, x, *bounds, exact=True)


@operator("Cast", weight=2)
def cast(d: Drawing, name: str) -> Value:
    x = d.tensor((*FLOATS, *INTEGERS, "bool", "uint8", "int8", "float64"))
    to = d.choice(["float32", "int32", "int64", "bool", "uint8", "int8", "float64", "uint32", "int16", "float16"])
    kind = np.dtype(to)
    if kind.kind == "b" and x.array.dtype.kind == "f":
        d.far(x, np.abs(x.array))
    if kind.kind in "iu" and x.array.dtype.kind in "fi":
        # What does not fit is undefined.
        limits = np.iinfo(kind)
        if x.array.min() < limits.min or x.array.max() > limits.max:
            raise Rejected("out of range")
        if x.array.dtype.kind == "f":
            d.far(x, np.abs((x.array + 0.5) % 1 - 0.5))
    wide = kind.kind != "f" or x.array.dtype.kind in "iub" or kind.itemsize >= x.array.dtype.itemsize
    return d.add(name, x, exact=wide, to=helper.np_dtype_to_tensor_dtype(kind))


@operator("CastLike", since=15)
def cast_like(d: Drawing, name: str) -> Value:
    x = d.tensor((*INTEGERS, "bool"))
    return d.add(name, x, d.tensor(FLOATS), exact=True)


@operator("Float64")
def in_float64(d: Drawing, name: str) -> Value:
    """A few nodes in float64."""
    x = d.add("Cast", d.tensor(), exact=True, to=TensorProto.DOUBLE)
    inside = d.add(d.choice(["Relu", "Tanh", "Abs", "Sigmoid", "Exp"]), x)
    y = d.add(d.choice(["Add", "Mul", "Sub"]), inside, d.partner(inside, constant=1.0))
    return d.add("Cast", y, to=TensorProto.FLOAT)


@operator("Float16")
def in_float16(d: Drawing, name: str) -> Value:
    """A few nodes in float16."""
    x = d.add("Cast", d.tensor(), to=TensorProto.FLOAT16)
    inside = d.add(d.choice(["Relu", "Neg", "Abs"]), x)
    y = d.add(d.choice(["Add", "Mul"]), inside, d.constant(np.float16(d.choice([0.5, 1.5, -2.0]))))
    return d.add("Cast", y, to=TensorProto.FLOAT)


@operator("Dropout")
def dropout(d: Drawing, name: str) -> Value:
    """In inference it is the identity."""
    x = d.tensor()
    if d.opset < 12:
        return d.add(name, x, exact=True, ratio=d.choice([None, 0.3]))
    given = d.choice([(), (0.3,), (0.3, False)])
    return d.add(name, x, *(d.constant(np.asarray(v, bool if v is False else np.float32)) for v in given), exact=True)
