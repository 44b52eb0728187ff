"""Functions of one byte as tables: what becomes one, what does not, and that the results are the very same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import te, tirx

from stormdrop import operators
from stormdrop.ir.contractions.tables import with_tables
from stormdrop.ir.inlining import inline_well
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.stages import StageGraph
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.sketches.cpu.streaming import Streaming
from stormdrop.testing.sketches import check_sketch

TARGET = Cpu.detect()


def quantized(value: Any, scale: Any, dtype: str = "uint8") -> Any:
    low, high = {"uint8": (0.0, 255.0), "int8": (-128.0, 127.0)}[dtype]
    return tirx.min(tirx.max(tirx.nearbyint(value / scale) + 3.0, low), high).astype(dtype)


def dequantized(value: Any, scale: Any) -> Any:
    return (value.astype("int32") - 3).astype("float32") * scale


def activation(byte: Any, scale: Any, dtype: str = "uint8") -> Any:
    """x clip(x + 3, 0, 6) / 6 with a rounding to a byte after each operator."""
    x = dequantized(byte, scale)
    shifted = dequantized(quantized(x + 3.0, scale, dtype), scale)
    gate = dequantized(quantized(tirx.min(tirx.max(shifted, 0.0), 6.0) / 6.0, scale, dtype), scale)
    return quantized(x * gate, scale, dtype)


def workload(rows: int = 64, dtype: str = "uint8", of_bytes: bool = False) -> Workload:
    """An activation of floats that are rounded, or of bytes."""
    x, scale = te.placeholder((rows, 100), dtype if of_bytes else "float32", name="x"), te.placeholder((), name="s")

    def element(*i: Any) -> Any:
        byte = x(*i) if of_bytes else quantized(x(*i), scale(), dtype)
        return activation(byte, scale(), dtype)

    return Workload.create("activation", te.create_prim_func([x, scale, te.compute((rows, 100), element)]))


def tables(graph: StageGraph) -> list[str]:
    """The names of the buffers that are tables."""
    return [str(stage.buffer.name) for stage in graph.stages if "table" in str(stage.buffer.name)]


@pytest.mark.parametrize("of_bytes", [False, True], ids=["rounded", "bytes"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_results_are_the_very_same(dtype: str, of_bytes: bool) -> None:
    graph = inline_well(workload(dtype=dtype, of_bytes=of_bytes).graph)
    with_one = with_tables(graph)
    assert len(tables(with_one)) == 1 and len(with_one.stages) == 2
    assert [int(extent) for extent in with_one.stages[0].buffer.shape] == [256]
    rng = np.random.default_rng(0)
    x: Any = rng.standard_normal((64, 100)).astype(np.float32) * 8
    if of_bytes:
        x = rng.integers(*{"uint8": (0, 256), "int8": (-128, 128)}[dtype], (64, 100)).astype(dtype)
    inputs = [x, np.float32(0.07)]
    (before,), (after,) = (evaluate_graph(each, inputs) for each in (graph, with_one))
    assert len(np.unique(before)) > 20
    np.testing.assert_array_equal(before, after)


def test_few_elements_and_cheap_functions_have_none() -> None:
    small = inline_well(workload(rows=32).graph)
    assert with_tables(small) is small, "less than 4,096 elements"
    x, scale = te.placeholder((64, 100), "uint8", name="x"), te.placeholder((), name="s")
    cheap = te.compute((64, 100), lambda *i: dequantized(x(*i), scale()))
    graph = Workload.create("cheap", te.create_prim_func([x, scale, cheap])).graph
    assert with_tables(graph) is graph


def test_what_depends_on_more_than_a_byte_stays() -> None:
    """A sum of two tensors of bytes: only what follows its rounding is a table."""
    x, y = (te.placeholder((64, 100), "uint8", name=name) for name in "xy")
    scale, bias = te.placeholder((), name="s"), te.placeholder((100,), name="b")

    def added(i: Any, j: Any) -> Any:
        total = dequantized(x[i, j], scale()) + dequantized(y[i, j], scale())
        return activation(quantized(total, scale()), scale())

    graph = inline_well(Workload.create("sum", te.create_prim_func([x, y, scale, te.compute((64, 100), added)])).graph)
    looked_up = with_tables(graph)
    assert len(tables(looked_up)) == 1
    assert {str(load.source.name) for load in looked_up.stages[-1].loads()} >= {"x0", "x1"}

    def biased(i: Any, j: Any) -> Any:
        return activation(quantized(dequantized(x[i, j], scale()) + bias[j], scale()), scale())

    prim_func = te.create_prim_func([x, scale, bias, te.compute((64, 100), biased)])
    graph = with_tables(inline_well(Workload.create("bias", prim_func).graph))
    (table,) = (stage for stage in graph.stages if "table" in str(stage.buffer.name))
    assert "x2" not in {str(load.source.name) for load in table.loads()}, "the bias moves with the elements"


@pytest.mark.compiles
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("padded", [False, True], ids=["plain", "padded"])
def test_kernels_look_up(dtype: str, padded: bool) -> None:
    x, scale = te.placeholder((24, 20, 35), name="x"), te.placeholder((), name="s")
    made = te.compute(x.shape, lambda *i: activation(quantized(x(*i), scale(), dtype), scale(), dtype))
    if padded:

        def element(i: Any, j: Any, k: Any) -> Any:
            inside = tirx.all(i > 0, i < 25, j > 0, j < 21)
            return tirx.if_then_else(inside, made[i - 1, j - 1, k], tirx.const(3, dtype))

        made = te.compute((26, 22, 35), element)
    check_sketch(Streaming(), Workload.create("padded", te.create_prim_func([x, scale, made])), TARGET, samples=3)


@pytest.mark.compiles
def test_an_epilogue_looks_up() -> None:
    """A layer of bytes behind which an activation is quantised: its rows are still one loop."""
    x, w = te.placeholder((8, 9, 64), "uint8", name="x"), te.placeholder((64, 96), "int8", name="w")
    scale, r = te.placeholder((), name="s"), te.reduce_axis((0, 64), name="r")
    product = te.compute(
        (8, 9, 96), lambda i, j, k: te.sum(x[i, j, r].astype("int32") * w[r, k].astype("int32"), axis=r)
    )
    made = te.compute(
        (8, 9, 96), lambda *i: activation(quantized(product(*i).astype("float32") * 0.01, scale()), scale())
    )
    layer = Workload.create("layer", te.create_prim_func([x, w, scale, made]), constants=(1, 2))
    contraction = layer.contraction
    assert contraction.flat and len(tables(StageGraph((), contraction.before))) == 1
    check_sketch(RegisterBlocked(), layer, TARGET, samples=3)


def test_other_functions_stay_as_they_are() -> None:
    for other in (operators.softmax(64, 100), operators.dense(8, 64, 64, dtype="uint8", requantize=1)):
        assert with_tables(other.graph) is other.graph
