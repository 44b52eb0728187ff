"""Random models of one node each, for operators of decoders and encoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.graph.onnx_origin import OnnxOrigin
from stormdrop.model.importer.import_onnx import load_graph

Array = NDArray[Any]

DOMAIN = "com.microsoft"


@dataclass
class Case:
    """A model of one node.

    Attributes:
        operator: Its operator.
        inputs: The inputs in their order; None for one that is left out.
        constants: The positions of those that are constants.
        outputs: The names of the outputs; an empty one is left out.
        attributes: The attributes.
        valid: What of an output counts, by its name; by default all of it.
        domain: The domain of the operator.
        opset: The version of the standard.
    """

    operator: str
    inputs: Sequence[Array | None]
    constants: frozenset[int] = frozenset()
    outputs: Sequence[str] = ("y",)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    valid: Mapping[str, Callable[[Array], Array]] = field(default_factory=dict)
    domain: str = DOMAIN
    opset: int = 17

    @property
    def feeds(self) -> dict[str, Array]:
        """The inputs that are no constants, by name."""
        return {
            f"x{position}": value
            for position, value in enumerate(self.inputs)
            if value is not None and position not in self.constants
        }

    def model(self) -> onnx.ModelProto:
        """The model."""
        names = ["" if value is None else f"x{position}" for position, value in enumerate(self.inputs)]
        constants = {
            f"x{place}": value
            for place, value in enumerate(self.inputs)
            if value is not None and place in self.constants
        }
        node = helper.make_node(self.operator, names, self.outputs, "node", domain=self.domain, **self.attributes)
        integers = {"mask_index": TensorProto.INT32}
        graph = helper.make_graph(
            [node],
            "one",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
                for name, value in self.feeds.items()
            ],
            [
                helper.make_tensor_value_info(name, integers.get(name, TensorProto.FLOAT), None)
                for name in self.outputs
                if name
            ],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def expect_same(case: Case, bound: float = 4e-6) -> None:
    """Expects what onnxruntime computes, without its help."""
    model = case.model()
    graph = load_graph(model)
    assert not graph.foreign.reports, graph.foreign.reports
    names = [output.name for output in model.graph.output]
    expected = OnnxOrigin(model).outputs([case.feeds], names)[0][0]
    got = build(graph, {}, Cpu.detect())(**case.feeds)
    for name, value in zip(names, got if isinstance(got, tuple) else (got,), strict=True):
        assert value.shape == expected[name].shape, name
        count = case.valid.get(name, lambda whole: whole)
        difference = np.abs(count(value).astype("float64") - count(expected[name])).max(initial=0)
        assert difference <= bound * max(1.0, np.abs(count(expected[name])).max(initial=0)), f"{name} by {difference}"


def some(rng: np.random.Generator, *values: Any) -> Any:
    """One of these values."""
    return values[int(rng.integers(len(values)))]


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Numbers of a normal distribution."""
    return rng.standard_normal(shape).astype("float32")


def activation(rng: np.random.Generator) -> Case:
    """A Gelu or one of its kin."""
    operator = some(rng, "Gelu", "FastGelu", "BiasGelu", "QuickGelu")
    x = 3 * normal(rng, *rng.integers(1, 5, rng.integers(1, 3)), 6)
    bias = [normal(rng, 6)] if operator == "BiasGelu" or (operator == "FastGelu" and some(rng, True, False)) else []
    alpha = {"alpha": float(rng.uniform(0.5, 2))} if operator == "QuickGelu" and some(rng, True, False) else {}
    return Case(operator, [x, *bias], frozenset({1}) if some(rng, True, False) else frozenset(), attributes=alpha)


def product(rng: np.random.Generator) -> Case:
    """A FusedMatMul."""
    batch, m, k, n = (int(extent) for extent in rng.integers(2, 5, 4))
    attributes: dict[str, Any] = {
        name: int(rng.integers(2)) for name in ("transA", "transB", "transBatchA", "transBatchB")
    }
    if some(rng, True, False):
        attributes["alpha"] = float(rng.uniform(-2, 2))
    operands = []
    for name, shape in (("A", (batch, m, k)), ("B", (batch, k, n))):
        if attributes[f"trans{name}"]:
            shape = shape[0], shape[2], shape[1]
        if attributes[f"transBatch{name}"]:
            shape = shape[1], shape[0], shape[2]
        operands.append(normal(rng, *shape))
    if not (attributes["transBatchA"] or attributes["transBatchB"]) and some(rng, True, False):
        operands[1] = operands[1][0]
    constants: frozenset[int] = some(rng, frozenset({1}), frozenset())
    return Case("FusedMatMul", operands, constants, attributes=attributes)


def simplified(rng: np.random.Generator) -> Case:
    """A SimplifiedLayerNormalization, which onnxruntime has in the domain of the standard."""
    shape = (2, 3, 8)
    axis = some(rng, -1, 2, 1, -2)
    attributes = {"axis": axis, "epsilon": float(rng.uniform(1e-6, 1e-1)), "stash_type": 1}
    x, scale = normal(rng, *shape), normal(rng, *shape[axis:])
    return Case("SimplifiedLayerNormalization", [x, scale], frozenset({1}), attributes=attributes, domain="")


def skipped(rng: np.random.Generator) -> Case:
    """A normalization of a sum."""
    operator = some(rng, "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
    shape = some(rng, (2, 3, 8), (5, 8))
    skip = normal(rng, *some(rng, shape, shape if len(shape) == 2 else some(rng, (1, 3, 8), (3, 8))))
    optional = [normal(rng, 8) if some(rng, True, False) else None for _ in range(2)]
    inputs = [normal(rng, *shape), skip, normal(rng, 8), *optional[operator != "SkipLayerNormalization" :]]
    outputs = some(rng, ["y"], ["y", "", "", "sum"])
    attributes = some(rng, {}, {"epsilon": 0.1})
    return Case(operator, inputs, frozenset({2, 3, 4}), outputs, attributes)


def embedding(rng: np.random.Generator) -> Case:
    """An EmbedLayerNormalization."""
    batch, length = 2, 3
    with_segments, with_mask, with_positions = (some(rng, True, False) for _ in range(3))

    def ids(count: int, rows: int = batch) -> Array:
        return rng.integers(0, count, (rows, length)).astype("int32")

    inputs = [
        ids(11),
        ids(2) if with_segments else None,
        normal(rng, 11, 8),
        normal(rng, 6, 8),
        normal(rng, 2, 8) if with_segments else None,
        normal(rng, 8),
        normal(rng, 8),
        ids(2) if with_mask else None,
        ids(6, some(rng, 1, 2)) if with_positions else None,
    ]
    outputs = some(rng, ["y", "mask_index"], ["y", "mask_index", "sum"])
    attributes = some(rng, {}, {"epsilon": 0.1})
    return Case("EmbedLayerNormalization", inputs, frozenset({2, 3, 4, 5, 6}), outputs, attributes)


def tables(rng: np.random.Generator, count: int, pairs: int) -> list[Array]:
    """Cosines and sines of some angles."""
    angles = rng.uniform(0, 6, (count, pairs))
    return [np.cos(angles).astype("float32"), np.sin(angles).astype("float32")]


def rotary(rng: np.random.Generator) -> Case:
    """A RotaryEmbedding."""
    batch, length, heads, size = 2, 3, some(rng, 1, 2), 8
    attributes = {"interleaved": int(rng.integers(2))}
    pairs = size // 2
    if some(rng, True, False):
        pairs = 2
        attributes |= {"num_heads": heads, "rotary_embedding_dim": 2 * pairs}
    elif some(rng, True, False):
        attributes["num_heads"] = heads
    shape = some(rng, (batch, length, heads * size), (batch, heads, length, size))
    positions = some(rng, np.array([2]), rng.integers(0, 7, (batch, length)))
    inputs = [normal(rng, *shape), positions.astype("int64"), *tables(rng, 7, pairs)]
    return Case("RotaryEmbedding", inputs, frozenset({2, 3}), attributes=attributes)


def self_attention(rng: np.random.Generator) -> Case:
    """An Attention."""
    batch, length, wide, heads, size = 2, 3, 10, 2, 4
    past = some(rng, 0, 2)
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": int(rng.integers(2))}
    hidden = of_values = heads * size
    if not past and some(rng, True, False):
        of_values = 3 * heads
        attributes["qkv_hidden_sizes"] = [hidden, hidden, of_values]
    if some(rng, True, False):
        attributes |= {"scale": 0.3, "mask_filter_value": -50.0}
    columns = 2 * hidden + of_values
    total = past + length
    bias = None
    if not past and some(rng, True, False):
        bias = normal(rng, some(rng, 1, batch), some(rng, 1, heads), length, total)
    inputs = [
        normal(rng, batch, length, wide),
        normal(rng, wide, columns),
        some(rng, normal(rng, columns), normal(rng, columns), None),
        mask(rng, batch, length, total),
        normal(rng, 2, batch, heads, past, size) if past else None,
        bias,
    ]
    outputs = ["y", "present"] if past or (of_values == hidden and some(rng, True, False)) else ["y"]
    return Case("Attention", inputs, frozenset({1, 2}), outputs, attributes)


def multi_head(rng: np.random.Generator) -> Case:
    """A MultiHeadAttention."""
    batch, rows, heads, size = 2, 3, 2, 4
    length, past = some(rng, 3, 5), some(rng, 0, 0, 2)
    by_heads = not past and some(rng, True, False, False)
    of_values = size if past or by_heads else some(rng, 4, 6)
    total = length + past
    attributes: dict[str, Any] = {"num_heads": heads}
    if length == rows and some(rng, True, False):
        attributes["unidirectional"] = 1
    if some(rng, True, False):
        attributes |= {"scale": 0.3, "mask_filter_value": -50.0}

    def given(width: int) -> Array:
        return normal(rng, batch, heads, length, width) if by_heads else normal(rng, batch, length, heads * width)

    keys = mask(rng, batch, rows, total)
    if keys is not None and keys.shape[-1] in (1, 2 * batch):
        keys = None
    inputs = [
        normal(rng, batch, rows, heads * size),
        given(size),
        given(of_values),
        None if by_heads or some(rng, True, False) else normal(rng, heads * (2 * size + of_values)),
        keys,
        some(rng, None, normal(rng, some(rng, 1, batch), some(rng, 1, heads), rows, total)),
        normal(rng, batch, heads, past, size) if past else None,
        normal(rng, batch, heads, past, of_values) if past else None,
    ]
    outputs = some(rng, ["y"], ["y", "present_key", "present_value"], ["y", "present_key", "present_value", "qk"])
    if past and len(outputs) == 1:
        outputs = ["y", "present_key", "present_value"]
    return Case("MultiHeadAttention", inputs, frozenset({3}), outputs, attributes)


def mask(rng: np.random.Generator, batch: int, rows: int, total: int) -> Array | None:
    """A mask of one of the kinds that Attention takes, which leaves each row something to see."""
    kind = some(rng, "none", "ends", "bounds", "keys", "queries", "one")
    ends = rng.integers(1, total + 1, batch)
    if kind == "none":
        return None
    if kind == "ends":
        return ends.astype("int32")
    if kind == "bounds":
        return np.concatenate([ends, rng.integers(0, ends)]).astype("int32")
    if kind == "one":
        return np.zeros((some(rng, 1, batch), 1), "int32")
    seen = rng.integers(0, 2, (batch, total) if kind == "keys" else (batch, rows, total))
    seen[..., 0] = 1
    return seen.astype("int32")


def grouped(rng: np.random.Generator) -> Case:
    """A GroupQueryAttention: a first prompt, a step or a chunk, with a cache that grows or has room."""
    kind = some(rng, "prompt", "step", "chunk")
    groups, shared, size = some(rng, 1, 2), some(rng, 1, 3), some(rng, 16, 16, 32)
    heads = groups * shared
    batch = 1 if kind == "chunk" else some(rng, 1, 2)
    count = 1 if kind == "step" else some(rng, 3, 4)
    has_room = some(rng, True, False)
    past = {"prompt": some(rng, 0, 7) if has_room else 0}.get(kind, 7)
    if kind == "prompt":
        total, ends = count, rng.integers(1, count + 1, batch)
    else:
        total = int(rng.integers(count + 1, past + 1)) if has_room else past + count
        ends = np.full(batch, total) if kind == "chunk" else rng.integers(count + 1, total + 1, batch)
        ends[0] = total
    extent = max(past, total)
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups}
    for name, value in (("scale", 0.3), ("softcap", 2.0), ("local_window_size", 3), ("smooth_softmax", 1)):
        if some(rng, True, False, False):
            attributes[name] = value
    inputs: list[Array | None] = [None] * 12
    if some(rng, True, False):
        inputs[0] = normal(rng, batch, count, (heads + 2 * groups) * size)
    else:
        inputs[:3] = [normal(rng, batch, count, number * size) for number in (heads, groups, groups)]
    if past:
        inputs[3:5] = [normal(rng, batch, groups, past, size) for _ in range(2)]
    inputs[5] = (ends - 1).astype("int32")
    inputs[6] = np.array([total], "int32")
    if some(rng, True, False):
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(rng.integers(2))}
        inputs[7:9] = tables(rng, extent + 3, some(rng, 8, size // 2))
        if some(rng, True, False, False):
            first = (ends - count) if kind != "prompt" else np.zeros(batch, int)
            inputs[9] = (first[:, None] + np.arange(count)).astype("int64")
    if some(rng, True, False, False):
        inputs[10] = normal(rng, some(rng, 1, batch), some(rng, 1, heads), count, total)
    if "smooth_softmax" not in attributes and some(rng, True, False, False):
        inputs[11] = normal(rng, heads)
    while inputs[-1] is None:
        inputs.pop()

    def rows(y: Array) -> Array:  # those behind a shorter prompt mean nothing
        steps = [y[b, : int(ends[b])] if kind == "prompt" else y[b] for b in range(batch)]
        return np.concatenate([step.ravel() for step in steps])

    def kept(cache: Array) -> Array:
        return np.concatenate([cache[b, :, : int(ends[b])].ravel() for b in range(batch)])

    valid = {"y": rows, "present_key": kept, "present_value": kept}
    outputs = ["y", "present_key", "present_value"]
    return Case("GroupQueryAttention", inputs, frozenset({6, 7, 8, 11}), outputs, attributes, valid)


def standard_norm(rng: np.random.Generator) -> Case:
    """A RMSNormalization of the standard."""
    axis = some(rng, -1, 2, 1, -2)
    attributes = {"axis": axis, "epsilon": float(rng.uniform(1e-6, 1e-1))}
    inputs = [normal(rng, 2, 3, 8), normal(rng, *(2, 3, 8)[axis:])]
    return Case("RMSNormalization", inputs, frozenset({1}), attributes=attributes, domain="", opset=23)


def standard_rotary(rng: np.random.Generator) -> Case:
    """A RotaryEmbedding of the standard."""
    batch, length, heads, size = 2, 3, some(rng, 1, 2), 8
    attributes = {"interleaved": int(rng.integers(2))}
    pairs = size // 2
    if some(rng, True, False):
        pairs = 2
        attributes["rotary_embedding_dim"] = 2 * pairs
    shape = some(rng, (batch, length, heads * size), (batch, heads, length, size))
    if len(shape) == 3:
        attributes["num_heads"] = heads
    if some(rng, True, False):
        inputs = [normal(rng, *shape), *tables(rng, 7, pairs), rng.integers(0, 7, (batch, length)).astype("int64")]
    else:
        inputs = [normal(rng, *shape), *(table.reshape(batch, length, pairs) for table in tables(rng, 6, pairs))]
    return Case("RotaryEmbedding", inputs, frozenset({1, 2}), attributes=attributes, domain="", opset=23)


def standard_attention(rng: np.random.Generator) -> Case:
    """An Attention of the standard."""
    batch, groups, shared, rows, size, of_values = 2, some(rng, 1, 2), some(rng, 1, 3), 3, 4, some(rng, 4, 6)
    heads, keys, past = groups * shared, some(rng, 3, 5), some(rng, 0, 0, 2)
    total = past + keys
    attributes: dict[str, Any] = {"is_causal": int(rng.integers(2))}
    for name, value in (("scale", 0.3), ("softcap", 2.0), ("qk_matmul_output_mode", int(rng.integers(4)))):
        if some(rng, True, False, False):
            attributes[name] = value
    by_heads = some(rng, True, False)
    if not by_heads:
        attributes |= {"q_num_heads": heads, "kv_num_heads": groups}

    def given(count: int, length: int, width: int) -> Array:
        return normal(rng, batch, count, length, width) if by_heads else normal(rng, batch, length, count * width)

    rank = some(rng, (rows, total), (some(rng, 1, batch), some(rng, 1, heads), rows, total))
    seen = rng.integers(0, 2, rank).astype(bool)
    seen[..., 0] = True
    inputs: list[Array | None] = [
        given(heads, rows, size),
        given(groups, keys, size),
        given(groups, keys, of_values),
        some(rng, None, seen, normal(rng, *rank)),
    ]
    if past:
        inputs += [normal(rng, batch, groups, past, size), normal(rng, batch, groups, past, of_values)]
    outputs = ["y", *(["present_key", "present_value"] if past else ["", ""])]
    if "qk_matmul_output_mode" in attributes:
        outputs.append("qk")
    while not outputs[-1]:
        outputs.pop()
    # The score of what a mask excludes is -infinity, or the lowest number.
    valid = {"qk": lambda scores: np.maximum(scores, -1e3)}
    return Case("Attention", inputs, frozenset(), outputs, attributes, valid, "", some(rng, 23, 24))


STANDARD = {each.__name__: each for each in (standard_norm, standard_rotary, standard_attention)}
"""Operators of the standard that do the same, by name."""

CONTRIBUTED = {
    each.__name__: each
    for each in (activation, product, simplified, skipped, embedding, rotary, self_attention, multi_head, grouped)
}
"""Operators of onnxruntime's own, by name."""
