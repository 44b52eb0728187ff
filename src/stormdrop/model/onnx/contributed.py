"""Operators that onnxruntime has beside the standard (domain com.microsoft), and that the importer takes.

onnx has to know the shapes of what they compute. It learns them for the time of an import, because what it knows is the
same for all threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import defs

DOMAIN = "com.microsoft"
MATMUL_N_BITS = "MatMulNBits"
DYNAMIC_QUANTIZE_LSTM = "DynamicQuantizeLSTM"
DYNAMIC_QUANTIZE_MATMUL = "DynamicQuantizeMatMul"
MATMUL_INTEGER_TO_FLOAT = "MatMulIntegerToFloat"
QATTENTION = "QAttention"

ROUNDING = (DYNAMIC_QUANTIZE_LSTM, DYNAMIC_QUANTIZE_MATMUL)
"""Those that round numbers to bytes."""

OF_BYTES = (*ROUNDING, MATMUL_INTEGER_TO_FLOAT, QATTENTION)
"""Those that multiply bytes."""

_BYTES = ("uint8", "int8")
_REALS = ("float", "float16", "bfloat16")

_reading = threading.Lock()  # what onnx knows of operators is the same for all threads


def is_contributed(node: onnx.NodeProto, *operators: str) -> bool:
    """Whether a node has one of these operators.

    Args:
        node: The node.
        operators: The names of the operators in question; by default all.
    """
    return node.domain == DOMAIN and node.op_type in (operators or _SCHEMAS)


@contextmanager
def known_shapes(model: onnx.ModelProto) -> Iterator[None]:
    """Lets onnx infer the shapes of the model's nodes that have these operators.

    Args:
        model: The model. If it has no such node, nothing happens.
    """
    used = dict.fromkeys(node.op_type for node in model.graph.node if is_contributed(node))
    if not used:
        yield
        return
    with _reading, ExitStack() as registered:
        for operator in used:
            if not defs.has(operator, DOMAIN):
                schema = _SCHEMAS[operator].of(operator)
                defs.register_schema(schema)
                registered.callback(defs.deregister_schema, operator, schema.since_version, DOMAIN)
        yield


@dataclass(frozen=True)
class _Schema:
    """What onnx has to know of an operator. A question mark is behind what a node may leave out.

    Attributes:
        inputs: The names of the inputs, each with its type, or with the letter of one of `types`.
        outputs: The names of the outputs, which have the type T.
        attributes: The names of the attributes with their types.
        types: The types that a letter stands for.
        infer: Says the types of the outputs of a node, given onnx's view of the node.
    """

    inputs: str
    outputs: str
    attributes: str
    types: Mapping[str, Sequence[str]]
    infer: Callable[[Any], None]

    def of(self, operator: str) -> Any:
        """The schema as onnx takes it, of an operator with this name."""
        formal, option = defs.OpSchema.FormalParameter, defs.OpSchema.FormalParameterOption
        kinds = {kind: kind if kind in self.types else f"tensor({kind})" for _, kind, _ in _declared(self.inputs)}
        schema = defs.OpSchema(
            operator,
            DOMAIN,
            1,
            type_constraints=[(kind, [f"tensor({name})" for name in names], "") for kind, names in self.types.items()],
            inputs=[
                formal(name, kinds[kind], param_option=option.Optional if may_lack else option.Single)
                for name, kind, may_lack in _declared(self.inputs)
            ],
            outputs=[formal(name, "T", param_option=option.Optional) for name in self.outputs.split()],
            attributes=[
                defs.OpSchema.Attribute(name, getattr(defs.OpSchema.AttrType, kind), required=not may_lack)
                for name, kind, may_lack in _declared(self.attributes)
            ],
        )
        schema.set_type_and_shape_inference_function(self.infer)
        return schema


def _declared(text: str) -> list[tuple[str, str, bool]]:
    """The names in a text, each with its type, and whether it may be left out."""
    pairs = [entry.split(":") for entry in text.split()]
    return [(name, kind.rstrip("?"), kind.endswith("?")) for name, kind in pairs]


def _infer_product(context: Any) -> None:
    """The type of a MatMulNBits: that of its data, with N columns."""
    if data := _shape(context, 0):
        element = context.get_input_type(0).tensor_type.elem_type
        _set_type(context, 0, [*data[:-1], context.get_attribute("N").i], element)


def _infer_states(context: Any) -> None:
    """The types of a DynamicQuantizeLSTM's outputs: (length, directions, batch, hidden), and states without length."""
    data = _shape(context, 0)
    if data is None or len(data) != 3:
        return
    direction = context.get_attribute("direction")
    directions = 2 if direction is not None and direction.s == b"bidirectional" else 1
    state = [directions, data[1], context.get_attribute("hidden_size").i]
    for position, extents in enumerate(([data[0], *state], state, state)[: context.get_num_outputs()]):
        _set_type(context, position, extents)


def _infer_matmul(context: Any) -> None:
    """The type of a product of matrices, if one operand is a single matrix or there are as many of both."""
    left, right = (_shape(context, position) or [] for position in range(2))
    if min(len(left), len(right)) < 2:
        return
    before = max(left[:-2], right[:-2], key=len)
    if right[:-2] in ([], left[:-2]) or not left[:-2]:
        _set_type(context, 0, [*before, left[-2], right[-1]])


def _infer_attention(context: Any) -> None:
    """The types of a QAttention's outputs: (batch, length, hidden), and the keys and values by heads."""
    data, weights = _shape(context, 0), _shape(context, 1)
    if data is None or weights is None or len(data) != 3 or not all(dim.dim_value for dim in (data[1], weights[1])):
        return
    hidden, heads = weights[1].dim_value // 3, context.get_attribute("num_heads").i
    _set_type(context, 0, [*data[:2], hidden])
    if context.get_num_outputs() > 1:
        before = 0
        if context.has_input(8):
            past = _shape(context, 8)
            before = past[3].dim_value if past is not None and len(past) == 5 else 0
            if not before:
                return
        _set_type(context, 1, [2, data[0], heads, before + data[1].dim_value, hidden // heads])


def _shape(context: Any, position: int) -> list[Any] | None:
    """The dimensions of an input; None if they are not known."""
    known = context.get_input_type(position)
    if known is None or not known.tensor_type.HasField("shape"):
        return None
    return list(known.tensor_type.shape.dim)


def _set_type(context: Any, position: int, extents: Sequence[Any], element: int = onnx.TensorProto.FLOAT) -> None:
    """Says the type of an output, whose sizes are numbers, or dimensions of inputs."""
    result = onnx.TypeProto()
    result.tensor_type.elem_type = element
    for extent in extents:
        dim = result.tensor_type.shape.dim.add()
        if isinstance(extent, int):
            dim.dim_value = extent
        else:
            dim.CopyFrom(extent)
    context.set_output_type(position, result)


_SCHEMAS = {
    DYNAMIC_QUANTIZE_LSTM: _Schema(
        "X:T W:B R:B B:T? sequence_lens:int32? initial_h:T? initial_c:T? P:T? W_scale:T? W_zero_point:B? R_scale:T? "
        "R_zero_point:B?",
        "Y Y_h Y_c",
        "hidden_size:INT direction:STRING? input_forget:INT? clip:FLOAT? activations:STRINGS? activation_alpha:FLOATS? "
        "activation_beta:FLOATS?",
        {"T": _REALS[:1], "B": _BYTES},
        _infer_states,
    ),
    DYNAMIC_QUANTIZE_MATMUL: _Schema(
        "A:T B:B b_scale:T b_zero_point:B? bias:T?", "Y", "", {"T": _REALS[:1], "B": _BYTES}, _infer_matmul
    ),
    MATMUL_INTEGER_TO_FLOAT: _Schema(
        "A:A B:B a_scale:T b_scale:T a_zero_point:A? b_zero_point:B? bias:T?",
        "Y",
        "",
        {"T": _REALS[:2], "A": _BYTES, "B": _BYTES},
        _infer_matmul,
    ),
    MATMUL_N_BITS: _Schema(
        "A:T B:uint8 scales:T zero_points:Z? g_idx:int32? bias:T?",
        "Y",
        "K:INT N:INT bits:INT? block_size:INT? accuracy_level:INT?",
        {"T": _REALS, "Z": ("uint8", *_REALS)},
        _infer_product,
    ),
    QATTENTION: _Schema(
        "input:A weight:B bias:T input_scale:T weight_scale:T mask_index:int32? input_zero_point:A? "
        "weight_zero_point:B? past:T?",
        "output present",
        "num_heads:INT unidirectional:INT? scale:FLOAT? mask_filter_value:FLOAT? do_rotary:INT? "
        "past_present_share_buffer:INT?",
        {"T": _REALS[:2], "A": _BYTES, "B": _BYTES},
        _infer_attention,
    ),
}
"""What onnx has to know of each operator."""


OPERATORS = frozenset(_SCHEMAS)
