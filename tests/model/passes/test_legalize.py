"""Equal calls are legalised once, with the result of TVM's own pass."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from stormdrop.model.passes.legalize import legalize


def module() -> tvm.IRModule:
    """Calls that are alike, and calls that only look alike: other arguments are one, other scalars, other shapes."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType([2, 3], "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            twice = builder.emit(relax.op.add(x, x))
            value = builder.emit(relax.op.add(twice, y))
            value = builder.emit(relax.op.add(y, value))
            for scalar in (2.0, 3.0, 2.0):
                value = builder.emit(relax.op.multiply(value, relax.const(np.float32(scalar))))
            for seed in range(2):
                weights = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
                value = builder.emit(relax.op.multiply(value, relax.const(weights)))
            joined = builder.emit(relax.op.concat([value, x, value], axis=0))
            joined = builder.emit(relax.op.concat([joined, twice, y], axis=0))
            first, second = (builder.emit(part) for part in (relax.op.split(joined, 2, axis=0),) * 2)
            total = builder.emit(relax.op.add(first[0], second[1]))
            result = builder.emit_output(relax.op.reshape(total, (15, 1)))
        builder.emit_func_output(result)
    return builder.get()


def test_the_result_is_that_of_the_pass() -> None:
    ours, theirs = legalize(module()), relax.transform.LegalizeOps()(module())
    assert tvm_ffi.structural_equal(ours, theirs, map_free_vars=True)


@pytest.mark.compiles
def test_tuples_that_differ_in_their_tensors_are_different_calls() -> None:
    """The tensors of (x, y, x) and (x, y, y) have the same types, and only which of them are one differs."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType([2, 3], "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            joined = [builder.emit(relax.op.concat(each, axis=0)) for each in ([x, y, x], [x, y, y], [y, x, y])]
            pairs = [relax.op.concat(each, axis=0) for each in ([x, y], [y, y])]
            joined += [builder.emit(pair) for pair in pairs]
            result = builder.emit_output(relax.Tuple(joined))
        builder.emit_func_output(result)
    mod = builder.get()
    ours, theirs = legalize(mod), relax.transform.LegalizeOps()(mod)
    assert tvm_ffi.structural_equal(ours, theirs, map_free_vars=True)
    machine = relax.VirtualMachine(tvm.compile(ours, "llvm"), tvm.cpu())
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((2, 3)).astype(np.float32) for _ in "ab")
    results = machine["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b))
    for ours_of, parts in zip(results, ([a, b, a], [a, b, b], [b, a, b], [a, b], [b, b]), strict=True):
        assert np.array_equal(ours_of.numpy(), np.concatenate(parts))


@pytest.mark.compiles
def test_halves_are_rounded_to_even_numbers() -> None:
    """As ONNX, torch and NumPy do; TVM's own rule rounds them away from zero."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([6], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.round(x))
        builder.emit_func_output(result)
    machine = relax.VirtualMachine(tvm.compile(legalize(builder.get()), "llvm"), tvm.cpu())
    values = np.array([-2.5, -1.5, -0.4, 0.5, 1.5, 2.5], "float32")
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(values)).numpy(), np.rint(values))


@pytest.mark.compiles
@pytest.mark.parametrize("shape", [(), (1, 1), (1, 3), (1, 1, 1)])
def test_a_bound_of_one_element_is_a_number_in_the_function(shape: tuple[int, ...]) -> None:
    """Not so if it has more axes than the tensor, as the first one of three axes has: the result has them, too."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([2, 3], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            raised = builder.emit(relax.op.maximum(x, relax.const(np.full(shape, -1.5, "float32"))))
            result = builder.emit_output(relax.op.minimum(raised, relax.const(np.full(shape, 6, "float32"))))
        builder.emit_func_output(result)
    mod = legalize(builder.get())
    tensors = {len(function.params) for function in mod.functions.values() if isinstance(function, tirx.PrimFunc)}
    assert tensors == {(1, 3): {3}, (1, 1, 1): {2, 3}}.get(shape, {2})
    assert len([name for name in mod.functions if name.name_hint != "main"]) == 2
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    values = np.array([[-3, -1.5, 0], [5, 6, 7]], "float32")
    expected = np.broadcast_to(values.clip(-1.5, 6), np.broadcast_shapes(shape, values.shape))
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(values)).numpy(), expected)
