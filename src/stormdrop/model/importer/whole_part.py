"""A model as one part that onnxruntime runs.

    Conv -> LSTM -> MatMul     ->     call_dps_packed("stormdrop.onnxruntime.0", (x,))

If the importer takes nothing of a model, nothing else is possible. If onnxruntime has to run most of it anyway, it is
faster with all of it: it fuses what a division takes apart, and nothing is passed on between its threads and ours.

The part is the model as it was read, so that onnxruntime is as fast with it as anywhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import tvm
from tvm import relax

from ...runtime.program import FUNCTION
from ...runtime.sizes import OPEN, TensorInfo
from ..artifact.artifact_files import part_file
from ..artifact.metadata import OnnxruntimePart
from ..artifact.onnxruntime_parts import OnnxruntimeParts
from ..graph.graph import Graph
from ..graph.onnx_origin import OnnxOrigin, origin_of
from ..graph.open_blocks import ended_blocks
from ..onnx.standard import is_standard, operator_name


class Whole(NamedTuple):
    """A model as one part: the program that calls it, what it consists of, and its ONNX model."""

    mod: tvm.IRModule
    report: OnnxruntimePart
    model: bytes


def whole_part(
    origin: OnnxOrigin, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], reason: str, index: int = 0
) -> Whole | None:
    """A model of one size as one part.

    Args:
        origin: The model.
        inputs: Its inputs, in their order there.
        outputs: Its outputs, in their order there.
        reason: Why it is foreign, in one line.
        index: The index of the part.

    Returns:
        None if the model has more weights than onnxruntime takes in one message.

    Raises:
        ModelError: A file with weights of the model was changed after the import.
    """
    message = origin.message()
    if message is None:
        return None
    operators = Counter(operator_name(node) for node in origin.model.graph.node if not is_standard(node, "Constant"))
    report = OnnxruntimePart(part_file(index), dict(operators), reason, whole=True)
    return Whole(_program(inputs, outputs, index), report, message)


def run_by_onnxruntime(graph: Graph, reason: str) -> Graph | None:
    """The graph of a model of which onnxruntime runs everything.

    Args:
        graph: The model as it was imported.
        reason: Why it is foreign, in one line.

    Returns:
        The graph, with one part for each size and no tasks; None if the model does not come from ONNX, or has more
            weights than onnxruntime takes in one message.

    Raises:
        ModelError: A file with weights of the model was changed after the import.
    """
    wholes = []
    for index, size in enumerate(graph.sizes):
        origin = origin_of(size.source)
        whole = whole_part(origin, size.inputs, size.outputs, reason, index) if isinstance(origin, OnnxOrigin) else None
        if whole is None:
            return None
        wholes.append(whole)
    foreign = OnnxruntimeParts([whole.report for whole in wholes], [whole.model for whole in wholes])
    first, *others = (
        replace(size, mod=whole.mod, tasks=(), foreign=foreign, others=(), layers=size.layers.in_one_call())
        for size, whole in zip(graph.sizes, wholes, strict=True)
    )
    return replace(first, others=tuple(others))


def _program(inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], index: int) -> tvm.IRModule:
    """The module whose `main` calls a part on its inputs, and returns what that makes."""
    builder = relax.BlockBuilder()
    parameters = [relax.Var(info.name, _type(info)) for info in inputs]
    types = [_type(info) for info in outputs]
    with ended_blocks(builder), builder.function("main", parameters):
        if any(OPEN in info.shape for info in outputs):
            result = types[0] if len(types) == 1 else relax.TupleType(types)
            call = relax.op.call_pure_packed(f"{FUNCTION}{index}", *parameters, ty_args=result)
        else:
            call = relax.call_dps_packed(f"{FUNCTION}{index}", relax.Tuple(parameters), types)
        made = builder.emit(call)
        if len(types) > 1:
            made = relax.Tuple([builder.emit(relax.TupleGetItem(made, place)) for place in range(len(types))])
        builder.emit_func_output(made)
    return builder.get()


def _type(info: TensorInfo) -> relax.TensorType:
    if OPEN in info.shape:
        return relax.TensorType(dtype=info.dtype, ndim=len(info.shape))
    return relax.TensorType(list(info.shape), info.dtype)
