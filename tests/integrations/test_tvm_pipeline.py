"""`relax_pipeline="stormdrop"`: kernels are tuned inside TVM's own build."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from stormdrop.errors import InputError, ModelError
from stormdrop.integrations import tvm_pipeline
from stormdrop.records import open_store

pytestmark = pytest.mark.compiles

WEIGHTS = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


def module() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 8], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, relax.const(WEIGHTS)))
            result = builder.emit_output(relax.op.nn.relu(product))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("tir_pipeline", ["default", "stormdrop"])
def test_the_built_module_computes_what_it_did(tir_pipeline: str) -> None:
    with open_store("sqlite://") as store:
        tuning = tvm_pipeline.pipeline(trials=2, store=store)
        executable: Any = tvm.compile(module(), "llvm", relax_pipeline=tuning, tir_pipeline=tir_pipeline)
        assert len(store.sessions()) == 1
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(result, np.maximum(x @ WEIGHTS, 0), atol=1e-5)


def test_tvm_knows_the_pipeline_by_its_name() -> None:
    with pytest.raises(ModelError, match="has no Relax function main"):
        relax.get_pipeline("stormdrop")(tvm.IRModule({}))


def test_another_target_than_a_cpu_is_refused() -> None:
    target = tvm.target.Target("nvidia/geforce-rtx-3090")
    with target, pytest.raises(InputError, match="models are tuned for CPUs; the target is cuda"):
        tvm_pipeline.pipeline()(module())
