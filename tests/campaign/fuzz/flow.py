"""Control flow, and sequences."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fuzz.drawing import FLOATS, Drawing, Value
from fuzz.moving import integers
from fuzz.registry import operator

_BODIES = ("Relu", "Tanh", "Sigmoid", "Neg", "Sin")
_BOUNDED = ("Tanh", "Softsign")  # what a step carries to the next one must not grow, nor be the tail of a Sigmoid
_PAIRS = ("Add", "Mul", "Sub")


@operator("If", weight=1.5)
def condition(d: Drawing, name: str) -> Value:
    """Two branches that read a value from outside; what decides is a constant, an input, or computed."""
    x = d.tensor()
    kind = d.choice(["constant", "input", "computed"])
    if kind == "constant":
        decides = d.constant(np.asarray(d.chance(0.5)))
    elif kind == "input":
        decides = d.given(np.asarray(d.chance(0.5)))
    else:
        with d.anything():
            total = d.add("ReduceMean", x, keepdims=0)
            d.far(total, np.abs(total.array))
            decides = d.add("Greater", total, d.constant(np.float32(0)))
            d.hide(total, decides)

    def branch() -> onnx.GraphProto:
        made, own = d.inner_name("branch"), d.inner_name("inner")
        weight = numpy_helper.from_array(d.array((1,) * x.rank), d.inner_name("weight"))
        nodes = [
            helper.make_node(d.choice(_BODIES), [x.name], [own]),
            helper.make_node(d.choice(_PAIRS), [own, weight.name], [made]),
        ]
        return helper.make_graph(nodes, "branch", [], [_info(made, x)], [weight])

    return d.add_all(name, [decides], 1, captured=[x], then_branch=branch(), else_branch=branch())[0]


def _info(name: str, like: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, like.onnx_type, like.shape)


@operator("Loop", since=8, weight=1.5)
def loop(d: Drawing, name: str) -> tuple[Value, ...]:
    """A loop of a few steps that carries a value, and collects another."""
    x, trips = d.tensor(FLOATS, (1, 2, 3)), d.integer(1, 4)
    step, go, state = (d.inner_name(stem) for stem in ("step", "go", "state"))
    goes_on, carried, number, collected = (d.inner_name(stem) for stem in ("goes_on", "carried", "number", "collected"))
    weight = d.constant(d.array((1,) * x.rank))
    nodes = [
        helper.make_node("Identity", [go], [goes_on]),
        helper.make_node("Cast", [step], [number], to=TensorProto.FLOAT),
        helper.make_node(d.choice(_PAIRS), [state, weight.name], [f"{carried}_in"]),
        helper.make_node(d.choice(_BOUNDED), [f"{carried}_in"], [carried]),
    ]
    outputs = [helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []), _info(carried, x)]
    collects = d.chance(0.6)
    if collects:
        nodes.append(helper.make_node("Add", [state, number], [collected]))
        outputs.append(_info(collected, x))
    inputs = [
        helper.make_tensor_value_info(step, TensorProto.INT64, []),
        helper.make_tensor_value_info(go, TensorProto.BOOL, []),
        _info(state, x),
    ]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    given = [integers(d, trips), d.choice([None, d.constant(np.asarray(True))]), x]
    return d.add_all(name, given, 2 if collects else 1, captured=[weight], body=body)


@operator("Scan", since=9)
def scan(d: Drawing, name: str) -> tuple[Value, ...]:
    """A running sum or product over the first axis."""
    x = d.tensor(FLOATS, (2, 3), lambda value: value.shape[0] <= 8)
    row = Value("", x.array[0], exact=False)
    state, element, carried, collected = (d.inner_name(stem) for stem in ("state", "element", "carried", "collected"))
    nodes = [
        helper.make_node(d.choice(_PAIRS), [state, element], [f"{carried}_in"]),
        helper.make_node(d.choice(_BOUNDED), [f"{carried}_in"], [carried]),
        helper.make_node(d.choice(_BODIES), [carried], [collected]),
    ]
    body = helper.make_graph(
        nodes, "body", [_info(state, row), _info(element, row)], [_info(carried, row), _info(collected, row)]
    )
    first = d.constant(d.array(row.shape))
    directions = d.choice([None, [0], [1]])
    return d.add_all(name, [first, x], 2, body=body, num_scan_inputs=1, scan_input_directions=directions)


@operator("SequenceConstruct", since=11)
def sequence(d: Drawing, name: str) -> Value:
    """Tensors in a sequence, one of which is read, or all of them together."""
    x = d.tensor(FLOATS, (1, 2, 3))
    parts = [x, *(d.constant(d.array(x.shape)) for _ in range(d.integer(1, 2)))]
    order = [parts[int(i)] for i in d.rng.permutation(len(parts))]
    together, made = d.inner_name("sequence"), d.inner_name("sequence_made")
    first = helper.make_node(name, [part.name for part in order], [together])
    if d.chance(0.5):
        at = integers(d, d.choice([0, -1, 1]))
        second = helper.make_node("SequenceAt", [together, at.name], [made])
        return d.adopt([first, second], [*order, at], [made], exact=True)[0]
    new = d.choice([0, 1])
    second = helper.make_node("ConcatFromSequence", [together], [made], axis=d.integer(0, x.rank - 1), new_axis=new)
    return d.adopt([first, second], order, [made], exact=True)[0]


@operator("SplitToSequence", since=11)
def split_to_sequence(d: Drawing, name: str) -> Value:
    """Parts of a tensor in a sequence, one of which is read."""
    x = d.tensor(FLOATS, (1, 2, 3), lambda value: value.shape[0] > 1)
    together, made = d.inner_name("sequence"), d.inner_name("sequence_at")
    size = integers(d, d.integer(1, x.shape[0] - 1))
    at = integers(d, d.choice([0, -1, 1]))
    nodes = [
        helper.make_node(name, [x.name, size.name], [together], axis=0),
        helper.make_node("SequenceAt", [together, at.name], [made]),
    ]
    return d.adopt(nodes, [x, size, at], [made], exact=True)[0]
