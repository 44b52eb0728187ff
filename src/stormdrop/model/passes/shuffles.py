"""Moves shuffles of channels into the convolutions behind them: into their weights, or into which channels they read.

    s = shuffle(x)                          transposes and reshapes that only give the channels another order
    d = depthwise(s, w) + b         ->      d' = depthwise(x, w') + b'        w' and b' in the order of x
    y = conv1x1(d, v)                       y = conv1x1(d', v')               or v, and other channels of d' are read

The last convolution has the weights in the order of x if it has one group. If it has several groups, step k of group g
reads another channel of d'. Vectors of float32 multiply single elements of the data, which takes as long in any order.
Tiles and dot products load several channels at a time and do not take such a convolution.

Shuffles are those of ShuffleNet (Zhang et al., 2017, section 3.1).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, te
from tvm.ir import GenericConst

from ..graph.expressions import VIEWS, bindings_of, operator_name, variables_of
from .rewriting import constant, rewrite_main
from .views import static_shape

_PERMUTES = "relax.permute_dims"
_CONVOLUTION = "relax.nn.conv2d"
_UNARY = {f"relax.{name}" for name in ("abs", "exp", "negative", "sigmoid", "sqrt", "square", "tanh")}
_UNARY |= {f"relax.nn.{name}" for name in ("gelu", "gelu_tanh", "leakyrelu", "relu", "relu6", "silu")}
_BINARY = {f"relax.{name}" for name in ("add", "divide", "maximum", "minimum", "multiply", "subtract")}

Order = NDArray[np.int64]
"""Which channel stands at each position."""


def move_shuffles(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with shuffles of channels before convolutions of `main` moved. Bindings that become unused stay.

    Images are channels-last. Weights and other operands are constants.
    """
    plans = _Plans(mod["main"])
    return rewrite_main(mod, _Moved(mod, plans.found)) if plans.found else mod


@dataclass(frozen=True, eq=False)
class _Plan:
    """How a convolution does without the shuffle before it.

    Attributes:
        source: The variable that is shuffled.
        order: For each channel after the shuffle its channel before.
        between: The operators from the shuffle to the convolution, without both.
        parts: If the convolution reads other channels: into how many parts of the channels before the shuffle those
            after it go in turns. 0 if its weights change.
    """

    source: Any
    order: Order
    between: tuple[relax.Call, ...]
    parts: int


class _Plans:
    """Finds the convolutions of a function that can do without a shuffle.

    Attributes:
        found: The plans by convolution.
    """

    def __init__(self, main: relax.Function) -> None:
        self._made = {binding.var: binding.value for binding in bindings_of(main)}
        self._readers = Counter(variable for value in self._made.values() for variable in variables_of(value))
        self._readers.update(variables_of(main.body.body))
        self.found: dict[relax.Call, _Plan] = {}
        for value in self._made.values():
            plan = self._plan(value) if _is_convolution(value) else None
            if plan is not None:
                self.found[value] = plan

    def _plan(self, convolution: relax.Call) -> _Plan | None:
        between: list[relax.Call] = []
        variable = convolution.args[0]
        while (shuffle := self._shuffle(variable)) is None:
            call: Any = self._made.get(variable)
            # What has other readers as well would be computed twice.
            if self._readers[variable] != 1 or not _keeps_channels(call):
                return None
            between.insert(0, call)
            variable = call.args[0]
        source, order = shuffle
        if convolution.attrs.groups == 1:
            return _Plan(source, order, tuple(between), 0)
        parts = _parts(order) if _is_pointwise(convolution) else 0
        return _Plan(source, order, tuple(between), parts) if parts else None

    def _shuffle(self, variable: Any) -> tuple[Any, Order] | None:
        """What a variable is a shuffle of, and how; None if it is not one."""
        shape = static_shape(variable.ty)
        moves: list[relax.Call] = []
        call: Any = self._made.get(variable)
        while shape is not None and operator_name(call) in (_PERMUTES, *VIEWS):
            moves.insert(0, call)
            source = call.args[0]
            permutes = any(operator_name(move) == _PERMUTES for move in moves)
            order = _order(moves, shape) if permutes and static_shape(source.ty) == shape else None
            if order is not None:
                return source, order
            call = self._made.get(source)
        return None


def _order(moves: list[relax.Call], shape: tuple[int, ...]) -> Order | None:
    """The order in which moves leave the elements of the last axis; None if they move anything else."""
    if 0 in shape:
        return None
    moved = positions = np.arange(math.prod(shape)).reshape(shape)
    for move in moves:
        if operator_name(move) == _PERMUTES:
            moved = moved.transpose(None if move.attrs.axes is None else [int(axis) for axis in move.attrs.axes])
        else:
            between = static_shape(move.ty)
            if between is None:
                return None
            moved = moved.reshape(between)
    order: Order = moved.reshape(-1, shape[-1])[0]
    if order.max(initial=0) >= shape[-1] or not np.array_equal(moved, positions[..., order]):
        return None
    return order


def _parts(order: Order) -> int:
    """The parts of a list that an order takes elements from in turns; 0 if it does something else."""
    parts = len(order) // max(int(order[1]), 1) if len(order) > 1 else 0
    return parts if parts and np.array_equal(order, _turns(np.arange(len(order)), parts, len(order))) else 0


def _turns(position: Any, parts: int, length: int) -> Any:
    """The element of a list at a position after its parts have taken turns."""
    return position % parts * (length // parts) + position // parts


def _is_convolution(value: Any) -> bool:
    return (
        operator_name(value) == _CONVOLUTION
        and str(value.attrs.data_layout) == "NHWC"
        and str(value.attrs.kernel_layout) == "OHWI"
        and isinstance(value.args[1], GenericConst)
        and value.ty.dtype == value.args[0].ty.dtype
    )


def _is_pointwise(convolution: relax.Call) -> bool:
    window = static_shape(convolution.args[1].ty)
    return window is not None and window[1:3] == (1, 1) and not any(map(int, convolution.attrs.padding))


def _keeps_channels(call: Any) -> bool:
    """Whether each channel of a result depends on the same channel of the first argument, and else on constants."""
    if _is_convolution(call):
        channels = static_shape(call.args[0].ty)
        return channels is not None and int(call.attrs.groups) == channels[-1] == len(call.args[1].value.numpy())
    if operator_name(call) in _UNARY:
        return True
    return (
        operator_name(call) in _BINARY
        and isinstance(call.args[1], GenericConst)
        and static_shape(call.ty) == static_shape(call.args[0].ty)
    )


@relax.expr_functor.mutator
class _Moved(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, plans: Mapping[relax.Call, _Plan]) -> None:
        super().__init__(mod)
        self._plans = plans

    def visit_call_(self, call: relax.Call) -> Any:
        plan = self._plans.get(call)
        if plan is None:
            return self.visit_expr_post_order(call)
        position = np.argsort(plan.order)  # of each channel before the shuffle, after it
        data = self.visit_expr(plan.source)
        for each in plan.between:
            operands = [_reordered(argument, position, operator_name(each)) for argument in each.args[1:]]
            data = self.builder_.emit(relax.Call(each.op, [data, *operands], each.attrs))
        weights = call.args[1]
        if plan.parts:
            return self.builder_.call_te(
                _pointwise, data, weights, call.attrs, plan.parts, primfunc_name_hint="conv2d_of_shuffled"
            )
        shuffled = constant(weights.value.numpy()[..., position])
        return self.builder_.normalize(relax.Call(call.op, [data, shuffled], call.attrs))


def _reordered(operand: GenericConst, position: Order, operator: str) -> GenericConst:
    """A constant operand of an operator that keeps channels, in the order before the shuffle."""
    value = operand.value.numpy()
    if operator == _CONVOLUTION:
        return constant(value[position])
    return operand if value.ndim == 0 or value.shape[-1] == 1 else constant(value[..., position])


def _pointwise(data: Any, weights: Any, attributes: Any, parts: int) -> Any:
    """A grouped convolution with a window of one pixel, of data whose channels are still to be shuffled."""
    images, height, width, channels = (int(extent) for extent in data.shape)
    filters, _, _, steps = (int(extent) for extent in weights.shape)
    down, right = (int(stride) for stride in attributes.strides)
    columns = filters // int(attributes.groups)
    k = te.reduce_axis((0, steps), name="k")

    def product(n: Any, y: Any, x: Any, column: Any) -> Any:
        channel = column // columns * steps + k
        read = _turns(channel, parts, channels)
        return te.sum(data[n, y * down, x * right, read] * weights[column, 0, 0, k], axis=k)

    shape = (images, (height - 1) // down + 1, (width - 1) // right + 1, filters)
    return te.compute(shape, product, name="conv2d")
