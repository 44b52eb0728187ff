"""Asks onnxruntime what it makes of a model: the type of each value, and whether the model runs within bounds.

This happens in the process that imports the model, whose memory is bounded: a model may hold a loop without end.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto, helper

from ...errors import ModelError, one_line
from ...runtime.sizes import OPEN, TensorInfo
from ..artifact.onnxruntime_parts import session_of, session_options
from ..inputs.samples import random_feeds
from .index_ranges import index_ranges
from .weights import KERNEL_TYPES, large_tensors

RUN_SECONDS = 10.0
"""A model that onnxruntime needs longer for is refused: each of its verifications would take as long."""

_TENSOR = "tensor("


@dataclass(frozen=True)
class ValueType:
    """The type of a value of a graph.

    Attributes:
        element: ONNX's type of the elements; None if the value is no tensor.
        shape: The sizes, `OPEN` if one depends on data or is unknown; None if the rank is unknown, too.
    """

    element: int | None
    shape: tuple[int, ...] | None

    @property
    def dtype(self) -> str | None:
        """The name of the elements' NumPy type; None if NumPy has none, or if no kernel computes with it."""
        return KERNEL_TYPES.get(self.element) if self.element is not None else None

    @property
    def static(self) -> bool:
        """Whether it is a tensor of a fixed shape that a kernel can read."""
        return self.dtype is not None and self.shape is not None and OPEN not in self.shape

    def proto(self) -> onnx.TypeProto:
        """The type as ONNX writes it."""
        assert self.element is not None
        shape = None if self.shape is None else [None if size == OPEN else size for size in self.shape]
        return helper.make_tensor_type_proto(self.element, shape)


def value_types(model: onnx.ModelProto, inputs: tuple[TensorInfo, ...], name: str) -> dict[str, ValueType]:
    """Runs a model once on random inputs, and lists the types of its values.

    Args:
        model: The model.
        inputs: Its inputs.
        name: Its name, for messages.

    Returns:
        The types by name, of what its nodes compute and of its inputs.

    Raises:
        ModelError: onnxruntime does not run it, or not within `RUN_SECONDS`.
    """
    import onnxruntime

    options = session_options(0)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    present = {output.name for output in model.graph.output}
    made = dict.fromkeys(value for node in model.graph.node for value in node.output if value)
    observed.graph.output.extend(onnx.ValueInfoProto(name=value) for value in made if value not in present)
    try:
        session = session_of(observed.SerializeToString(), options, large_tensors(model))
        types = {node.name: _type(node) for node in (*session.get_inputs(), *session.get_outputs())}
        # onnxruntime says "no dimensions" of a scalar and of a tensor of unknown rank.
        unsure = [value for value, known in types.items() if value in made and known.shape == () and known.element]
        wanted = list(dict.fromkeys([*present, *unsure]))
    except Exception as error:
        # onnxruntime's exceptions have no base class of their own.
        raise ModelError(f"onnxruntime does not run it: {one_line(error)}") from error
    try:
        values = _run(onnxruntime, session, wanted, random_feeds(inputs, 0, index_ranges(model)))
    except Exception as error:
        raise ModelError(
            f"onnxruntime does not run it on random inputs: {one_line(error)}; if an input has to have a certain "
            f"value, fix it: --value INPUT=1 (values= in Python)"
        ) from error
    for value in unsure:
        rank = getattr(values[value], "ndim", 0)
        if rank:
            types[value] = ValueType(types[value].element, (OPEN,) * rank)
    return types


def _run(onnxruntime: Any, session: Any, names: list[str], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The values of these names; ended after `RUN_SECONDS`."""
    options = onnxruntime.RunOptions()
    timer = threading.Timer(RUN_SECONDS, setattr, (options, "terminate", True))
    timer.start()
    try:
        return dict(zip(names, session.run(names, dict(feeds), options), strict=True))
    except Exception as error:
        if options.terminate:
            raise TimeoutError(f"one run takes more than {RUN_SECONDS:g} s") from error
        raise
    finally:
        timer.cancel()


def _type(node: Any) -> ValueType:
    """The type of an input or output of a session; its `type` is, for example, "tensor(float)"."""
    if not node.type.startswith(_TENSOR):
        return ValueType(None, None)
    element = TensorProto.DataType.Value(node.type.removeprefix(_TENSOR).rstrip(")").upper())
    return ValueType(element, tuple(size if isinstance(size, int) and size >= 0 else OPEN for size in node.shape))
