"""Workloads: normal form, identity, counting."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import te, tirx
from tvm.tirx import PrimFunc

from stormdrop import operators
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.stages import StageGraph
from stormdrop.ir.workload import Workload, canonical


def function(name: str, extent: int = 8) -> PrimFunc:
    a, b = te.placeholder((extent, 4), name=f"{name}_a"), te.placeholder((4, 6), name=f"{name}_b")
    k = te.reduce_axis((0, 4), name=f"{name}_k")
    c = te.compute((extent, 6), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name=name)
    return te.create_prim_func([a, b, c])


def test_names_do_not_matter() -> None:
    first, second = Workload.create("first", function("f")), Workload.create("second", function("g"))
    assert first.text == second.text
    assert first.key == second.key


def test_shapes_and_constants_matter() -> None:
    base = Workload.create("w", function("f"))
    assert Workload.create("w", function("f", 9)).key != base.key
    assert Workload.create("w", function("f"), constants=(1,)).key != base.key


def test_pickling_keeps_identity() -> None:
    workload = operators.conv2d(1, 8, 8, 4, 4, 3, 3, pad=1, bias=1, act="relu")
    again = pickle.loads(pickle.dumps(workload))
    assert (again.key, again.name, again.constants) == (workload.key, workload.name, workload.constants)


def test_counts_operations_and_bytes() -> None:
    workload = operators.matmul(8, 16, 32)
    assert workload.flops == 2 * 8 * 16 * 32
    assert workload.bytes == 4 * (8 * 32 + 32 * 16 + 8 * 16)


def test_parsing_and_writing_back_is_the_identity() -> None:
    for workload in (operators.conv2d(1, 8, 8, 4, 4, 3, 3, pad=1, bias=1, act="relu"), operators.softmax(4, 9)):
        assert tvm_ffi.structural_equal(StageGraph.parse(workload.function).function(), workload.function)


def test_a_workload_placed_in_a_wider_tensor_leaves_the_rest_alone() -> None:
    workload = operators.elementwise((4, 6))
    placed = workload.placed(offset=3, total=10)
    assert placed.outputs[0].shape == (4, 10)
    (x,) = workload.random_inputs(0)
    (wide,) = placed.reference([x])
    np.testing.assert_array_equal(wide[:, 3:9], workload.reference([x])[0])
    assert np.isnan(wide[:, :3]).all() and np.isnan(wide[:, 9:]).all()


def test_a_workload_of_two_outputs_cannot_be_placed() -> None:
    x = te.placeholder((4, 6), name="x")
    doubled = te.compute((4, 6), lambda i, j: x[i, j] * 2.0, name="doubled")
    halved = te.compute((4, 6), lambda i, j: x[i, j] * 0.5, name="halved")
    workload = Workload.create("two", te.create_prim_func([x, doubled, halved]))
    with pytest.raises(UnsupportedFunction, match="cannot write into a slice"):
        workload.placed(0, 10)


def test_constant_outside_the_inputs_is_refused() -> None:
    with pytest.raises(UnsupportedFunction, match=r"constant inputs \[5\]"):
        Workload.create("w", function("f"), constants=(5,))


def test_random_inputs_are_seeded_small_integers() -> None:
    workload = operators.matmul(8, 16, 32)
    first, again, other = workload.random_inputs(0), workload.random_inputs(0), workload.random_inputs(1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert set(np.unique(first[0])) <= set(range(-3, 4))


@pytest.mark.parametrize(
    ("columns", "zero_point", "expected"), [("uint8", 128, (125, 131)), ("int8", -127, (-128, -124))]
)
def test_random_bytes_of_rounded_sums_are_near_their_zero_point(
    columns: str, zero_point: int, expected: tuple[int, int]
) -> None:
    """Bytes near zero would be far from a zero point of 128: all sums would be clipped, and no error would show."""
    a, b = te.placeholder((20, 30), "uint8", name="a"), te.placeholder((30, 40), columns, name="b")
    padded = te.compute(
        (31, 40), lambda i, j: tirx.if_then_else(i < 30, b[i, j], tirx.const(0, columns)), name="padded"
    )
    k = te.reduce_axis((0, 30), name="k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(a[i, k].astype("int32") * (padded[k, j].astype("int32") - zero_point), axis=k)

    sums = te.compute((20, 40), element, name="sums")
    rounded = te.compute((20, 40), lambda i, j: tirx.nearbyint(sums[i, j].astype("float32") * 0.5), name="rounded")
    left, right = Workload.create("rounded", te.create_prim_func([a, b, rounded])).random_inputs(0)
    assert (left.min(), left.max()) == (0, 3)
    assert (right.min(), right.max()) == expected


def test_branches_of_indices_in_64_bits_become_narrower() -> None:
    """A mirrored padding, as Relax writes it, that is read by another stage."""
    x = te.placeholder((5,), name="x")
    wide = tirx.const(2, "int64")

    def mirrored(i: Any) -> Any:
        position = i.astype("int64")
        return x[tirx.if_then_else(position < wide, wide - position, position - wide)]

    padded = te.compute((7,), mirrored, name="padded")
    moved = te.compute((7, 1), lambda i, _: padded[i], name="moved")
    workload = Workload.create("pad", te.create_prim_func([x, moved]))
    graph = StageGraph.parse(workload.function)
    inlined = graph.inline(graph.stages[0])
    values = np.arange(5, dtype=np.float32)
    assert evaluate_graph(inlined, [values])[0].ravel().tolist() == [2, 1, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(("mask", "narrow"), [(15, True), (2**40 - 1, False)])
def test_codes_that_an_index_in_64_bits_shifts_stay_in_32_bits(mask: int, narrow: bool) -> None:
    """As Relax writes weights of 4 bits: all that is computed from the index has 64 bits."""
    codes = te.placeholder((5,), "uint8", name="codes")

    def half(i: Any, j: Any) -> Any:
        wide = codes[i].astype("int32").astype("int64") >> (j * 4).astype("int64")
        return ((wide & tirx.const(mask, "int64")) - tirx.const(8, "int64")).astype("float32")

    function = te.create_prim_func([codes, te.compute((5, 2), half, name="halves")])
    workload = Workload.create("halves", function)
    assert ("int64" in str(workload.function)) != narrow
    values = np.array([0x00, 0x1F, 0x80, 0xFF, 0x5A], np.uint8)
    expected = (
        np.stack([values & 15, values >> 4], axis=-1) - 8.0 if narrow else np.stack([values, values >> 4], -1) - 8.0
    )
    assert workload.reference([values])[0].tolist() == expected.tolist()


def test_integers_that_may_leave_32_bits_keep_64() -> None:
    x = te.placeholder((5,), "int32", name="x")
    doubled = te.compute(
        (5,), lambda i: (x[i].astype("int64") + x[i].astype("int64")).astype("float32"), name="doubled"
    )
    workload = Workload.create("doubled", te.create_prim_func([x, doubled]))
    assert "int64" in str(workload.function)
    assert workload.reference([np.full(5, 2**30, np.int32)])[0].tolist() == [2.0**31] * 5


def test_branches_with_a_constant_beyond_32_bits_keep_64() -> None:
    x = te.placeholder((5,), "int32", name="x")
    most = tirx.const(2**63 - 1, "int64")
    whole = te.compute((5,), lambda i: tirx.if_then_else(x[i] < 3, i.astype("int64"), most), name="whole")
    (stage,) = canonical(StageGraph.parse(te.create_prim_func([x, whole]))).stages
    assert [str(branch.ty.dtype) for branch in stage.value.args[1:]] == ["int64", "int64"]
