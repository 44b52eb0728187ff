"""A model as one part that onnxruntime runs.

    Conv -> LSTM -> MatMul     ->     call_dps_packed("stormdrop.onnxruntime.0", (x,))

If onnxruntime has to run most of a model anyway, it is faster with all of it: it fuses what a division takes apart, and
nothing is passed on between its threads and ours.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import tvm
from tvm import relax

from ..artifact_files import foreign_file
from ..foreign import FUNCTION, ForeignParts
from ..metadata import OPEN, ForeignPart, TensorInfo
from ..verification.origins import OnnxOrigin, origin_of
from .graph import Graph
from .standard import operator_name


def wholly_foreign(graph: Graph, reason: str) -> Graph | None:
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
    reports, models, mods = [], [], []
    for index, size in enumerate(graph.sizes):
        origin = origin_of(size.source)
        if not isinstance(origin, OnnxOrigin) or (message := origin.message()) is None:
            return None
        operators = Counter(operator_name(node) for node in origin.model.graph.node)
        reports.append(ForeignPart(foreign_file(index), dict(operators), reason, whole=True))
        models.append(message)
        mods.append(_program(size, index))
    foreign = ForeignParts(reports, models)
    first, *others = (
        replace(size, mod=mod, tasks=(), foreign=foreign, others=())
        for size, mod in zip(graph.sizes, mods, strict=True)
    )
    return replace(first, others=tuple(others))


def _program(graph: Graph, index: int) -> tvm.IRModule:
    """The module whose `main` calls a part on its inputs, and returns what that makes."""
    builder = relax.BlockBuilder()
    parameters = [relax.Var(variable.name, variable.ty) for variable in graph.mod["main"].params]
    types = [_type(info) for info in graph.outputs]
    with builder.function("main", parameters):
        if any(OPEN in info.shape for info in graph.outputs):
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
