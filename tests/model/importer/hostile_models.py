"""Small ONNX models that ask for too much, or that are malformed, each by its name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tiny_models import make_model

HUGE = 1 << 40


def _ints(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def _of(nodes: list[onnx.NodeProto], *extra: onnx.TensorProto, opset: int = 13) -> onnx.ModelProto:
    return make_model(nodes, {}, {"x": (1, 4)}, {"y": (1, 4)}, opset, list(extra))


def _added(name: str) -> onnx.NodeProto:
    return helper.make_node("Add", ["x", name], ["y"], "sum")


def constant_of_shape() -> onnx.ModelProto:
    return _of([helper.make_node("ConstantOfShape", ["s"], ["c"], "big"), _added("c")], _ints("s", HUGE))


def expand_constant() -> onnx.ModelProto:
    one = numpy_helper.from_array(np.ones((1,), np.float32), "one")
    return _of([helper.make_node("Expand", ["one", "s"], ["c"], "big"), _added("c")], one, _ints("s", HUGE, 4))


def expand_input() -> onnx.ModelProto:
    return _of([helper.make_node("Expand", ["x", "s"], ["y"], "big")], _ints("s", HUGE, 4))


def tile() -> onnx.ModelProto:
    return _of([helper.make_node("Tile", ["x", "s"], ["y"], "big")], _ints("s", HUGE, 1))


def range_() -> onnx.ModelProto:
    bounds = [
        numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in {"a": 0, "b": HUGE, "d": 1}.items()
    ]
    return _of([helper.make_node("Range", ["a", "b", "d"], ["c"], "big"), _added("c")], *bounds)


def resize() -> onnx.ModelProto:
    image = make_model(
        [helper.make_node("Resize", ["x", "", "", "s"], ["y"], "big", mode="nearest")],
        {},
        {"x": (1, 1, 4, 4)},
        {"y": (1, 1, HUGE, HUGE)},
        13,
        [_ints("s", 1, 1, HUGE, HUGE)],
    )
    return image


def shape_overflow() -> onnx.ModelProto:
    return _of([helper.make_node("Expand", ["x", "s"], ["y"], "big")], _ints("s", 1 << 62, 1 << 62, 1, 4))


def negative_expand() -> onnx.ModelProto:
    return _of([helper.make_node("ConstantOfShape", ["s"], ["c"], "bad"), _added("c")], _ints("s", -5))


def doubling() -> onnx.ModelProto:
    """Fifty concatenations of a constant with itself: 2**50 elements from fifty nodes."""
    nodes = [helper.make_node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], f"concat{i}", axis=0) for i in range(50)]
    return _of([*nodes, _added("c50")], numpy_helper.from_array(np.ones((1,), np.float32), "c0"))


def endless_loop() -> onnx.ModelProto:
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["still"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("going", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, (1, 4)),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, (1, 4)),
        ],
    )
    return _of(
        [helper.make_node("Loop", ["trips", "", "start"], ["c"], "endless", body=body), _added("c")],
        numpy_helper.from_array(np.array(HUGE), "trips"),
        numpy_helper.from_array(np.ones((1, 4), np.float32), "start"),
    )


def deep_chain(nodes: int = 100_000) -> onnx.ModelProto:
    chain = [helper.make_node("Relu", [f"a{i}" if i else "x"], [f"a{i + 1}"]) for i in range(nodes)]
    chain[-1].output[0] = "y"
    return _of(chain)


def deep_branches(depth: int = 40) -> onnx.ModelProto:
    def branch(level: int) -> onnx.GraphProto:
        if level == 0:
            node = helper.make_node("Identity", ["x"], ["r"])
        else:
            inner = branch(level - 1)
            node = helper.make_node("If", ["truth"], ["r"], then_branch=inner, else_branch=inner)
        return helper.make_graph([node], "g", [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, (1, 4))])

    # Both branches hold the next level: the depth is bounded by the size, which doubles with each level.
    inner = branch(min(depth, 8))
    node = helper.make_node("If", ["truth"], ["y"], then_branch=inner, else_branch=inner)
    return _of([node], numpy_helper.from_array(np.array(True), "truth"))


def cycle() -> onnx.ModelProto:
    return _of([helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"]), _added("b")])


def repeated_names() -> onnx.ModelProto:
    return _of([helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])])


def repeated_initializers() -> onnx.ModelProto:
    return _of([_added("w")], _ints("w", 1), numpy_helper.from_array(np.ones((4,), np.float32), "w"))


def unknown_input() -> onnx.ModelProto:
    return _of([_added("nowhere")])


def initializer_without_data() -> onnx.ModelProto:
    return _of([_added("w")], TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 31, 1 << 31]))


def negative_initializer() -> onnx.ModelProto:
    return _of([_added("w")], TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-4], raw_data=bytes(16)))


def initializer_of_no_type() -> onnx.ModelProto:
    return _of([_added("w")], TensorProto(name="w", data_type=99, dims=[4], raw_data=bytes(16)))


def input_of_no_type() -> onnx.ModelProto:
    model = _of([helper.make_node("Relu", ["x"], ["y"])])
    model.graph.input[0].type.tensor_type.elem_type = 99
    return model


def nan_attribute() -> onnx.ModelProto:
    return _of([helper.make_node("LeakyRelu", ["x"], ["y"], alpha=float("nan"))])


def infinite_sizes() -> onnx.ModelProto:
    scales = numpy_helper.from_array(np.array([1, 1, np.inf, np.nan], np.float32), "s")
    nodes = [helper.make_node("Resize", ["x", "", "s"], ["y"], "big", mode="nearest")]
    return make_model(nodes, {}, {"x": (1, 1, 4, 4)}, {"y": (1, 1, 4, 4)}, 13, [scales])


def long_strings() -> onnx.ModelProto:
    nodes = [helper.make_node("n" * 4_000_000, ["x"], ["y"], "\x1b[2J" + "m" * 4_000_000)]
    return _of(nodes)


def no_outputs() -> onnx.ModelProto:
    model = _of([helper.make_node("Frobnicate", ["x"], [])])
    del model.graph.output[:]
    return model


def recursive_function() -> onnx.ModelProto:
    model = _of([helper.make_node("F", ["x"], ["y"], domain="own")])
    call = helper.make_node("F", ["a"], ["b"], domain="own")
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("own", 1)]
    model.functions.append(helper.make_function("own", "F", ["a"], ["b"], [call], opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    make.__name__.strip("_"): make
    for make in (
        constant_of_shape,
        expand_constant,
        expand_input,
        tile,
        range_,
        resize,
        shape_overflow,
        negative_expand,
        doubling,
        endless_loop,
        deep_chain,
        deep_branches,
        cycle,
        repeated_names,
        repeated_initializers,
        unknown_input,
        initializer_without_data,
        negative_initializer,
        initializer_of_no_type,
        input_of_no_type,
        nan_attribute,
        infinite_sizes,
        long_strings,
        no_outputs,
        recursive_function,
    )
}
