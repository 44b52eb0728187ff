"""Calls on constants become constants."""

from __future__ import annotations

import numpy as np
import pytest
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
