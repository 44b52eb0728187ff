"""Operators that onnxruntime has beside the standard (domain com.microsoft), and that the importer takes.

onnx has to know the shapes of what they compute. It learns them for the time of an import, because what it knows is the
same for all threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import onnx
from onnx import defs, helper

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

_REALS = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"]
_BYTES = ["tensor(uint8)", "tensor(int8)"]

_reading = threading.Lock()  # what onnx knows of operators is the same for all threads

_Input = tuple[str, str, bool]
"""The name of an input, its type, and whether it may be left out."""


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
                schema = _SCHEMAS[operator]()
                defs.register_schema(schema)
                registered.callback(defs.deregister_schema, operator, schema.since_version, DOMAIN)
        yield


def _schema(
    operator: str,
    types: Sequence[tuple[str, list[str], str]],
    inputs: Sequence[_Input],
    outputs: Sequence[str],
    attributes: Sequence[Any],
    infer: Callable[[Any], None],
) -> Any:
    optional = defs.OpSchema.FormalParameterOption.Optional
    single = defs.OpSchema.FormalParameterOption.Single
    schema = defs.OpSchema(
        operator,
        DOMAIN,
        1,
        type_constraints=types,
        inputs=[
            defs.OpSchema.FormalParameter(name, kind, param_option=optional if may_lack else single)
            for name, kind, may_lack in inputs
        ],
        outputs=[defs.OpSchema.FormalParameter(name, "T", param_option=optional) for name in outputs],
        attributes=list(attributes),
    )
    schema.set_type_and_shape_inference_function(infer)
    return schema


def _matmul_n_bits() -> Any:
    optional = (("zero_points", "Z"), ("g_idx", "tensor(int32)"), ("bias", "T"))
    given = (("A", "T"), ("B", "tensor(uint8)"), ("scales", "T"))
    return _schema(
        MATMUL_N_BITS,
        [("T", _REALS, ""), ("Z", ["tensor(uint8)", *_REALS], "")],
        [*((*each, False) for each in given), *((*each, True) for each in optional)],
        ["Y"],
        [
            *(defs.OpSchema.Attribute(name, defs.OpSchema.AttrType.INT, required=True) for name in ("K", "N")),
            *(
                defs.OpSchema.Attribute(name, helper.make_attribute(name, default))
                for name, default in (("bits", 4), ("block_size", 32), ("accuracy_level", 0))
            ),
        ],
        _infer_product,
    )


def _infer_product(context: Any) -> None:
    """The type of a MatMulNBits: that of its data, with N columns."""
    data = context.get_input_type(0)
    if data is None or not data.tensor_type.HasField("shape") or not data.tensor_type.shape.dim:
        return
    result = onnx.TypeProto()
    result.CopyFrom(data)
    last = result.tensor_type.shape.dim[-1]
    last.Clear()
    last.dim_value = context.get_attribute("N").i
    context.set_output_type(0, result)


def _dynamic_quantize_lstm() -> Any:
    given = (("X", "T"), ("W", "B"), ("R", "B"))
    optional = (("B", "T"), ("sequence_lens", "tensor(int32)"), ("initial_h", "T"), ("initial_c", "T"), ("P", "T"))
    scales = (("W_scale", "T"), ("W_zero_point", "B"), ("R_scale", "T"), ("R_zero_point", "B"))
    kinds = defs.OpSchema.AttrType
    return _schema(
        DYNAMIC_QUANTIZE_LSTM,
        [("T", ["tensor(float)"], ""), ("B", _BYTES, "")],
        [*((*each, False) for each in given), *((*each, True) for each in (*optional, *scales))],
        ["Y", "Y_h", "Y_c"],
        [
            defs.OpSchema.Attribute("hidden_size", kinds.INT, required=True),
            defs.OpSchema.Attribute("direction", helper.make_attribute("direction", "forward")),
            defs.OpSchema.Attribute("input_forget", helper.make_attribute("input_forget", 0)),
            defs.OpSchema.Attribute("clip", kinds.FLOAT, required=False),
            defs.OpSchema.Attribute("activations", kinds.STRINGS, required=False),
            defs.OpSchema.Attribute("activation_alpha", kinds.FLOATS, required=False),
            defs.OpSchema.Attribute("activation_beta", kinds.FLOATS, required=False),
        ],
        _infer_states,
    )


def _infer_states(context: Any) -> None:
    """The types of a DynamicQuantizeLSTM's outputs: (length, directions, batch, hidden), and states without length."""
    data = context.get_input_type(0)
    if data is None or len(data.tensor_type.shape.dim) != 3:
        return
    length, batch, _ = data.tensor_type.shape.dim
    directions, hidden = (onnx.TensorShapeProto.Dimension() for _ in range(2))
    direction = context.get_attribute("direction")
    directions.dim_value = 2 if direction is not None and direction.s == b"bidirectional" else 1
    hidden.dim_value = context.get_attribute("hidden_size").i
    state = [directions, batch, hidden]
    for position, dims in enumerate(([length, *state], state, state)[: context.get_num_outputs()]):
        result = onnx.TypeProto()
        result.tensor_type.elem_type = data.tensor_type.elem_type
        result.tensor_type.shape.dim.extend(dims)
        context.set_output_type(position, result)


def _dynamic_quantize_matmul() -> Any:
    given = (("A", "T"), ("B", "B"), ("b_scale", "T"))
    return _schema(
        DYNAMIC_QUANTIZE_MATMUL,
        [("T", ["tensor(float)"], ""), ("B", _BYTES, "")],
        [*((*each, False) for each in given), ("b_zero_point", "B", True), ("bias", "T", True)],
        ["Y"],
        [],
        _infer_matmul,
    )


def _matmul_integer_to_float() -> Any:
    given = (("A", "A"), ("B", "B"), ("a_scale", "T"), ("b_scale", "T"))
    optional = (("a_zero_point", "A"), ("b_zero_point", "B"), ("bias", "T"))
    return _schema(
        MATMUL_INTEGER_TO_FLOAT,
        [("T", ["tensor(float)", "tensor(float16)"], ""), ("A", _BYTES, ""), ("B", _BYTES, "")],
        [*((*each, False) for each in given), *((*each, True) for each in optional)],
        ["Y"],
        [],
        _infer_matmul,
    )


def _infer_matmul(context: Any) -> None:
    """The type of a product of matrices, if one operand is a single matrix or there are as many of both."""
    left, right = (_shape(context, position) or [] for position in range(2))
    if min(len(left), len(right)) < 2:
        return
    before = max(left[:-2], right[:-2], key=len)
    if right[:-2] in ([], left[:-2]) or not left[:-2]:
        _set_real(context, 0, [*before, left[-2], right[-1]])


def _qattention() -> Any:
    given = (("input", "A"), ("weight", "B"), ("bias", "T"), ("input_scale", "T"), ("weight_scale", "T"))
    zero_points = (("input_zero_point", "A"), ("weight_zero_point", "B"))
    optional = (("mask_index", "tensor(int32)"), *zero_points, ("past", "T"))
    kinds = defs.OpSchema.AttrType
    return _schema(
        QATTENTION,
        [("T", ["tensor(float)", "tensor(float16)"], ""), ("A", _BYTES, ""), ("B", _BYTES, "")],
        [*((*each, False) for each in given), *((*each, True) for each in optional)],
        ["output", "present"],
        [
            defs.OpSchema.Attribute("num_heads", kinds.INT, required=True),
            defs.OpSchema.Attribute("unidirectional", helper.make_attribute("unidirectional", 0)),
            *(
                defs.OpSchema.Attribute(name, kind, required=False)
                for kind, names in (
                    (kinds.FLOAT, ("scale", "mask_filter_value")),
                    (kinds.INT, ("do_rotary", "past_present_share_buffer")),
                )
                for name in names
            ),
        ],
        _infer_attention,
    )


def _infer_attention(context: Any) -> None:
    """The types of a QAttention's outputs: (batch, length, hidden), and the keys and values by heads."""
    data, weights = _shape(context, 0), _shape(context, 1)
    if data is None or weights is None or len(data) != 3 or not all(dim.dim_value for dim in (data[1], weights[1])):
        return
    hidden, heads = weights[1].dim_value // 3, context.get_attribute("num_heads").i
    _set_real(context, 0, [*data[:2], hidden])
    if context.get_num_outputs() > 1:
        before = 0
        if context.has_input(8):
            past = _shape(context, 8)
            before = past[3].dim_value if past is not None and len(past) == 5 else 0
            if not before:
                return
        _set_real(context, 1, [2, data[0], heads, before + data[1].dim_value, hidden // heads])


def _shape(context: Any, position: int) -> list[Any] | None:
    """The dimensions of an input; None if they are not known."""
    known = context.get_input_type(position)
    if known is None or not known.tensor_type.HasField("shape"):
        return None
    return list(known.tensor_type.shape.dim)


def _set_real(context: Any, position: int, extents: Sequence[Any]) -> None:
    """Says the shape of an output of float32: numbers, or dimensions of inputs."""
    result = onnx.TypeProto()
    result.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for extent in extents:
        dim = result.tensor_type.shape.dim.add()
        if isinstance(extent, int):
            dim.dim_value = extent
        else:
            dim.CopyFrom(extent)
    context.set_output_type(position, result)


_SCHEMAS: dict[str, Callable[[], Any]] = {
    DYNAMIC_QUANTIZE_LSTM: _dynamic_quantize_lstm,
    DYNAMIC_QUANTIZE_MATMUL: _dynamic_quantize_matmul,
    MATMUL_INTEGER_TO_FLOAT: _matmul_integer_to_float,
    MATMUL_N_BITS: _matmul_n_bits,
    QATTENTION: _qattention,
}
"""What onnx has to know of each operator."""


OPERATORS = frozenset(_SCHEMAS)
