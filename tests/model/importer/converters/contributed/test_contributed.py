"""Operators that onnxruntime has beside the standard: all native, and the same as there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_node_cases import CONTRIBUTED, Case, embedding, expect_same, grouped, normal, rotary, self_attention
from onnx import TensorProto, helper, numpy_helper

from stormdrop.errors import ModelError
from stormdrop.machine.cpu import Cpu
from stormdrop.model.importer.converters import CONVERTERS
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.onnx.contributed import DOMAIN
from stormdrop.model.onnx.contributed_schemas import SCHEMAS
from stormdrop.model.onnx.index_ranges import index_ranges
from stormdrop.model.passes.attention import with_attention

SEEDS = 12


@pytest.mark.compiles
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", CONTRIBUTED)
def test_random_cases_are_what_onnxruntime_computes(kind: str, seed: int) -> None:
    expect_same(CONTRIBUTED[kind](np.random.default_rng(seed)))


def drawn(kind: Callable[[np.random.Generator], Case], wanted: Callable[[Case], bool]) -> Case:
    """The first case of a kind for which something is true."""
    return next(case for seed in range(1000) if wanted(case := kind(np.random.default_rng(seed))))


def shape(case: Case, position: int) -> tuple[int, ...]:
    """The shape of an input; () for one that is left out."""
    value = case.inputs[position] if position < len(case.inputs) else None
    return () if value is None else value.shape


def with_input(case: Case, position: int, value: Any) -> Case:
    """A case with another input."""
    inputs = [*case.inputs, *[None] * (position + 1 - len(case.inputs))]
    inputs[position] = value
    return replace(case, inputs=inputs)


def step(total: int = 5, **attributes: Any) -> Case:
    """A step of a decoder whose cache has room for 6 rows, and so many of them after the step."""
    rng = np.random.default_rng(0)
    past = [normal(rng, 1, 2, 6, 16) for _ in range(2)]
    ends = [np.array([total - 1], "int32"), np.array([total], "int32")]
    heads = {"num_heads": 4, "kv_num_heads": 2}
    outputs = ["y", "present_key", "present_value"]
    inputs = [normal(rng, 1, 1, 128), None, None, *past, *ends]
    return Case("GroupQueryAttention", inputs, frozenset({6}), outputs, {**heads, **attributes})


def refused() -> dict[str, tuple[Case, str]]:
    """Cases that onnxruntime runs, and why."""
    rng = np.random.default_rng(0)
    by_words = np.array(
        [3, 3, 0, 3, 6, 0, 3, 6], "int32"
    )  # lengths, and where each sequence of queries and keys begins
    packed = Case(
        "MultiHeadAttention", [*(normal(rng, 2, 3, 8) for _ in range(3)), None, by_words], attributes={"num_heads": 2}
    )
    return {
        "open": (replace(step(), constants=frozenset()), "'present_key' is no tensor of a fixed shape"),
        "window": (step(sliding_window_cache=1, local_window_size=6), "the attribute sliding_window_cache"),
        "scores": (replace(step(qk_output=1), outputs=["y", "k", "v", "qk"]), "the attribute qk_output"),
        "chunks": (with_input(step(6), 16, np.array([1], "int32")), "chunks that are padded (query_seqlens)"),
        "lengths": (packed, "a mask of shape (8,)"),
    }


@pytest.mark.parametrize("name", refused())
def test_what_is_not_taken_has_a_reason(name: str) -> None:
    case, why = refused()[name]
    (part,) = load_graph(case.model()).foreign.reports
    assert part.operators == {f"{DOMAIN}.{case.operator}": 1}
    assert why in part.reason


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ([None, None], "do_rotary without cos_cache and sin_cache"),
        ([np.ones((4, 8), "float32")] * 2, "total_sequence_length is 5, and cos_cache has 4 positions"),
    ],
)
def test_what_onnxruntime_refuses_too_is_refused_with_the_reason(tables: list[Any], why: str) -> None:
    case = step(do_rotary=1)
    with pytest.raises(ModelError, match=why):
        load_graph(replace(case, inputs=[*case.inputs, *tables]).model())


def test_the_cache_of_a_step_is_read_as_it_lies() -> None:
    """Nothing copies it but the kernel that writes the new rows."""
    graph = load_graph(step(total=6).model())
    written = [tuple(int(extent) for extent in task.function.params[-1].shape) for task in graph.tasks]
    of_its_size = [
        task.name for task, shape in zip(graph.tasks, written, strict=True) if shape[2:] in ((6, 16), (16, 6))
    ]
    assert of_its_size and all(name.endswith("cache") for name in of_its_size)


@pytest.mark.parametrize("kind", ["Attention", "MultiHeadAttention", "GroupQueryAttention"])
def test_attention_is_one_kernel_where_that_pays(kind: str) -> None:
    rng, rows = np.random.default_rng(0), 24
    given = [normal(rng, 1, rows, 64) for _ in range(3)]
    ends = [np.array([rows - 1], "int32"), np.array([rows], "int32")]
    case = {
        "Attention": Case(kind, [given[0], normal(rng, 64, 192), normal(rng, 192)], frozenset({1, 2})),
        "MultiHeadAttention": Case(kind, [*given, normal(rng, 192)], frozenset({3})),
        "GroupQueryAttention": Case(kind, [*given, None, None, *ends], frozenset({6}), ["y", "k", "v"]),
    }[kind]
    grouped_heads = {"kv_num_heads": 4} if kind == "GroupQueryAttention" else {}
    model = replace(case, attributes={"num_heads": 4, **grouped_heads}).model()
    machine = replace(Cpu.detect(), l1=256, l2=256, cores=2)
    names = [task.name for task in with_attention(load_graph(model), machine).tasks]
    assert sum(name.startswith("attention") for name in names) == 1
    assert not any("softmax" in name for name in names)


def test_samples_are_places_and_lengths_that_there_are() -> None:
    assert index_ranges(step().model())["x5"] == (0, 5)
    prompt = drawn(grouped, lambda case: shape(case, 0)[1] > 1 and not shape(case, 3))
    length = shape(prompt, 0)[1]
    assert index_ranges(prompt.model())["x5"] == (length - 1, length)
    turned = drawn(rotary, lambda case: shape(case, 1) == (1,) and len(shape(case, 0)) == 3)
    assert index_ranges(turned.model())["x1"] == 7 - 3 + 1
    words = drawn(embedding, lambda case: bool(shape(case, 1) and shape(case, 8)))
    assert [index_ranges(words.model())[name] for name in ("x0", "x1", "x8")] == [11, 2, 6]
    lengths = drawn(self_attention, lambda case: shape(case, 3) == (2,))
    assert index_ranges(lengths.model())["x3"] == (1, 3 + 1)


def test_the_ones_of_a_mask_that_are_counted_are_all_of_them() -> None:
    """As exporters say how many rows a cache has: one less than the sum of the mask."""
    model = step().model()
    nodes = [
        helper.make_node("ReduceSum", ["mask", "axis"], ["counted"], keepdims=0),
        helper.make_node("Sub", ["counted", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["x5"], to=TensorProto.INT32),
    ]
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    model.graph.initializer.extend(numpy_helper.from_array(np.array([1]), name) for name in ("axis", "one"))
    kept = [value for value in model.graph.input if value.name != "x5"]
    del model.graph.input[:]
    model.graph.input.extend([*kept, helper.make_tensor_value_info("mask", TensorProto.INT64, (1, 5))])
    assert index_ranges(model)["mask"] == (1, 2)


def test_the_page_of_operators_names_all_of_them() -> None:
    page = Path(__file__).parents[5] / "docs" / "reference" / "onnxruntime-operators.md"
    rows = [line.split("|")[1] for line in page.read_text().splitlines() if line.startswith("|")]
    named = {word for row in rows for word in re.findall(r"\w+", row)}
    assert set(SCHEMAS) <= named
    assert {f"{DOMAIN}.{operator}" for operator in SCHEMAS} - set(CONVERTERS) == {
        f"{DOMAIN}.SimplifiedLayerNormalization"
    }
