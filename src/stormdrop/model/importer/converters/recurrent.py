"""Converters of RNN, GRU, LSTM and DynamicQuantizeLSTM, whose steps are unrolled.

What does not depend on the step before is one matrix multiplication for all steps; each step adds its own part:

    z = x[0..T] @ W.T + b          once
    gates = z[t] + h @ R.T         for each t, one kernel
    h, c = step(gates, c)          for each t, one kernel with all activations; in small layers the same one

A step of a small model takes a microsecond, so every further kernel, and every copy of a gate, would show.

DynamicQuantizeLSTM, an operator of onnxruntime's own, rounds what it multiplies to bytes: all inputs by one scale and
zero point, and the state of each step by its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ...onnx.contributed import DOMAIN, DYNAMIC_QUANTIZE_LSTM
from .node import Node, const, scalar, shape_of
from .quantized import product_by_bytes

LONGEST = 256
"""The most steps that are unrolled. Each of them is a few calls of the same kernels."""

SMALL = 1 << 15
"""The most multiply-adds of a product that has one kernel with what reads it. Calling another one takes as long as some
thousands of them. A larger product is scheduled for itself, with several threads."""

_QUANTISED = f"{DOMAIN}.{DYNAMIC_QUANTIZE_LSTM}"
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4, _QUANTISED: 4}
_ACTIVATIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_ACTIVATIONS[_QUANTISED] = _ACTIVATIONS["LSTM"]
_SUPPORTED: dict[str, Callable[[Any], Any]] = {
    "tanh": tirx.tanh,
    "sigmoid": tirx.sigmoid,
    "relu": lambda x: tirx.max(x, tirx.const(0, x.ty.dtype)),
}

_Product = Callable[[Any, int, int | None], Any]
"""The product of rows with some of the columns of weights: from the first to the one before the end."""

_Step = Callable[["_Direction", Any, Sequence[Any]], list[Any]]
"""The new states from what a step reads, and from the states before it."""


def _recurrent(step: _Step, states: int) -> Callable[[Node], Any]:
    """The converter of an operator with one state (hidden), or with two (hidden, cell)."""

    def convert(node: Node) -> Any:
        batch_first = bool(node.attribute("layout", 0))
        x = node.emit(relax.op.permute_dims(node[0], [1, 0, 2])) if batch_first else node[0]
        length, batch, _ = shape_of(x)
        count = 2 if node.attribute("direction", "forward") == "bidirectional" else 1
        sequences, lasts = [], []
        for index in range(count):
            direction = _Direction.of(node, index, states, batch, batch_first)
            sequence, last = _unrolled(node, x, direction, step, length)
            sequences.append(sequence)
            lasts.append(last)
        y = _stacked(node, sequences, 1)  # length, directions, batch, hidden
        ends = [_stacked(node, [last[state] for last in lasts], 0) for state in range(states)]
        if batch_first:
            y = node.emit(relax.op.permute_dims(y, [2, 0, 1, 3]))
            ends = [node.emit(relax.op.permute_dims(end, [1, 0, 2])) for end in ends]
        outputs = [y, *ends][: node.outputs]
        return outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)

    return convert


@dataclass(frozen=True)
class _Direction:
    """The parameters of one direction: products with its weights, which have gates * hidden columns; biases as vectors.

    `weights` are those of the product with the state; None if they are bytes. `bias` is what is added whatever the
    states are; `candidate_bias` belongs to the product of GRU's last gate.
    """

    node: Node
    hidden: int
    of_input: _Product
    of_state: _Product
    weights: Any
    bias: Any
    candidate_bias: Any
    peepholes: Any
    states: list[Any]
    lengths: Any
    activations: list[Callable[[Any], Any]]
    reverse: bool
    clip: float | None

    @classmethod
    def of(cls, node: Node, index: int, states: int, batch: int, batch_first: bool) -> _Direction:
        hidden, gates = int(node.attribute("hidden_size")), _GATES[node.operator]
        quantised = node.operator == _QUANTISED
        if quantised and batch > 1:
            raise ValueError("onnxruntime's threads decide which sequences of a batch have a scale in common")

        def part(position: int, axis: int = 0) -> Any:
            """What this direction has of an input: its element of the axis of the directions, without this axis."""
            shape = node.shape(position)
            whole = node[position]
            if shape[axis] > 1:
                whole = node.emit(relax.op.strided_slice(whole, [axis], [index], [index + 1]))
            return node.emit(relax.op.reshape(whole, shape[:axis] + shape[axis + 1 :]))

        def state(position: int) -> Any:
            if not node.has(position):
                return const(np.zeros((batch, hidden), node.dtype()))
            return part(position, 1 if batch_first else 0)

        def transposed(position: int) -> Any:
            return node.emit(relax.op.permute_dims(part(position)))

        def plain(weights: Any) -> _Product:
            return lambda rows, first, end: node.emit(relax.op.matmul(rows, _columns(node, weights, first, end)))

        def segment(value: Any, first: int, end: int) -> Any:
            return node.emit(relax.op.strided_slice(value, [0], [first * hidden], [end * hidden]))

        bias = candidate_bias = None
        if node.has(3):
            whole = part(3)
            bias, recurrent = segment(whole, 0, gates), segment(whole, gates, 2 * gates)
            if node.operator == "GRU" and node.attribute("linear_before_reset", 0):
                # This part is multiplied by the reset gate, so it cannot be added ahead.
                candidate_bias = segment(recurrent, 2, 3)
                zeros = const(np.zeros(hidden, node.dtype()))
                recurrent = node.emit(relax.op.concat([segment(recurrent, 0, 2), zeros], 0))
            bias = node.emit(relax.op.add(bias, recurrent))
        default = _ACTIVATIONS[node.operator]
        names = node.attribute("activations") or list(default) * 2
        names = names[index * len(default) :][: len(default)]
        direction = node.attribute("direction", "forward")
        weights = None if quantised else transposed(2)
        return cls(
            node,
            hidden,
            _of_bytes(node, index, 1, 8) if quantised else plain(transposed(1)),
            _of_bytes(node, index, 2, 10) if quantised else plain(weights),
            weights,
            bias,
            candidate_bias,
            part(7) if states == 2 and node.has(7) else None,
            [state(5 + number) for number in range(states)],
            node.optional(4),
            [_activation(name) for name in names],
            direction == "reverse" or index == 1,
            node.attribute("clip"),
        )

    def gate(self, number: int, *values: Any) -> Callable[[Any, Any], Any]:
        """The sum of a gate's columns in several matrices, as it goes into the activation, by row and column."""

        def summed(row: Any, column: Any) -> Any:
            total = values[0](row, number * self.hidden + column)
            for value in values[1:]:
                total = total + value(row, number * self.hidden + column)
            return total

        return summed

    def clipped(self, value: Any) -> Any:
        """What goes into an activation."""
        if self.clip is None:
            return value
        low, high = (tirx.const(bound, value.ty.dtype) for bound in (-self.clip, self.clip))
        return tirx.min(tirx.max(value, low), high)


def _unrolled(node: Node, x: Any, direction: _Direction, step: _Step, length: int) -> tuple[Any, list[Any]]:
    """The hidden states of all steps, (length, batch, hidden), and the last states."""
    if length > LONGEST:
        raise ValueError(f"its {length} steps would be unrolled; at most {LONGEST} are")
    _, batch, size = shape_of(x)
    rows = node.emit(relax.op.reshape(x, (length * batch, size)))
    whole = direction.of_input(rows, 0, None)
    if direction.bias is not None:
        whole = node.emit(relax.op.add(whole, direction.bias))
    states: list[Any] = direction.states
    outputs: list[Any] = [None] * length
    # One kernel makes the inputs of all steps. A slice for each would be fused with what reads it, to as many kernels.
    parts = node.emit(relax.op.split(whole, length, 0)) if length > 1 else None
    for time in reversed(range(length)) if direction.reverse else range(length):
        inputs = whole if parts is None else node.emit(relax.TupleGetItem(parts, time))
        new = step(direction, inputs, states)
        if direction.lengths is not None:
            lengths = node.emit(relax.op.astype(direction.lengths, "int32"))
            inside = relax.op.reshape(relax.op.less(relax.const(time, "int32"), lengths), (batch, 1))
            inside = node.emit(inside)
            kept = [node.emit(relax.op.where(inside, a, b)) for a, b in zip(new, states, strict=True)]
            outputs[time] = node.emit(relax.op.where(inside, new[0], scalar(0, new[0])))
            states = kept
        else:
            outputs[time], states = new[0], new
    sequence = outputs[0] if length == 1 else node.emit(relax.op.concat(outputs, 0))
    return node.emit(relax.op.reshape(sequence, (length, batch, direction.hidden))), states


def _rnn(direction: _Direction, inputs: Any, states: Sequence[Any]) -> list[Any]:
    """`h' = f(x + h @ R.T)`."""
    (hidden,) = states
    (f,) = direction.activations

    def step(product: Any, x: Any) -> list[Any]:
        total = direction.gate(0, x, product)
        return [te.compute(x.shape, lambda *at: f(direction.clipped(total(*at))), name="hidden")]

    return _computed_from_product(direction, step, hidden, (0, None), inputs)


def _gru(direction: _Direction, inputs: Any, states: Sequence[Any]) -> list[Any]:
    """z, r = f(...), n = g(x + r * (h @ R.T + b)) or g(x + (r * h) @ R.T + b), and h' = (1 - z) * n + z * h."""
    node, (hidden,) = direction.node, states
    f, g = direction.activations
    size = direction.hidden

    def new(at: Any, update: Any, candidate: Any, hidden: Any) -> Any:
        z = f(direction.clipped(update(*at)))
        return (tirx.const(1, z.ty.dtype) - z) * g(direction.clipped(candidate)) + z * hidden(*at)

    def linear(product: Any, x: Any, hidden: Any, *bias: Any) -> list[Any]:
        update, reset = direction.gate(0, x, product), direction.gate(1, x, product)
        of_input, of_state = direction.gate(2, x), direction.gate(2, product)

        def value(*at: Any) -> Any:
            state = of_state(*at) + bias[0][at[1]] if bias else of_state(*at)
            return new(at, update, of_input(*at) + f(direction.clipped(reset(*at))) * state, hidden)

        return [te.compute(hidden.shape, value, name="hidden")]

    def kept(x: Any, product: Any, hidden: Any) -> list[Any]:
        reset = direction.gate(1, x, product)
        return [te.compute(hidden.shape, lambda *at: f(direction.clipped(reset(*at))) * hidden(*at), name="kept")]

    def plain(of_kept: Any, x: Any, product: Any, hidden: Any) -> list[Any]:
        update, candidate = direction.gate(0, x, product), direction.gate(2, x)
        return [te.compute(hidden.shape, lambda *at: new(at, update, candidate(*at) + of_kept(*at), hidden), name="h")]

    if node.attribute("linear_before_reset", 0):
        bias = [] if direction.candidate_bias is None else [direction.candidate_bias]
        return _computed_from_product(direction, linear, hidden, (0, None), inputs, hidden, *bias)
    product = direction.of_state(hidden, 0, 2 * size)
    (reset,) = _computed(direction, kept, inputs, product, hidden)
    return _computed_from_product(direction, plain, reset, (2 * size, 3 * size), inputs, product, hidden)


def _lstm(direction: _Direction, inputs: Any, states: Sequence[Any]) -> list[Any]:
    """i, o, f, c in ONNX's order; the peepholes are those of i, o and f."""
    node, (hidden, cell) = direction.node, states
    f, g, h = direction.activations
    size, coupled = direction.hidden, bool(node.attribute("input_forget", 0))

    def step(product: Any, x: Any, cell: Any, *peepholes: Any) -> list[Any]:
        def activated(number: int, state: Any, *at: Any) -> Any:
            value = direction.gate(number, x, product)(*at)
            if peepholes:
                value = value + peepholes[0][number * size + at[1]] * state(*at)
            return f(direction.clipped(value))

        def of_cell(*at: Any) -> Any:
            entering = activated(0, cell, *at)
            kept = tirx.const(1, entering.ty.dtype) - entering if coupled else activated(2, cell, *at)
            return kept * cell(*at) + entering * g(direction.clipped(direction.gate(3, x, product)(*at)))

        new = te.compute(cell.shape, of_cell, name="cell")
        return [te.compute(cell.shape, lambda *at: activated(1, new, *at) * h(new(*at)), name="hidden"), new]

    peepholes = [] if direction.peepholes is None else [direction.peepholes]
    return _computed_from_product(direction, step, hidden, (0, None), inputs, cell, *peepholes)


def _computed_from_product(
    direction: _Direction, step: Callable[..., Any], rows: Any, columns: tuple[int, int | None], *arguments: Any
) -> list[Any]:
    """The new states of a step that reads the product of rows with some of the columns of the weights of the state.

    Args:
        direction: The direction.
        step: Makes the new states of the product and the arguments.
        rows: The rows: the state, or what is kept of it.
        columns: The first of the columns, and the one behind the last; None for all.
        arguments: What the step reads besides: the inputs' part first. `rows` may be among it.
    """
    first, end = columns
    (batch, steps), width = shape_of(rows), (end or shape_of(arguments[0])[1]) - first
    if direction.weights is None or batch * steps * width >= SMALL:
        return _computed(direction, step, direction.of_state(rows, first, end), *arguments)
    inner = te.reduce_axis((0, steps), "k")

    def with_product(own: Any, weights: Any, *read: Any) -> list[Any]:
        shape = (own.shape[0], weights.shape[1])
        product = te.compute(shape, lambda i, j: te.sum(own[i, inner] * weights[inner, j], axis=inner), name="product")
        others = iter(read)
        made: list[Any] = step(product, *(own if argument is rows else next(others) for argument in arguments))
        return made

    others = [argument for argument in arguments if argument is not rows]
    return _computed(direction, with_product, rows, _columns(direction.node, direction.weights, first, end), *others)


def _columns(node: Node, weights: Any, first: int, end: int | None) -> Any:
    """Some columns of a matrix: from the first to the one before the end."""
    return weights if end is None else node.emit(relax.op.strided_slice(weights, [1], [first], [end]))


def _computed(direction: _Direction, step: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The new states of a step, all made by one kernel."""
    node = direction.node
    result = node.compute(lambda *tensors: step(*tensors), *arguments, name=f"{node.operator.lower()}_step")
    if not isinstance(result.ty, relax.TupleType):
        return [result]
    return [node.emit(relax.TupleGetItem(result, index)) for index in range(len(result.ty.fields))]


def _of_bytes(node: Node, index: int, position: int, scale: int) -> _Product:
    """The product with the weights of a direction, which are bytes, without columns left out.

    Args:
        node: The node.
        index: The direction.
        position: The input that holds the weights, as (directions, inputs, gates * hidden).
        scale: The input that holds their scales; their zero points are the next one.
    """
    weights, scales, points = (node.constant(place) for place in (position, scale, scale + 1))
    if weights is None or scales is None:
        raise ValueError("no weights, or none of their scales")
    columns = [None if values is None else values.reshape(len(weights), -1)[index] for values in (scales, points)]

    def product(rows: Any, first: int, end: int | None) -> Any:
        assert first == 0 and end is None
        return product_by_bytes(node, rows, weights[index], *columns)

    return product


def _activation(name: str) -> Callable[[Any], Any]:
    if name.lower() not in _SUPPORTED:
        raise ValueError(f"activation {name}")
    return _SUPPORTED[name.lower()]


def _stacked(node: Node, values: Sequence[Any], axis: int) -> Any:
    shape = shape_of(values[0])
    parts = [node.emit(relax.op.reshape(value, (*shape[:axis], 1, *shape[axis:]))) for value in values]
    return parts[0] if len(parts) == 1 else node.emit(relax.op.concat(parts, axis))


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "GRU": _recurrent(_gru, 1),
    "LSTM": _recurrent(_lstm, 2),
    _QUANTISED: _recurrent(_lstm, 2),
    "RNN": _recurrent(_rnn, 1),
}
