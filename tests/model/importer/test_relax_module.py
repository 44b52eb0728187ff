"""Relax modules as models: inputs, symbolic sizes, bound parameters, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

import stormdrop as sd
from stormdrop.errors import ModelError
from stormdrop.model.importer.any_model import import_model
from stormdrop.model.importer.relax_module import import_relax, index_ranges
from stormdrop.model.verification.verify import Reference

RNG = np.random.default_rng(0)


def array(*shape: int) -> Any:
    return relax.const(RNG.standard_normal(shape).astype(np.float32))


def module(rows: Any = 4, outputs: int = 0) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([rows, 8], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.relu(relax.op.add(relax.op.matmul(x, array(8, 16)), array(16))))
            z = builder.emit(relax.op.multiply(y, y))
            result = builder.emit_output([y, relax.Tuple([y]), relax.Tuple([y, z])][outputs])
        builder.emit_func_output(result)
    return builder.get()


def convolution_and_norm(bias: bool = False) -> tvm.IRModule:
    """conv -> (bias) -> batch norm -> relu -> batch norm."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([1, 3, 8, 8], "float32"))

    def norm(value: Any) -> Any:
        variance = relax.const(RNG.uniform(0.5, 2, 16).astype(np.float32))
        call = relax.op.nn.batch_norm(value, array(16), array(16), array(16), variance, axis=1, training=False)
        return builder.emit(relax.TupleGetItem(builder.emit(call), 0))

    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, array(16, 3, 3, 3), padding=1))
            if bias:
                y = builder.emit(relax.op.add(y, array(1, 16, 1, 1)))
            y = builder.emit(relax.op.nn.relu(norm(y)))
            result = builder.emit_output(norm(y))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.compiles
@pytest.mark.parametrize("outputs", [0, 1, 2], ids=["tensor", "tuple of one", "tuple of two"])
def test_a_module_is_compiled_and_verified(outputs: int) -> None:
    mod = module(outputs=outputs)
    model = sd.compile_model(mod, fresh=True)
    assert [info.name for info in model.inputs] == ["x"]
    assert [info.name for info in model.outputs] == (["output"] if outputs < 2 else ["output_0", "output_1"])
    assert model.metadata.provenance["verified"]["max_error"] < 1e-4


@pytest.mark.compiles
@pytest.mark.parametrize("bias", [False, True])
def test_batch_norms_are_folded(bias: bool) -> None:
    mod = convolution_and_norm(bias)
    graph = import_relax(mod)
    (convolution,) = [task.name for task in graph.tasks if "conv" in task.name]
    # One addition and no multiplication follow for the first norm, and both for the second, which follows a ReLU.
    assert convolution == "fused_conv2d_add_relu_multiply_add"
    assert max(max(one.peer.values()) for one in Reference.compute(graph).expected) < 1e-5  # TVM computes the same


def test_parameters_that_a_frontend_has_bound_are_weights() -> None:
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in (("x", [4, 8]), ("w", [8, 16])))
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(x, w))
        builder.emit_func_output(result)
    mod = builder.get()
    mod["main"] = mod["main"].with_attr("params", [tvm.runtime.tensor(np.ones((8, 16), np.float32))])
    graph = import_relax(mod)
    assert [info.name for info in graph.inputs] == ["x"]
    assert graph.constant_bytes == 8 * 16 * 4
    assert graph.tasks[0].constants == (1,)


def test_a_symbolic_size_takes_what_the_user_gives() -> None:
    n = tvm.tirx.Var("n", "int64")
    graph = import_relax(module(rows=n), {"x": (6, 8)})
    assert graph.inputs[0].shape == (6, 8) and graph.outputs[0].shape == (6, 16)
    with pytest.raises(ModelError, match=r"dimension 0 \(n\) of input 'x' has no size; .*'x': \(N, 8\)"):
        import_relax(module(rows=n))
    with pytest.raises(ModelError, match="dimension 1 of input 'x' is 8, not 9"):
        import_relax(module(rows=n), {"x": (6, 9)})
    with pytest.raises(ModelError, match="has no input 'y'; its inputs are 'x'"):
        import_relax(module(), {"y": (1,)})


def test_several_sizes_of_a_symbolic_size() -> None:
    graph = import_model(module(rows=tvm.tirx.Var("n", "int64")), {"x": ((2, 6), 8)})
    assert [size.outputs[0].shape for size in graph.sizes] == [(2, 16), (6, 16)]
    assert all(size.tasks is graph.tasks for size in graph.sizes)
    with pytest.raises(ModelError, match="Relax module: dimension 0 of input 'x': the list of sizes is empty"):
        import_model(module(), {"x": ((), 8)})


def test_a_module_without_main_is_refused() -> None:
    with pytest.raises(ModelError, match="has no Relax function main; it has nothing"):
        import_relax(tvm.IRModule({}))


def test_the_words_of_a_vocabulary_are_found() -> None:
    builder = relax.BlockBuilder()
    ids = relax.Var("ids", relax.TensorType([1, 5], "int64"))
    with builder.function("main", [ids]):
        with builder.dataflow():
            flat = builder.emit(relax.op.reshape(relax.op.astype(ids, "int32"), [5]))
            result = builder.emit_output(relax.op.take(array(11, 4), flat, axis=0))
        builder.emit_func_output(result)
    assert index_ranges(builder.get(), ["ids"]) == {"ids": 11}


def test_an_input_that_something_is_divided_by_is_never_zero() -> None:
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType([5], "int32")) for name in ("x", "y"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.floor_divide(x, y))
        builder.emit_func_output(result)
    assert index_ranges(builder.get(), ["x", "y"]) == {"y": (1, 3)}


@pytest.mark.parametrize(("reduction", "found"), [("update", (0, 16, True)), ("add", 16)])
def test_places_that_are_written_to_are_found(reduction: str, found: object) -> None:
    builder = relax.BlockBuilder()
    cache, rows = (
        relax.Var("cache", relax.TensorType([2, 16], "float32")),
        relax.Var("rows", relax.TensorType([2, 3], "int64")),
    )
    new = relax.Var("new", relax.TensorType([2, 3], "float32"))
    with builder.function("main", [cache, rows, new]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.scatter_elements(cache, rows, new, -1, reduction))
        builder.emit_func_output(result)
    assert index_ranges(builder.get(), ["cache", "rows", "new"]) == {"rows": found}


@pytest.mark.parametrize("opset", [7, 13])
def test_the_bounds_of_a_clip_of_tvms_frontend_join_their_convolution(opset: int) -> None:
    bounds = [numpy_helper.from_array(np.float32(value), name) for name, value in (("low", 0), ("high", 6))]
    clip = (
        helper.make_node("Clip", ["a", "low", "high"], ["y"])
        if opset == 13
        else helper.make_node("Clip", ["a"], ["y"], min=0.0, max=6.0)
    )
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 8, 8, 8)) for name in "xy")
    weight = numpy_helper.from_array(np.ones((8, 8, 3, 3), np.float32), "w")
    convolution = helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1])
    graph = helper.make_graph([convolution, clip], "bounded", [x], [y], [weight, *bounds])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    mod = from_onnx(model, keep_params_in_input=False)
    assert "fused_conv2d_maximum_minimum" in {task.name for task in import_relax(mod).tasks}
