"""Converters of RNN, GRU and LSTM, whose steps are unrolled.

What does not depend on the step before is one matrix multiplication for all steps; each step adds its own part:

    z = x[0..T] @ W.T + b          once
    gates = z[t] + h @ R.T         for each t, then the activations
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from .node import Node, const, scalar, shape_of

LONGEST = 256
"""The most steps that are unrolled. Each of them is a few calls of the same kernels."""

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_ACTIVATIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_SUPPORTED: dict[str, Callable[[Any], Any]] = {
    "tanh": relax.op.tanh,
    "sigmoid": relax.op.sigmoid,
    "relu": relax.op.nn.relu,
}

_Step = Callable[["_Direction", Any, Sequence[Any]], list[Any]]
"""The new states from what a step reads, and from the states before it."""


def _recurrent(step: _Step, states: int) -> Callable[[Node], Any]:
    """The converter of an operator with so many states (hidden, cell)."""

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
    """The parameters of one direction: weights as (inputs, gates * hidden), biases as vectors."""

    node: Node
    hidden: int
    weights: Any
    recurrence: Any
    bias: Any
    recurrent_bias: Any
    peepholes: list[Any]
    states: list[Any]
    lengths: Any
    activations: list[Callable[[Any], Any]]
    reverse: bool
    clip: float | None

    @classmethod
    def of(cls, node: Node, index: int, states: int, batch: int, batch_first: bool) -> _Direction:
        hidden, gates = int(node.attribute("hidden_size")), _GATES[node.operator]

        def part(position: int, axis: int = 0) -> Any:
            whole = relax.op.strided_slice(node[position], [axis], [index], [index + 1])
            return node.emit(relax.op.squeeze(node.emit(whole), [axis]))

        def state(position: int) -> Any:
            if not node.has(position):
                return const(np.zeros((batch, hidden), node.dtype()))
            return part(position, 1 if batch_first else 0)

        def segments(value: Any, many: int) -> list[Any]:
            pieces = [relax.op.strided_slice(value, [0], [k * hidden], [(k + 1) * hidden]) for k in range(many)]
            return [node.emit(piece) for piece in pieces]

        bias = recurrent_bias = None
        if node.has(3):
            whole = part(3)
            bias = node.emit(relax.op.strided_slice(whole, [0], [0], [gates * hidden]))
            recurrent_bias = node.emit(relax.op.strided_slice(whole, [0], [gates * hidden], [2 * gates * hidden]))
        default = _ACTIVATIONS[node.operator]
        names = [_text(name) for name in node.attribute("activations") or ()] or list(default) * 2
        names = names[index * len(default) :][: len(default)]
        direction = node.attribute("direction", "forward")
        return cls(
            node,
            hidden,
            node.emit(relax.op.permute_dims(part(1))),
            node.emit(relax.op.permute_dims(part(2))),
            bias,
            recurrent_bias,
            segments(part(7), 3) if node.operator == "LSTM" and node.has(7) else [],
            [state(5 + number) for number in range(states)],
            node.optional(4),
            [_activation(name) for name in names],
            direction == "reverse" or index == 1,
            node.attribute("clip"),
        )

    def gates(self, value: Any, count: int) -> list[Any]:
        """The parts of a matrix whose columns are those of several gates."""
        parts = self.node.emit(relax.op.split(value, count, 1))
        return [self.node.emit(relax.TupleGetItem(parts, index)) for index in range(count)]

    def clipped(self, value: Any) -> Any:
        """What goes into an activation."""
        if self.clip is None:
            return value
        low, high = scalar(-self.clip, self.weights), scalar(self.clip, self.weights)
        return relax.op.minimum(relax.op.maximum(value, low), high)


def _unrolled(node: Node, x: Any, direction: _Direction, step: _Step, length: int) -> tuple[Any, list[Any]]:
    """The hidden states of all steps, (length, batch, hidden), and the last states."""
    if length > LONGEST:
        raise ValueError(f"its {length} steps would be unrolled; at most {LONGEST} are")
    _, batch, size = shape_of(x)
    rows = node.emit(relax.op.reshape(x, (length * batch, size)))
    whole = relax.op.matmul(rows, direction.weights)
    if direction.bias is not None:
        whole = relax.op.add(node.emit(whole), direction.bias)
    whole = node.emit(relax.op.reshape(node.emit(whole), (length, batch, _GATES[node.operator] * direction.hidden)))
    states: list[Any] = direction.states
    outputs: list[Any] = [None] * length
    # One kernel makes the inputs of all steps. A slice for each would be fused with what reads it, to as many kernels.
    parts = node.emit(relax.op.split(whole, length, 0)) if length > 1 else None
    for time in reversed(range(length)) if direction.reverse else range(length):
        inputs = whole if parts is None else node.emit(relax.TupleGetItem(parts, time))
        inputs = node.emit(relax.op.squeeze(inputs, [0]))
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
    sequence = node.emit(relax.op.concat([node.emit(relax.op.expand_dims(y, 0)) for y in outputs], 0))
    return sequence, states


def _rnn(direction: _Direction, inputs: Any, states: Sequence[Any]) -> list[Any]:
    (hidden,) = states
    total = relax.op.add(inputs, _recurrence(direction, hidden))
    return [direction.node.emit(direction.activations[0](direction.clipped(total)))]


def _gru(direction: _Direction, inputs: Any, states: Sequence[Any]) -> list[Any]:
    """z, r = f(...), n = g(x + r * (h @ R.T + b)) or g(x + (r * h) @ R.T + b), and h' = (1 - z) * n + z * h."""
    node, (hidden,) = direction.node, states
    f, g = direction.activations
    size = direction.hidden
    xz, xr, xn = direction.gates(inputs, 3)
    if node.attribute("linear_before_reset", 0):
        hz, hr, hn = direction.gates(node.emit(_recurrence(direction, hidden)), 3)
    else:
        hz, hr = direction.gates(node.emit(_recurrence(direction, hidden, 0, 2 * size)), 2)
    update = node.emit(f(direction.clipped(relax.op.add(xz, hz))))
    reset = node.emit(f(direction.clipped(relax.op.add(xr, hr))))
    if node.attribute("linear_before_reset", 0):
        candidate = relax.op.multiply(reset, hn)
    else:
        candidate = _recurrence(direction, node.emit(relax.op.multiply(reset, hidden)), 2 * size, 3 * size)
    new = node.emit(g(direction.clipped(relax.op.add(xn, candidate))))
    kept = relax.op.multiply(update, hidden)
    return [node.emit(relax.op.add(relax.op.multiply(relax.op.subtract(scalar(1, new), update), new), kept))]


def _lstm(direction: _Direction, inputs: Any, states: Sequence[Any]) -> list[Any]:
    """i, o, f, c in ONNX's order; the peepholes are those of i, o and f."""
    node, (hidden, cell) = direction.node, states
    f, g, h = direction.activations
    total = node.emit(relax.op.add(inputs, _recurrence(direction, hidden)))
    i, o, forget, c = direction.gates(total, 4)

    def peeped(gate: Any, index: int, state: Any) -> Any:
        if not direction.peepholes:
            return gate
        return relax.op.add(gate, relax.op.multiply(direction.peepholes[index], state))

    entering = node.emit(f(direction.clipped(peeped(i, 0, cell))))
    if node.attribute("input_forget", 0):
        kept = node.emit(relax.op.subtract(scalar(1, entering), entering))
    else:
        kept = node.emit(f(direction.clipped(peeped(forget, 2, cell))))
    candidate = relax.op.multiply(entering, g(direction.clipped(c)))
    new = node.emit(relax.op.add(relax.op.multiply(kept, cell), candidate))
    leaving = f(direction.clipped(peeped(o, 1, new)))
    return [node.emit(relax.op.multiply(leaving, h(new))), new]


def _recurrence(direction: _Direction, hidden: Any, first: int = 0, end: int | None = None) -> Any:
    """h @ R.T + b for some of the gates' columns."""
    node, weights, bias = direction.node, direction.recurrence, direction.recurrent_bias
    if end is not None:
        weights = node.emit(relax.op.strided_slice(weights, [1], [first], [end]))
        if bias is not None:
            bias = node.emit(relax.op.strided_slice(bias, [0], [first], [end]))
    product = node.emit(relax.op.matmul(hidden, weights))
    return product if bias is None else relax.op.add(product, bias)


def _activation(name: str) -> Callable[[Any], Any]:
    if name.lower() not in _SUPPORTED:
        raise ValueError(f"activation {name}")
    return _SUPPORTED[name.lower()]


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _stacked(node: Node, values: Sequence[Any], axis: int) -> Any:
    parts = [node.emit(relax.op.expand_dims(value, axis)) for value in values]
    return parts[0] if len(parts) == 1 else node.emit(relax.op.concat(parts, axis))


CONVERTERS: dict[str, Callable[[Node], Any]] = {
    "GRU": _recurrent(_gru, 1),
    "LSTM": _recurrent(_lstm, 2),
    "RNN": _recurrent(_rnn, 1),
}
