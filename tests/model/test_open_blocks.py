"""TVM does not warn of blocks that an exception has left open, wherever that was raised."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import onnx
import pytest
import tvm
from tvm import relax

from stormdrop.model.passes import legalize
from stormdrop.model.passes.rewriting import rewrite_main

MESSAGE = "BlockBuilder destroyed"


def exponential() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.exp(x))
        builder.emit_func_output(y)
    return builder.get()


MODULE = exponential()


def fail(*_: Any) -> Any:
    raise ValueError("it fails")


@relax.expr_functor.mutator
class Failing(relax.PyExprMutator):
    def visit_call_(self, call: Any) -> Any:
        return fail(call)


def in_a_mutator(_: pytest.MonkeyPatch) -> None:
    rewrite_main(MODULE, Failing(MODULE))


def in_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(legalize._OWN_RULES, "relax.exp", fail)
    legalize.legalize(MODULE)


def in_an_importer(monkeypatch: pytest.MonkeyPatch) -> None:
    from stormdrop.model.importer import converters, frontend

    monkeypatch.setitem(converters.CONVERTERS, "Exp", fail)
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Exp", ["x"], ["y"])], "model", value[:1], value[1:])
    frontend.from_onnx(onnx.helper.make_model(graph))


@pytest.mark.parametrize("step", [in_a_mutator, in_a_rule, in_an_importer])
def test_an_exception_leaves_no_open_block(
    step: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="it fails"):
        step(monkeypatch)
    gc.collect()
    assert MESSAGE not in capfd.readouterr().err


def test_the_message_is_there_without_it(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="it fails"):
        Failing(MODULE).visit_expr(MODULE["main"])
    gc.collect()
    assert MESSAGE in capfd.readouterr().err
