"""Reductions, positions of the largest, running sums, and normalisations."""

from __future__ import annotations

import numpy as np

from fuzz.drawing import FLOATS, INTEGERS, Drawing, Value
from fuzz.moving import axis_before, axis_of, integers
from fuzz.pointwise import positive
from fuzz.registry import operator
from fuzz.telling import Rejected

_RANKS = (1, 2, 3, 4)


@operator("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", weight=1.5)
@operator("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "ReduceSumSquare")
def reductions(d: Drawing, name: str) -> Value:
    extremes = name in ("ReduceMax", "ReduceMin")
    x = d.tensor(FLOATS if "Log" in name else (*FLOATS, *INTEGERS), _RANKS)
    if name == "ReduceLogSum":
        x = positive(d, x, 0.3)
    axes: list[int] | None = sorted(int(axis) for axis in d.rng.permutation(x.rank)[: d.integer(1, x.rank)])
    if d.opset >= 11 and d.chance(0.4):
        axes = [axis - x.rank for axis in axes or ()]
    keep = d.choice([None, 0, 1])
    if d.chance(0.15):
        axes = None
    as_input = d.opset >= (13 if name == "ReduceSum" else 18)
    if as_input:
        empty = axes is None and d.chance(0.3)
        given = [] if axes is None else [integers(d, axes)]
        return d.add(name, x, *given, exact=extremes, keepdims=keep, noop_with_empty_axes=0 if empty else None)
    return d.add(name, x, exact=extremes, keepdims=keep, axes=axes)


@operator("ArgMax", "ArgMin", weight=1.5)
def positions(d: Drawing, name: str) -> Value:
    dtypes = [*FLOATS, "int32"] + (["int8", "uint8"] if d.opset >= 13 else [])
    x = d.tensor(dtypes, _RANKS)
    axis = axis_before(d, x, 11)
    last = d.choice([None, 0, 1]) if d.opset >= 12 else None
    d.without_ties(x, axis)
    return d.add(name, x, axis=axis, keepdims=d.choice([None, 0, 1]), select_last_index=last)


@operator("TopK", weight=1.5)
def top_k(d: Drawing, name: str) -> tuple[Value, ...]:
    x = d.tensor((*FLOATS, *INTEGERS) if d.opset >= 11 else FLOATS, _RANKS)
    axis = axis_before(d, x, 11)
    count = d.integer(1, x.shape[axis])
    d.without_ties(x, axis)
    wanted = d.choice([[True, True], [True, True], [False, True]])
    if d.opset < 10:
        return d.add_all(name, [x], [True, True], exact=True, axis=axis, k=count)
    largest = d.choice([None, 0, 1]) if d.opset >= 11 else None
    return d.add_all(name, [x, integers(d, [count])], wanted, exact=True, axis=axis, largest=largest)


@operator("CumSum", since=11)
def cumulative(d: Drawing, name: str) -> Value:
    x = d.tensor((*FLOATS, *INTEGERS), _RANKS)
    axis = integers(d, axis_of(d, x), d.choice(INTEGERS))
    return d.add(name, x, axis, exclusive=d.choice([None, 0, 1]), reverse=d.choice([None, 0, 1]))


@operator("Softmax", "LogSoftmax", weight=1.5)
def softmax(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, _RANKS)
    return d.add(name, x, axis=d.choice([None if d.opset >= 13 or x.rank > 1 else 0, axis_before(d, x, 11)]))


@operator("Hardmax")
def hardmax(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, (2, 3))
    d.without_ties(x)
    return d.add(name, x, axis=axis_before(d, x, 11))


def per_channel(d: Drawing, count: int, positive_only: bool = False) -> Value:
    array = d.array((count,))
    return d.constant(np.abs(array) + np.float32(0.3) if positive_only else array)


@operator("BatchNormalization", weight=1.5)
def batch_normalization(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, (2, 3, 4))
    count = x.shape[1]
    parts = [per_channel(d, count) for _ in range(3)]
    return d.add(name, x, *parts, per_channel(d, count, True), epsilon=d.choice([None, 1e-3, 0.1]))


@operator("InstanceNormalization")
def instance_normalization(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, (3, 4), lambda value: int(np.prod(value.shape[2:])) > 1)
    return d.add(name, x, per_channel(d, x.shape[1]), per_channel(d, x.shape[1]), epsilon=d.choice([None, 1e-2]))


@operator("LayerNormalization", since=17, weight=1.5)
def layer_normalization(d: Drawing, name: str) -> tuple[Value, ...] | Value:
    x = d.tensor(FLOATS, (2, 3, 4))
    axis = axis_of(d, x)
    shape = x.shape[axis:]
    if int(np.prod(shape)) < 2:
        raise Rejected("nothing to normalise")
    scale, bias = d.constant(d.array(shape)), d.constant(d.array(shape))
    inputs = [x, scale, bias] if d.chance(0.7) else [x, scale]
    return d.add_all(name, inputs, d.choice([1, 1, 1, 3]), axis=axis, epsilon=d.choice([None, 1e-2]))


@operator("RMSNormalization", since=23)
def rms_normalization(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, (2, 3))
    axis = axis_of(d, x)
    return d.add(name, x, d.constant(d.array(x.shape[axis:])), axis=axis, epsilon=d.choice([None, 1e-2]))


@operator("GroupNormalization", since=18)
def group_normalization(d: Drawing, name: str) -> Value:
    groups = d.choice([1, 2, 3])
    x = d.tensor(FLOATS, (3, 4), lambda value: value.shape[1] % groups == 0 and int(np.prod(value.shape[1:])) > groups)
    count = groups if d.opset < 21 else x.shape[1]
    parts = [per_channel(d, count), per_channel(d, count)]
    return d.add(name, x, *parts, num_groups=groups, epsilon=d.choice([None, 1e-2]))


@operator("MeanVarianceNormalization", since=9)
def mean_variance(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, (4,), lambda value: value.shape[0] * value.shape[2] * value.shape[3] > 1)
    return d.add(name, x, axes=d.choice([None, [0, 2, 3], [1], [0, 1, 2, 3]]))


@operator("LpNormalization")
def lp_normalization(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, _RANKS)
    return d.add(name, x, axis=d.choice([None, axis_of(d, x)]), p=d.choice([None, 1, 2]))


@operator("LRN")
def local_response(d: Drawing, name: str) -> Value:
    size, alpha = d.choice([1, 2, 3, 5]), d.choice([None, 1e-3])  # with a large one onnxruntime is coarse
    return d.add(name, d.tensor(FLOATS, (4,)), size=size, alpha=alpha, beta=d.choice([None, 0.6]))
