"""Calls on constants become constants."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir import GenericConst

from stormdrop.model.passes.constants import fold_constants


@pytest.mark.compiles
def test_numpy_and_relax_fold_chains_of_constants() -> None:
    value = np.array([[1.0, np.nan], [4.0, 9.0]], np.float32)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([2, 2], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            moved = builder.emit(relax.op.permute_dims(relax.const(value)))
            missing = builder.emit(relax.op.isnan(moved))
            filled = builder.emit(relax.op.where(missing, relax.const(np.float32(16)), moved))
            roots = builder.emit(relax.op.sqrt(filled))  # NumPy does not evaluate this one
            joined = builder.emit(relax.op.concat([roots, relax.const(value[1:])], axis=0))
            kept = builder.emit(relax.op.concat([joined, x], axis=0))
            result = builder.emit_output(kept)
        builder.emit_func_output(result)
    mod = fold_constants(builder.get())
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    calls = [binding.value for binding in bindings if isinstance(binding.value, relax.Call)]
    assert [call.op.name for call in calls] == ["relax.concat"]
    constant, other = calls[0].args[0].fields
    assert isinstance(constant, GenericConst) and other.same_as(mod["main"].params[0])
    assert np.array_equal(constant.value.numpy(), [[1, 2], [4, 3], [4, 9]])


@pytest.mark.compiles
def test_what_numpy_folds_is_what_relax_folds() -> None:
    """The window masks of a Swin transformer: hundreds of small calls, each of which Relax would compile."""
    rng = np.random.default_rng(0)
    into, part, row = (rng.normal(size=shape).astype(np.float32) for shape in ((6, 8), (2, 8), (1, 8)))
    into[1, 2] = np.inf
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            scattered = builder.emit(relax.op.slice_scatter(relax.const(into), relax.const(part), 1, 4, 2, axis=0))
            columns = builder.emit(relax.op.slice_scatter(scattered, relax.const(into[:, :3]), 5, 8, 1, axis=1))
            spread = builder.emit(relax.op.broadcast_to(relax.const(row), (6, 8)))
            apart = builder.emit(relax.op.subtract(columns, spread))
            same = builder.emit(relax.op.equal(apart, relax.const(into)))
            different = builder.emit(relax.op.not_equal(apart, relax.const(into)))
            turned = builder.emit(relax.op.strided_slice(apart, [1, 0], [-1, 1], [-9, 99], [-2, 3]))
            few = builder.emit(relax.op.strided_slice(apart, [0], [-4], [-1]))
            joined = builder.emit(relax.op.concat([turned, turned], 0))
            summed = builder.emit(relax.op.add(apart, relax.const(into)))
            product = builder.emit(relax.op.multiply(apart, relax.const(into)))
            smaller = builder.emit(relax.op.less(product, summed))
            fields = [apart, same, different, turned, few, joined, summed, product, smaller]
            result = builder.emit_output(relax.Tuple(fields))
        builder.emit_func_output(result)
    mod = builder.get()
    right = tvm.compile(relax.transform.LegalizeOps()(mod), tvm.target.Target("llvm"))
    expected = [value.numpy() for value in relax.VirtualMachine(right, tvm.cpu())["main"]()]
    folded = fold_constants(mod)["main"].body.blocks[0].bindings[-1].value.fields
    assert all(isinstance(value, GenericConst) for value in folded)
    for ours, theirs in zip(folded, expected, strict=True):
        np.testing.assert_array_equal(ours.value.numpy(), theirs)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.array([1.0, -2.5, 3.99], np.float32), "int32"),
        (np.array([0, 200, 255], np.int32), "uint8"),
        (np.array([3, -7], np.int64), "int32"),
        (np.array([True, False]), "float32"),
        (np.array([1.00390625, 3.0], np.float32), "bfloat16"),
        (np.array(2.0, np.float32), "float32"),
    ],
    ids=str,
)
def test_conversions_are_folded(value: np.ndarray, dtype: str) -> None:
    (binding,) = _converted(value, dtype)["main"].body.blocks[0].bindings
    assert isinstance(binding.value, GenericConst)
    folded = binding.value.value.numpy()
    assert str(folded.dtype) == dtype and folded.shape == value.shape
    np.testing.assert_array_equal(folded.astype(np.float64), value.astype(dtype).astype(np.float64))


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e9, -1.0])
def test_numbers_that_do_not_fit_an_integer_are_left_to_the_machine(value: float) -> None:
    dtype = "uint8" if value == -1.0 else "int32"
    bindings = _converted(np.array([1.0, value], np.float32), dtype)["main"].body.blocks[0].bindings
    assert not any(isinstance(binding.value, GenericConst) for binding in bindings)


def _converted(value: np.ndarray, dtype: str) -> tvm.IRModule:
    """A function that returns a constant in another type, folded."""
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(relax.op.astype(relax.const(value, str(value.dtype)), dtype)))
        builder.emit_func_output(result)
    return fold_constants(builder.get())
