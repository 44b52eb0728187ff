"""Plain schedules for GPUs, executed on this machine's cores: by OpenCL, and as CUDA source with sanitizers."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from tvm import te, tirx, topi

from stand_ins.cuda_on_host import SANITIZERS, execute_on_host
from stormdrop.codegen.gpu_lowering import launches_of, lower_for_gpu
from stormdrop.errors import ModelError
from stormdrop.ir.reference import evaluate
from stormdrop.machine.cpu import parse_machine
from stormdrop.machine.gpu import GPUS
from stormdrop.machine.opencl import opencl_devices
from stormdrop.model.building.compile import build
from stormdrop.model.building.gpu_fallback import schedule_gpu_fallback
from stormdrop.model.importer.any_model import import_model

pytestmark = pytest.mark.compiles

A100 = GPUS["a100"]

MODELS = {
    "elementwise chain": "(float[7, 149] x) => (float[7, 149] y) { a = Relu(x)  b = Exp(a)  y = Mul(b, x) }",
    "softmax": "(float[149, 1000] x) => (float[149, 1000] y) { y = Softmax(x) }",
    "sum of all": "(float[7, 149] x) => (float y) { a = Abs(x)  b = ReduceSum<keepdims = 0>(a)  y = Sqrt(b) }",
    "maximum": "(float[7, 149, 3] x) => (float[7, 1, 3] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }",
    "largest index": "(float[7, 149, 3] x) => (int64[7, 3] y) { y = ArgMax<axis = 1, keepdims = 0>(x) }",
    "least index": "(float[149] x) => (int64[1] y) { y = ArgMin<axis = 0>(x) }",
    "matmul": "(float[7, 149] x, float[149, 3] z) => (float[7, 3] y) { y = MatMul(x, z) }",
    "transpose": "(float[7, 149, 3] x) => (float[3, 7, 149] y) { y = Transpose<perm = [2, 0, 1]>(x) }",
    "concatenation": "(float[7, 149] x, float[7, 3] z) => (float[7, 152] y) { y = Concat<axis = 1>(x, z) }",
    "parts of one name": "(float[9, 5] x) => (float[3, 5] a, float[3, 5] b, float[3, 5] c) "
    "{ a, b, c = Split<num_outputs = 3>(x) }",
    "slice": "(float[7, 149] x) => (float[7, 75] y) <int64[1] a = {-1}, int64[1] e = {-1000}, int64[1] d = {1}, "
    "int64[1] s = {-2}> { y = Slice(x, a, e, d, s) }",
    "one hot": "(int64[7, 3] i) => (float[7, 3, 10] y) <int64 d = {10}, float[2] v = {0, 1}> { y = OneHot(i, d, v) }",
    "resize": '(float[1, 3, 7, 7] x) => (float[1, 3, 14, 14] y) <float[4] s = {1, 1, 2, 2}> '
    '{ y = Resize<mode = "cubic">(x, , s) }',
    "truth values": "(float[7, 149] x, float[7, 149] z) => (float[7, 149] y, bool[7, 149] g) "
    "{ g = Greater(x, z)  n = Not(g)  y = Where(n, x, z) }",
    "integers": "(int64[7, 149] i, int64[149] j) => (int64[7, 149] y) <int64 m = {5}> { t = Mul(i, j)  y = Mod(t, m) }",
    "bytes": "(uint8[7, 149] i) => (uint8[7, 149] y) <float s = {0.05}> "
    "{ f = DequantizeLinear(i, s)  g = Sigmoid(f)  y = QuantizeLinear(g, s) }",
    "gather": "(float[7, 10, 3] x, int64[4, 5] i) => (float[7, 4, 5, 3] y) { g = Gather<axis = 1>(x, i)  y = Relu(g) }",
    "gather of elements": "(float[7, 10] x, int64[7, 5] i) => (float[7, 5] y) { y = GatherElements<axis = 1>(x, i) }",
    "gather by tuples": "(float[7, 10, 3] x, int64[20, 2] i) => (float[20, 3] y) { y = GatherND(x, i) }",
    "scatter": "(float[7, 10] x, int64[7, 20] i, float[7, 20] u) => (float[7, 10] y) "
    "{ y = ScatterElements<axis = 1>(x, i, u) }",
    "scatter that adds": "(float[7, 10] x, int64[20, 10] i, float[20, 10] u) => (float[7, 10] y) "
    '{ y = ScatterElements<axis = 0, reduction = "add">(x, i, u) }',
    "scatter by tuples": "(float[7, 10, 3] x, int64[20, 2] i, float[20, 3] u) => (float[7, 10, 3] y) "
    "{ y = ScatterND(x, i, u) }",
    "scatter of numbers": "(float[7, 10] x, int64[20, 2] i, float[20] u) => (float[7, 10] y) "
    '{ y = ScatterND<reduction = "mul">(x, i, u) }',
    "recurrence": "(float[3, 2, 5] x, float[1, 16, 5] w, float[1, 16, 4] r) => (float[3, 1, 2, 4] y) "
    "{ y = LSTM<hidden_size = 4>(x, w, r) }",
}  # fmt: skip
"""Indices are below 4, so that many are equal: of those that write to one element the last one has to win."""


@cache
def opencl() -> bool:
    return bool(opencl_devices())


@pytest.mark.parametrize("name", MODELS)
def test_models_whose_kernels_all_have_plain_schedules(name: str) -> None:
    if not opencl():
        pytest.skip("OpenCL finds no device here (it needs pyopencl and a driver such as PoCL)")
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> plain {MODELS[name]}')
    graph = import_model(proto)
    model = build(graph, {}, parse_machine("opencl"))
    assert {report.reached for report in model.metadata.fallbacks} <= {
        "blocks and threads",
        "blocks and threads, one thread in parts",
        "one thread",
    }
    feeds = random_feeds(proto)
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    for output, wanted in zip(model.run(feeds).values(), expected, strict=True):
        np.testing.assert_allclose(output, wanted, rtol=2e-5, atol=1e-5)


def random_feeds(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Indices from 0 to 3, and multiples of a half."""
    rng, feeds = np.random.default_rng(0), {}
    for value in proto.graph.input:
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        numbers = rng.integers(0, 4, shape) if kind.kind in "iu" else rng.integers(-6, 7, shape) / 2
        feeds[value.name] = numbers.astype(kind)
    return feeds


def guarded() -> tirx.PrimFunc:
    x = te.placeholder((7, 149), name="x")
    return te.create_prim_func([x, te.compute((149, 7), lambda i, j: x[j, i] * 2.0 + 1.0, name="y")])


def column_sums() -> tirx.PrimFunc:
    x, k = te.placeholder((149, 700), name="x"), te.reduce_axis((0, 149))
    sums = te.compute((700,), lambda j: te.sum(x[k, j], axis=k), name="sums")
    return te.create_prim_func([x, te.compute((700,), lambda j: sums[j] / 149.0, name="y")])


@pytest.mark.parametrize("make", [guarded, column_sums])
def test_cuda_source_under_both_sanitizers(make: object) -> None:
    needs_compiler()
    function = make()  # type: ignore[operator]
    x = np.random.default_rng(0).integers(-4, 5, [int(extent) for extent in function.params[0].shape])
    scheduled = schedule_gpu_fallback(function, A100)
    assert scheduled.reached == "blocks and threads"
    (expected,) = evaluate(function, [x.astype(np.float32)])
    for execution in execute_on_host(scheduled.function, A100, [x.astype(np.float32)], SANITIZERS):
        assert (execution.error, execution.complaints) == ("", ())
        np.testing.assert_allclose(execution.outputs[0], expected, rtol=1e-6)


def test_a_missing_guard_is_found() -> None:
    needs_compiler()
    x = np.ones((7, 149), np.float32)
    function = schedule_gpu_fallback(guarded(), A100).function
    (execution,) = execute_on_host(
        function, A100, [x], ["address"], lambda source: re.sub(r"if \(.*\) \{", "if (true) {", source)
    )
    assert execution.error or execution.complaints


def scatter(accumulate: bool) -> tirx.PrimFunc:
    x, index = te.placeholder((8,), name="x"), te.placeholder((600,), "int64", name="index")
    values = te.placeholder((600,), name="values")
    return te.create_prim_func([x, index, values, topi.index_put(x, [index], values, accumulate)])


def test_equal_indices_are_left_to_one_thread() -> None:
    """TVM calls these iterations parallel, although they add to the same elements."""
    needs_compiler()
    scheduled = schedule_gpu_fallback(scatter(accumulate=True), A100)
    assert scheduled.reached == "blocks and threads, one thread in parts"
    host, kernels = lower_for_gpu(scheduled.function, A100.tvm())
    assert [launch.threads for launch in launches_of(host, kernels)] == [8, 1]
    index = np.random.default_rng(0).integers(0, 8, 600)
    inputs: list[Any] = [np.zeros(8, np.float32), index, np.ones(600, np.float32)]
    (execution,) = execute_on_host(scheduled.function, A100, inputs)
    assert np.array_equal(execution.outputs[0], np.bincount(index, minlength=8))


def test_blocks_are_no_larger_than_the_device_permits() -> None:
    small = replace(A100, threads_per_block=64)
    host, kernels = lower_for_gpu(schedule_gpu_fallback(guarded(), small).function, small.tvm())
    assert [(launch.blocks, launch.threads) for launch in launches_of(host, kernels)] == [(17, 64)]


def test_a_function_of_the_runtime_is_refused_by_its_name() -> None:
    x = te.placeholder((8,), name="x")
    with pytest.raises(ModelError, match=r"calls tvm\.contrib\.sort\.sort, which no GPU can do"):
        schedule_gpu_fallback(te.create_prim_func([x, topi.sort(x)]), A100)


def needs_compiler() -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ on the PATH")
