"""Decoders as onnxruntime-genai's builder writes them: all native, and the same as onnxruntime, call by call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from genai_decoders import GROUPS, SIZE, WORDS, cache_names, tiny_decoder
from numpy.typing import NDArray

from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.untuned import compile_model_with
from stormdrop.tuning.options import TuneOptions

pytestmark = pytest.mark.compiles

Array = NDArray[Any]

PROMPT = 5


def feeds_of(ids: Array, total: int, past: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs of a call, after which the caches have `total` rows."""
    return {"input_ids": ids, "attention_mask": np.ones((len(ids), total), "int64"), **past}


def empty(batch: int, length: int) -> dict[str, Array]:
    """Caches without rows that mean something."""
    return {name: np.zeros((batch, GROUPS, length, SIZE), "float32") for name in cache_names("past")}


def as_past(outputs: Mapping[str, Array]) -> dict[str, Array]:
    """The caches of a call, as the next one takes them."""
    return {name.replace("present", "past"): value for name, value in outputs.items() if name.startswith("present")}


def expect_same(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Expects what onnxruntime computes, without its help, and returns it."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(None, dict(feeds)), strict=True))
    graph = load_graph(model, {name: value.shape for name, value in feeds.items()})
    assert not graph.foreign.reports
    compiled = build(graph, {}, Cpu.detect())
    got = compiled(**{name: value for name, value in feeds.items() if value.size})
    for name, value in zip(names, got, strict=True):
        np.testing.assert_allclose(value, expected[name], rtol=2e-5, atol=2e-5, err_msg=name)
    return expected


@pytest.mark.parametrize("packed", [False, True], ids=["apart", "packed"])
@pytest.mark.parametrize("room", [0, 12], ids=["growing", "with-room"])
def test_a_prompt_and_steps_are_native_and_what_onnxruntime_computes(room: int, packed: bool) -> None:
    model, rng = tiny_decoder(packed), np.random.default_rng(1)
    outputs = expect_same(model, feeds_of(rng.integers(0, WORDS, (1, PROMPT)), PROMPT, empty(1, room)))
    for total in (PROMPT + 1, PROMPT + 2):
        ids = outputs["logits"][:, -1:].argmax(-1)
        outputs = expect_same(model, feeds_of(ids, total, as_past(outputs)))
        assert outputs["present.0.key"].shape[2] == (room or total)


def test_several_sequences_and_a_prompt_in_chunks() -> None:
    model, rng = tiny_decoder(), np.random.default_rng(2)
    several = expect_same(model, feeds_of(rng.integers(0, WORDS, (2, PROMPT)), PROMPT, empty(2, 0)))
    expect_same(model, feeds_of(rng.integers(0, WORDS, (2, 1)), PROMPT + 1, as_past(several)))
    one = expect_same(model, feeds_of(rng.integers(0, WORDS, (1, PROMPT)), PROMPT, empty(1, 12)))
    expect_same(model, feeds_of(rng.integers(0, WORDS, (1, 3)), PROMPT + 3, as_past(one)))


@pytest.mark.parametrize(("rows", "total", "room"), [(1, 9, 12), (6, 6, 0)], ids=["step", "prompt"])
def test_it_is_verified_on_samples_that_mean_something(rows: int, total: int, room: int) -> None:
    """As a tuning does it: all ones of the mask count, and words are words."""
    feeds = feeds_of(np.zeros((1, rows), "int64"), total, empty(1, room))
    shapes = {name: value.shape for name, value in feeds.items()}
    result = compile_model_with(tiny_decoder(), Cpu.detect(), TuneOptions(fresh=True), shapes=shapes)
    assert result.verified.max_error < 1e-4
    names = [task.task.name for task in result.tasks]
    assert sum("matmul_of_codes" in name for name in names) >= 4
    assert sum("rms_norm" in name for name in names) == 1
