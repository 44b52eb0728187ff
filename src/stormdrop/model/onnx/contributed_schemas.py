"""What onnx has to know of onnxruntime's own operators: inputs, outputs and attributes, and the shapes they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import defs, numpy_helper

_BYTES = ("uint8", "int8")
_REALS = ("float", "float16", "bfloat16")


@dataclass(frozen=True)
class Schema:
    """What onnx has to know of an operator. A question mark is behind what a node may leave out.

    Attributes:
        inputs: The names of the inputs, each with its type, or with the letter of one of `types`.
        outputs: The names of the outputs, each with its type if that is not T. A node may leave out each of them.
        attributes: The names of the attributes with their types.
        types: The types that a letter stands for.
        infer: Says the types of the outputs of a node, given onnx's view of the node.
    """

    inputs: str
    outputs: str
    attributes: str
    types: Mapping[str, Sequence[str]]
    infer: Callable[[Any], None]

    def of(self, operator: str, domain: str) -> Any:
        """The schema as onnx takes it, of an operator with this name in a domain."""
        formal, option = defs.OpSchema.FormalParameter, defs.OpSchema.FormalParameterOption

        def kind_of(kind: str) -> str:
            return kind if kind in self.types else f"tensor({kind})"

        schema = defs.OpSchema(
            operator,
            domain,
            1,
            type_constraints=[(kind, [f"tensor({name})" for name in names], "") for kind, names in self.types.items()],
            inputs=[
                formal(name, kind_of(kind), param_option=option.Optional if may_lack else option.Single)
                for name, kind, may_lack in _declared(self.inputs)
            ],
            outputs=[
                formal(name, kind_of(kind), param_option=option.Optional) for name, kind, _ in _declared(self.outputs)
            ],
            attributes=[
                defs.OpSchema.Attribute(name, getattr(defs.OpSchema.AttrType, kind), required=not may_lack)
                for name, kind, may_lack in _declared(self.attributes)
            ],
        )
        schema.set_type_and_shape_inference_function(self.infer)
        return schema


def _declared(text: str) -> list[tuple[str, str, bool]]:
    """The names in a text, each with its type, which is T if there is none, and whether it may be left out."""
    pairs = [entry.partition(":") for entry in text.split()]
    return [(name, kind.rstrip("?") or "T", kind.endswith("?")) for name, _, kind in pairs]


def _infer_product(context: Any) -> None:
    """The type of a MatMulNBits: that of its data, with N columns."""
    if data := _shape(context, 0):
        _set_type(context, 0, [*data[:-1], context.get_attribute("N").i], _element(context))


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
    left, right = (_transposed(context, position) for position in range(2))
    if min(len(left), len(right)) < 2:
        return
    before = max(left[:-2], right[:-2], key=len)
    if right[:-2] in ([], left[:-2]) or not left[:-2]:
        _set_type(context, 0, [*before, left[-2], right[-1]])


def _transposed(context: Any, position: int) -> list[Any]:
    """The dimensions of an operand of a product, in the order in which it is multiplied."""
    dims = _shape(context, position) or []
    if len(dims) > 1 and _integer(context, f"transBatch{'AB'[position]}"):
        dims = [*dims[1:-1], dims[0], dims[-1]]
    if len(dims) > 1 and _integer(context, f"trans{'AB'[position]}"):
        dims = [*dims[:-2], dims[-1], dims[-2]]
    return dims


def _infer_same(context: Any) -> None:
    """The type of what has the shape of the first input."""
    if (data := _shape(context, 0)) is not None:
        _set_type(context, 0, data, _element(context))


def _infer_skipped(context: Any) -> None:
    """The types of a normalization of a sum: that of the first input, also for the sum itself."""
    _infer_same(context)
    data = _shape(context, 0)
    if data is not None and context.get_num_outputs() > 3:
        _set_type(context, 3, data, _element(context))


def _infer_embedding(context: Any) -> None:
    """The types of an EmbedLayerNormalization's outputs: (batch, length, hidden), (batch), and the sum as the first."""
    ids, table = _shape(context, 0), _shape(context, 2)
    if ids is None or table is None or len(ids) != 2 or len(table) != 2:
        return
    element = context.get_input_type(2).tensor_type.elem_type
    types = (([*ids, table[1]], element), (ids[:1], onnx.TensorProto.INT32), ([*ids, table[1]], element))
    for position, (extents, kind) in enumerate(types[: context.get_num_outputs()]):
        _set_type(context, position, extents, kind)


def _infer_attention(context: Any) -> None:
    """The types of an Attention's outputs: (batch, length, hidden), and the keys and values by heads."""
    _infer_self_attention(context, past=4)


def _infer_quantized_attention(context: Any) -> None:
    """The types of a QAttention's outputs, which are those of an Attention."""
    _infer_self_attention(context, past=8)


def _infer_self_attention(context: Any, past: int) -> None:
    """`past` is the position of the keys and values of earlier calls."""
    data, weights = _shape(context, 0), _shape(context, 1)
    if data is None or weights is None or len(data) != 3 or not all(dim.dim_value for dim in (data[1], weights[1])):
        return
    sizes = context.get_attribute("qkv_hidden_sizes")
    hidden, heads = (sizes.ints[2] if sizes is not None else weights[1].dim_value // 3), _integer(context, "num_heads")
    _set_type(context, 0, [*data[:2], hidden])
    if context.get_num_outputs() > 1:
        before = _length(context, past, 3)
        if before is not None:
            _set_type(context, 1, [2, data[0], heads, before + data[1].dim_value, hidden // heads])


def _infer_multi_head(context: Any) -> None:
    """The types of a MultiHeadAttention's outputs: (batch, length, hidden), and keys and values by heads."""
    query, key, value = (_shape(context, position) for position in range(3))
    if query is None or key is None or value is None or len(query) != 3 or len(key) != len(value):
        return
    heads = _integer(context, "num_heads")
    rows, size, size_of_values = key[1 if len(key) == 3 else 2], query[2].dim_value // heads, value[-1].dim_value
    size_of_values = size_of_values // heads if len(value) == 3 else size_of_values
    _set_type(context, 0, [*query[:2], heads * size_of_values])
    before = _length(context, 6, 2)
    if context.get_num_outputs() > 2 and before is not None and rows.dim_value:
        for position, extent in ((1, size), (2, size_of_values)):
            _set_type(context, position, [query[0], heads, before + rows.dim_value, extent])


def _infer_grouped(context: Any) -> None:
    """The types of a GroupQueryAttention's outputs: (batch, length, hidden), and keys and values by their heads."""
    query = _shape(context, 0)
    if query is None or len(query) != 3:
        return
    heads, groups = _integer(context, "num_heads"), _integer(context, "kv_num_heads")
    size = query[2].dim_value // (heads if _shape(context, 1) is not None else heads + 2 * groups)
    _set_type(context, 0, [*query[:2], heads * size])
    before, total = _length(context, 3, 2), context.get_input_data(6)
    if context.get_num_outputs() > 2 and before is not None and total is not None:
        extent = max(before, int(numpy_helper.to_array(total).reshape(-1)[0]))
        for position in (1, 2):
            _set_type(context, position, [query[0], groups, extent, size])


def _integer(context: Any, name: str) -> int:
    """An attribute that is an integer; 0 if it is left out."""
    attribute = context.get_attribute(name)
    return 0 if attribute is None else int(attribute.i)


def _element(context: Any) -> int:
    """The type of the first input's elements."""
    return int(context.get_input_type(0).tensor_type.elem_type)


def _length(context: Any, position: int, axis: int) -> int | None:
    """The extent of an optional input along an axis: 0 if it is left out, None if it is not known."""
    if not context.has_input(position):
        return 0
    known = _shape(context, position)
    if known is None or len(known) <= axis or not known[axis].HasField("dim_value"):
        return None
    return int(known[axis].dim_value)


def _shape(context: Any, position: int) -> list[Any] | None:
    """The dimensions of an input; None if they are not known, or if the input is left out."""
    known = context.get_input_type(position) if context.has_input(position) else None
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


_FLOATS: Mapping[str, Sequence[str]] = {"T": _REALS}

SCHEMAS: Mapping[str, Schema] = {
    "Attention": Schema(
        "input:T weights:T bias:T? mask_index:int32? past:T? attention_bias:T? past_sequence_length:int32?",
        "output present",
        "num_heads:INT unidirectional:INT? qkv_hidden_sizes:INTS? past_present_share_buffer:INT? do_rotary:INT? "
        "mask_filter_value:FLOAT? scale:FLOAT? rotary_embedding_dim:INT?",
        _FLOATS,
        _infer_attention,
    ),
    "BiasGelu": Schema("A:T B:T", "C", "", _FLOATS, _infer_same),
    "DynamicQuantizeLSTM": Schema(
        "X:T W:B R:B B:T? sequence_lens:int32? initial_h:T? initial_c:T? P:T? W_scale:T? W_zero_point:B? R_scale:T? "
        "R_zero_point:B?",
        "Y Y_h Y_c",
        "hidden_size:INT direction:STRING? input_forget:INT? clip:FLOAT? activations:STRINGS? activation_alpha:FLOATS? "
        "activation_beta:FLOATS?",
        {"T": _REALS[:1], "B": _BYTES},
        _infer_states,
    ),
    "DynamicQuantizeMatMul": Schema(
        "A:T B:B b_scale:T b_zero_point:B? bias:T?", "Y", "", {"T": _REALS[:1], "B": _BYTES}, _infer_matmul
    ),
    "EmbedLayerNormalization": Schema(
        "input_ids:int32 segment_ids:int32? word_embedding:T position_embedding:T segment_embedding:T? gamma:T beta:T "
        "mask:int32? position_ids:int32?",
        "output mask_index:int32 embedding_sum",
        "epsilon:FLOAT? mask_index_type:INT?",
        _FLOATS,
        _infer_embedding,
    ),
    "FastGelu": Schema("X:T bias:T?", "Y", "", _FLOATS, _infer_same),
    "FusedMatMul": Schema(
        "A:T B:T",
        "Y",
        "alpha:FLOAT? transA:INT? transB:INT? transBatchA:INT? transBatchB:INT?",
        _FLOATS,
        _infer_matmul,
    ),
    "Gelu": Schema("X:T", "Y", "", _FLOATS, _infer_same),
    "GroupQueryAttention": Schema(
        "query:T key:T? value:T? past_key:C? past_value:C? seqlens_k:int32 total_sequence_length:int32 cos_cache:T? "
        "sin_cache:T? position_ids:int64? attention_bias:T? head_sink:T? k_scale:float? v_scale:float? "
        "q_norm_weight:T? k_norm_weight:T? query_seqlens:int32?",
        "output present_key:C present_value:C output_qk",
        "num_heads:INT kv_num_heads:INT scale:FLOAT? softcap:FLOAT? local_window_size:INT? do_rotary:INT? "
        "rotary_interleaved:INT? smooth_softmax:INT? qk_output:INT? causal:INT? sliding_window_cache:INT? "
        "k_quant_type:STRING? v_quant_type:STRING? kv_cache_bit_width:INT? qk_norm_epsilon:FLOAT? "
        "q_norm_epsilon:FLOAT? k_norm_epsilon:FLOAT?",
        {"T": _REALS, "C": (*_REALS, *_BYTES, "float8e4m3fn")},
        _infer_grouped,
    ),
    "MatMulIntegerToFloat": Schema(
        "A:A B:B a_scale:T b_scale:T a_zero_point:A? b_zero_point:B? bias:T?",
        "Y",
        "",
        {"T": _REALS[:2], "A": _BYTES, "B": _BYTES},
        _infer_matmul,
    ),
    "MatMulNBits": Schema(
        "A:T B:uint8 scales:T zero_points:Z? g_idx:int32? bias:T?",
        "Y",
        "K:INT N:INT bits:INT? block_size:INT? accuracy_level:INT?",
        {"T": _REALS, "Z": ("uint8", *_REALS)},
        _infer_product,
    ),
    "MultiHeadAttention": Schema(
        "query:T key:T? value:T? bias:T? key_padding_mask:int32? attention_bias:T? past_key:T? past_value:T? "
        "past_sequence_length:int32? cache_indirection:int32?",
        "output present_key present_value qk",
        "num_heads:INT mask_filter_value:FLOAT? scale:FLOAT? unidirectional:INT?",
        _FLOATS,
        _infer_multi_head,
    ),
    "QAttention": Schema(
        "input:A weight:B bias:T input_scale:T weight_scale:T mask_index:int32? input_zero_point:A? "
        "weight_zero_point:B? past:T?",
        "output present",
        "num_heads:INT unidirectional:INT? scale:FLOAT? mask_filter_value:FLOAT? do_rotary:INT? "
        "past_present_share_buffer:INT?",
        {"T": _REALS[:2], "A": _BYTES, "B": _BYTES},
        _infer_quantized_attention,
    ),
    "QuickGelu": Schema("X:T", "Y", "alpha:FLOAT?", _FLOATS, _infer_same),
    "RotaryEmbedding": Schema(
        "input:T position_ids:int64 cos_cache:T sin_cache:T",
        "output",
        "scale:FLOAT? interleaved:INT? rotary_embedding_dim:INT? num_heads:INT? is_packed_batching:INT?",
        _FLOATS,
        _infer_same,
    ),
    "SimplifiedLayerNormalization": Schema(
        "X:T scale:T", "Y inv_std_var:float", "axis:INT? epsilon:FLOAT? stash_type:INT?", _FLOATS, _infer_same
    ),
    "SkipLayerNormalization": Schema(
        "input:T skip:T gamma:T beta:T? bias:T?",
        "output mean:float inv_std_var:float input_skip_bias_sum",
        "epsilon:FLOAT?",
        _FLOATS,
        _infer_skipped,
    ),
    "SkipSimplifiedLayerNormalization": Schema(
        "input:T skip:T gamma:T bias:T?",
        "output mean:float inv_std_var:float input_skip_bias_sum",
        "epsilon:FLOAT?",
        _FLOATS,
        _infer_skipped,
    ),
}
"""What onnx has to know of each operator."""
