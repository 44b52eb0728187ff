"""Decoders as onnxruntime-genai's builder writes them, tiny and with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

WORDS, HIDDEN, INNER, HEADS, GROUPS, SIZE, LONGEST, LAYERS = 50, 64, 96, 4, 2, 16, 32, 2
_DOMAIN = "com.microsoft"


def tiny_decoder(packed: bool = False, seed: int = 0) -> onnx.ModelProto:
    """A decoder of two layers, whose products have weights of 4 bits.

    Args:
        packed: Whether one product makes queries, keys and values.
        seed: Of the weights.

    Returns:
        The model. Its inputs are `input_ids` (batch, sequence), `attention_mask` (batch, total), and keys and values
        by layers, `past.0.key` and so on (batch, heads, past, size); its outputs are `logits` and `present.0.key` and
        so on. It has to be given those of a call in the next one, or buffers that are longer.
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(_Builder(packed, seed).model(), bits=4, block_size=32, is_symmetric=True)
    quantizer.process()
    model: onnx.ModelProto = quantizer.model.model
    assert not any(node.op_type == "MatMul" for node in model.graph.node)
    return model


def cache_names(prefix: str) -> list[str]:
    """The names of the keys and the values of all layers."""
    return [f"{prefix}.{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]


class _Builder:
    def __init__(self, packed: bool, seed: int) -> None:
        self._packed, self._rng = packed, np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def model(self) -> onnx.ModelProto:
        """The model with weights in floats."""
        counted = self._node("ReduceSum", ["attention_mask", self._constant("axis", np.array([1]))], "counted")
        last = self._node("Sub", [counted, self._constant("one", np.array([1]))], "last")
        places = self._node("Cast", [last], "seqlens_k", to=TensorProto.INT32)
        length = self._node("Shape", ["attention_mask"], "mask_shape")
        length = self._node("Gather", [length, self._constant("index", np.array(1))], "length", axis=0)
        total = self._node("Cast", [length], "total_sequence_length", to=TensorProto.INT32)
        angles = np.arange(LONGEST)[:, None] / 10.0 ** np.arange(0, 4, 4 / (SIZE // 2))
        tables = [self._constant(f.__name__, f(angles).astype("float32")) for f in (np.cos, np.sin)]
        table = self._constant("embedding", self._rng.standard_normal((WORDS, HIDDEN)).astype("float32"))
        root = self._node("Gather", [table, "input_ids"], "embedded")
        scale = self._scale("first_norm")
        norm = self._node("SimplifiedLayerNormalization", [root, scale], "normed", axis=-1, epsilon=1e-5, stash_type=1)
        for layer in range(LAYERS):
            attended = self._attention(layer, norm, places, total, tables)
            norm, root = self._skip(f"post_{layer}", root, attended, with_sum=True)
            gated = self._mlp(layer, norm)
            norm, root = self._skip(f"next_{layer}", root, gated, with_sum=layer < LAYERS - 1)
        self._product("logits", norm, HIDDEN, WORDS)
        return self._as_model()

    def _attention(self, layer: int, x: str, places: str, total: str, tables: list[str]) -> str:
        widths = {"q": HEADS * SIZE, "k": GROUPS * SIZE, "v": GROUPS * SIZE}
        if self._packed:
            projected = [self._product(f"qkv_{layer}", x, HIDDEN, sum(widths.values())), "", ""]
        else:
            projected = [self._product(f"{name}_{layer}", x, HIDDEN, width) for name, width in widths.items()]
        past, present = ([f"{when}.{layer}.{kind}" for kind in ("key", "value")] for when in ("past", "present"))
        outputs = [f"attended_{layer}", *present]
        self._nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [*projected, *past, places, total, *tables],
                outputs,
                f"attention_{layer}",
                domain=_DOMAIN,
                num_heads=HEADS,
                kv_num_heads=GROUPS,
                scale=SIZE**-0.5,
                local_window_size=-1,
                softcap=0.0,
                do_rotary=1,
                rotary_interleaved=0,
            )
        )
        return self._product(f"o_{layer}", outputs[0], HEADS * SIZE, HIDDEN)

    def _mlp(self, layer: int, x: str) -> str:
        gate, up = (self._product(f"{name}_{layer}", x, HIDDEN, INNER) for name in ("gate", "up"))
        sigmoid = self._node("Sigmoid", [gate], f"sigmoid_{layer}")
        activated = self._node("Mul", [gate, sigmoid], f"activated_{layer}")
        return self._product(f"down_{layer}", self._node("Mul", [activated, up], f"gated_{layer}"), INNER, HIDDEN)

    def _skip(self, name: str, root: str, x: str, with_sum: bool) -> tuple[str, str]:
        outputs = [f"{name}_normed", "", "", f"{name}_sum"] if with_sum else [f"{name}_normed"]
        inputs = [root, x, self._scale(name)]
        operator = "SkipSimplifiedLayerNormalization"
        self._nodes.append(helper.make_node(operator, inputs, outputs, name, domain=_DOMAIN, epsilon=1e-5))
        return outputs[0], outputs[-1]

    def _product(self, name: str, x: str, rows: int, columns: int) -> str:
        weights = self._rng.standard_normal((rows, columns)) * rows**-0.5
        return self._node("MatMul", [x, self._constant(f"{name}_weights", weights.astype("float32"))], name)

    def _scale(self, name: str) -> str:
        return self._constant(f"{name}_scale", self._rng.uniform(0.5, 1.5, HIDDEN).astype("float32"))

    def _node(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(operator, inputs, [output], f"node_{output}", **attributes))
        return output

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        self._constants.append(numpy_helper.from_array(value, name))
        return name

    def _as_model(self) -> onnx.ModelProto:
        def cache(name: str, length: str) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, ("batch", GROUPS, length, SIZE))

        words = [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ("batch", "sequence")),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ("batch", "total")),
        ]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ("batch", "sequence", WORDS))
        graph = helper.make_graph(
            self._nodes,
            "decoder",
            [*words, *(cache(name, "past") for name in cache_names("past"))],
            [logits, *(cache(name, "present") for name in cache_names("present"))],
            self._constants,
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)
