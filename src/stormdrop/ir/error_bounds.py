"""How far rounding may take the outputs of a function, whatever the order in which a schedule adds up its sums.

For a sum of n products, each rounded with a unit roundoff of u, the error is with certainty at most about

    n u sum |a_k| |b_k|

and it exceeds  lambda sqrt(n) u sum |a_k| |b_k|  with a probability of at most 2 exp(-lambda^2 / 2) only, because
roundings to nearest do not all go the same way (Higham and Mary, "A new approach to probabilistic rounding error
analysis", 2019, theorem 2.4). The second bound is what is used here, with a lambda of 10. It is narrow enough to tell a
kernel that adds up in float32 from one that adds up in bfloat16 or float16.

The sum of absolute values comes from the reference itself: the same function, with each expression replaced by its
magnitude, on the absolute values of the inputs.

    y[i] = max(sum_k a[i, k] * b[k] - c[i], 0)   ->   y[i] = max(sum_k a[i, k] * b[k] + c[i], 0)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tvm.ir import TensorLoad
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm

from ..errors import UnsupportedFunction
from .dtypes import INFINITE, is_float, limits
from .expressions import children, intrinsic, is_selection, is_tf32, loads_in, rebuild, walk
from .reference import evaluate_graph
from .stages import Stage, StageGraph

if TYPE_CHECKING:
    from .workload import Workload

Array = NDArray[Any]

_LAMBDA = 10.0
_DECADES = {"float16": (-2.0, 0.5), "bfloat16": (-3.0, 3.0), "float32": (-3.0, 3.0), "float64": (-3.0, 3.0)}
"""The decimal logarithms of the least and the largest magnitude. Sums of products of float16 must not overflow."""

_ZEROS = 0.05  # the share of elements that are zero
_PERIOD = 8  # one element in eight is its neighbour negated
_MONOTONE = (prim.Add, prim.Mul, prim.Max, prim.Cast)  # magnitudes of the operands give one of the result
_ROUNDING = (prim.Add, prim.Sub, prim.Mul, prim.Div, prim.Cast)


def varied_inputs(workload: Workload, seed: int) -> list[Array]:
    """Inputs of both signs and of magnitudes of several decades. Some elements are zero, or their neighbour negated.

    Integers and booleans are those of `Workload.random_inputs`.

    Args:
        workload: The function.
        seed: The seed of the generator.
    """
    rng = np.random.default_rng([seed, 1])
    inputs = workload.random_inputs(seed)
    for position, spec in enumerate(workload.inputs):
        if spec.dtype not in _DECADES:
            continue
        low, high = _DECADES[spec.dtype]
        size = math.prod(spec.shape)
        values = np.power(10.0, rng.uniform(low, high, size=size)) * rng.choice((-1.0, 1.0), size=size)
        pairs = values[: size // _PERIOD * _PERIOD].reshape(-1, _PERIOD)
        pairs[:, 1] = -pairs[:, 0]
        values[rng.random(size) < _ZEROS] = 0.0
        inputs[position] = values.reshape(spec.shape).astype(spec.dtype)
    return inputs


def rounding_bounds(workload: Workload, inputs: Sequence[Array]) -> list[Array]:
    """How far each element of each output of a right kernel may be from the reference, because of rounding.

    Args:
        workload: The function.
        inputs: One array per input.

    Returns:
        One array per output, in its own shape, float32.

    Raises:
        UnsupportedFunction: The function holds more than sums, products, maxima and minima of floats, so that there
            is no such bound; or values overflow.
    """
    graph = workload.graph
    stages = tuple(_magnitude_stage(stage) for stage in graph.stages)
    share = sum(_unit_roundings(stage) for stage in graph.stages)
    magnitudes = evaluate_graph(StageGraph(graph.parameters, stages), [np.abs(array) for array in inputs])
    if not all(np.isfinite(magnitude).all() for magnitude in magnitudes):
        raise UnsupportedFunction(f"{workload.name} overflows for numbers of different magnitudes")
    tiny = max(float(limits(spec.dtype).tiny) for spec in workload.outputs)  # results below it may become zero
    return [(share * magnitude.astype(np.float32) + tiny).astype(np.float32) for magnitude in magnitudes]


def _unit_roundings(stage: Stage) -> float:
    """The error of one stage in relation to its magnitude: sqrt of the number of its roundings, times their size.

    A result that is converted to a type with fewer digits at the end is computed in the type that it had. Two numbers
    that are nearly equal may then be rounded to neighbours.
    """
    terms = math.prod(axis.extent for axis in stage.reductions)
    operations = sum(isinstance(node, _ROUNDING) for node in walk(stage.value))
    if not operations and stage.combine in (None, "max", "min"):
        return 0.0  # it moves elements, or takes the largest
    step, last = _step(stage.value), 0.0
    if isinstance(stage.value, prim.Cast) and is_float(str(stage.value.value.ty.dtype)):
        before = _step(stage.value.value)
        step, last = (before, step) if before < step else (step, 0.0)
    return _LAMBDA * math.sqrt(terms + operations + 1) * step / 2 + last


def _step(value: Any) -> float:
    """The distance from 1 to the next number of the type of a value."""
    return float(limits(str(value.ty.dtype)).eps)


def _magnitude_stage(stage: Stage) -> Stage:
    if not is_float(str(stage.buffer.dtype)) or stage.combine == "product":
        raise UnsupportedFunction(f"the rounding of stage {stage.name} has no bound")
    if stage.combine is None:
        return replace(stage, value=_magnitude(stage.value))
    combine = "max" if stage.combine == "min" else stage.combine
    identity = FloatImm(str(stage.buffer.dtype), 0.0)
    return replace(stage, value=_magnitude(stage.value), combine=combine, identity=identity)


def _magnitude(node: Any) -> Any:
    """An expression that is at least as large as the absolute value of a node, of equal type."""
    if isinstance(node, TensorLoad):
        return node
    if isinstance(node, FloatImm):
        value = abs(float(node.value))
        return FloatImm(str(node.ty.dtype), 0.0 if value > INFINITE else value)
    if isinstance(node, prim.Sub):
        return prim.Add(_magnitude(node.a), _magnitude(node.b))
    if isinstance(node, prim.Min):
        return prim.Max(_magnitude(node.a), _magnitude(node.b))
    if isinstance(node, prim.Div) and isinstance(node.b, FloatImm):
        return prim.Div(_magnitude(node.a), _magnitude(node.b))
    if isinstance(node, _MONOTONE) and is_float(str(node.ty.dtype)):
        return rebuild(node, [_magnitude(child) for child in children(node)])
    if is_tf32(node):
        return rebuild(node, [node.args[0], _magnitude(node.args[1])])
    if intrinsic(node) in {"fabs", "abs"}:
        return _magnitude(node.args[0])
    condition, *values = children(node) if is_selection(node) else [node]
    # A condition on values jumps where it changes, so that the smallest rounding can make a large difference.
    if not values or loads_in(condition):
        raise UnsupportedFunction(f"the rounding of {type(node).__name__} has no bound")
    return rebuild(node, [condition, *map(_magnitude, values)])
