"""A tiny ONNX decoder with a cache, as Optimum exports them, and what it computes with a cache that grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

WORDS, HEADS, WIDTH, PLACES = 40, 2, 8, 64
"""Tokens of the vocabulary, heads, the width of each, and the places that it knows."""

_DEEP = HEADS * WIDTH


def tiny_decoder(
    places: str = "input",
    *,
    layers: int = 2,
    past: str = "past_key_values.{}",
    present: str = "present.{}",
    masked: bool = True,
    seed: int = 0,
) -> onnx.ModelProto:
    """A decoder of tables of words and places, and attentions with a residual.

    Args:
        places: By what it places tokens: an "input" position_ids, the "mask", or the "slots" of the cache, which is
            wrong.
        layers: How many attentions.
        past: What its states are called as inputs; "0.key" and so on follows.
        present: What they are called as outputs.
        masked: Whether it takes a mask.
        seed: Draws its weights.
    """
    rng = np.random.default_rng(seed)
    weights: dict[str, NDArray[Any]] = {
        "words": rng.normal(size=(WORDS, _DEEP)).astype("float32"),
        "places": rng.normal(size=(PLACES, _DEEP)).astype("float32"),
        "out": rng.normal(size=(_DEEP, WORDS)).astype("float32"),
        "hidden": np.array(-1e9, "float32"),
        "seen": np.array(0, "float32"),
        "scale": np.array(WIDTH**-0.5, "float32"),
        "heads": np.array([0, 0, HEADS, WIDTH]),
        "flat": np.array([0, 0, _DEEP]),
        **{name: np.array(value) for name, value in {"zero": 0, "one": 1}.items()},
        **{name: np.array([value]) for name, value in {"first": 0, "second": 1, "third": 2}.items()},
        "end": np.array([2**40]),
    }
    nodes: list[onnx.NodeProto] = []

    def node(kind: str, *inputs: str, out: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    node("Gather", node("Shape", "input_ids", out="ids_shape"), "one", out="chunk")
    node("Gather", node("Shape", past.format("0.key"), out="past_shape"), "two", out="so_far")
    weights["two"] = np.array(2)
    node("Add", "so_far", "chunk", out="all")
    node("Range", "zero", "all", "one", out="columns")
    node("Unsqueeze", node("Range", "so_far", "all", "one", out="rows"), "second", out="rows_down")
    visible = node("LessOrEqual", "columns", "rows_down", out="causal")
    if masked:
        node("Cast", "attention_mask", out="kept", to=TensorProto.BOOL)
        visible = node("And", "causal", node("Unsqueeze", "kept", "by_row", out="kept_by_row"), out="visible")
        weights["by_row"] = np.array([1, 2])
    node("Where", visible, "seen", "hidden", out="bias")
    if places == "mask":
        node("CumSum", "attention_mask", "one", out="counted")
        node("Sub", "counted", "one", out="at")
        node("Slice", "at", node("Unsqueeze", "so_far", "first", out="begin"), "end", "second", out="position_ids")
    elif places == "slots":
        node("Unsqueeze", "rows", "first", out="position_ids")
    node("Gather", "words", "input_ids", out="x_words")
    node("Gather", "places", "position_ids", out="x_places")
    x = node("Add", "x_words", "x_places", out="x0")
    for layer in range(layers):
        for name in ("query", "key", "value", "joined"):
            weights[f"{name}{layer}"] = (rng.normal(size=(_DEEP, _DEEP)) * 0.5).astype("float32")
        of = {}
        for name in ("query", "key", "value"):
            made = node("MatMul", x, f"{name}{layer}", out=f"{name}{layer}_flat")
            made = node("Reshape", made, "heads", out=f"{name}{layer}_heads")
            of[name] = node("Transpose", made, out=f"{name}{layer}_rows", perm=[0, 2, 1, 3])
        for name in ("key", "value"):
            state = f"{layer}.{name}"
            of[name] = node("Concat", past.format(state), of[name], out=present.format(state), axis=2)
        turned = node("Transpose", of["key"], out=f"turned{layer}", perm=[0, 1, 3, 2])
        scores = node("MatMul", of["query"], turned, out=f"scores{layer}")
        scores = node("Add", node("Mul", scores, "scale", out=f"scaled{layer}"), "bias", out=f"biased{layer}")
        made = node("MatMul", node("Softmax", scores, out=f"weights{layer}", axis=-1), of["value"], out=f"made{layer}")
        made = node(
            "Reshape", node("Transpose", made, out=f"back{layer}", perm=[0, 2, 1, 3]), "flat", out=f"flat{layer}"
        )
        x = node("Add", x, node("MatMul", made, f"joined{layer}", out=f"added{layer}"), out=f"x{layer + 1}")
    node("MatMul", x, "out", out="logits")

    def value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    states = [f"{layer}.{name}" for layer in range(layers) for name in ("key", "value")]
    inputs = [value("input_ids", TensorProto.INT64, "batch", "chunk")]
    inputs += [value("attention_mask", TensorProto.INT64, "batch", "past + chunk")] if masked else []
    inputs += [value("position_ids", TensorProto.INT64, "batch", "chunk")] if places == "input" else []
    inputs += [value(past.format(state), TensorProto.FLOAT, "batch", HEADS, "past", WIDTH) for state in states]
    outputs = [value("logits", TensorProto.FLOAT, "batch", "chunk", WORDS)]
    outputs += [
        value(present.format(each), TensorProto.FLOAT, "batch", HEADS, "past + chunk", WIDTH) for each in states
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "tiny_decoder", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def shapes_of(capacities: Sequence[int], chunks: Sequence[int], past: str = "past_key_values.{}") -> Mapping[str, Any]:
    """The shapes to compile a tiny decoder for."""
    return {"input_ids": (1, tuple(chunks)), past.format("0.key"): (1, HEADS, tuple(capacities), WIDTH)}


def logits_of(model: onnx.ModelProto, tokens: Sequence[int]) -> NDArray[Any]:
    """What NumPy makes of the tokens by the weights of a tiny decoder, in float64: no cache, all at once.

    Returns:
        The logits, (tokens, WORDS).
    """
    weights = {tensor.name: numpy_helper.to_array(tensor).astype(np.float64) for tensor in model.graph.initializer}
    x = weights["words"][list(tokens)] + weights["places"][: len(tokens)]
    hidden = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for layer in range(sum(name.startswith("query") for name in weights)):
        query, key, value = (
            (x @ weights[f"{name}{layer}"]).reshape(len(tokens), HEADS, WIDTH).swapaxes(0, 1)
            for name in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(1, 2) * WIDTH**-0.5 + hidden
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        x = x + (shares @ value).swapaxes(0, 1).reshape(len(tokens), _DEEP) @ weights[f"joined{layer}"]
    made: NDArray[Any] = x @ weights["out"]
    return made


def greedy(model: onnx.ModelProto, prompt: Sequence[int], count: int) -> list[int]:
    """The likeliest tokens that follow a prompt, by `logits_of`."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_of(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]
