"""A model whose activations underflow, with and without denormals."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper
from tiny_models import make_model

import stormdrop as sd
from stormdrop.errors import ModelError
from stormdrop.machine.cpu import Cpu
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.verification.verify import Reference

pytestmark = pytest.mark.compiles

ROWS, WIDTH = 64, 32
TINY = float(np.finfo("float32").tiny)


def underflowing_model(scales: Sequence[float] = (1e-20, 1e-20, 1.0, 1.0)) -> onnx.ModelProto:
    """Dense layers, after which activations are about 1e-40, and layers that leave them there."""
    rng, nodes, value = np.random.default_rng(0), [], "x"
    weights = []
    for index, scale in enumerate(scales):
        values = rng.standard_normal((WIDTH, WIDTH)) * scale * (2 / WIDTH) ** 0.5
        weights.append(onnx.numpy_helper.from_array(values.astype("float32"), f"w{index}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{index}"], [f"m{index}"]))
        nodes.append(helper.make_node("Relu", [f"m{index}"], [f"r{index}"]))
        value = f"r{index}"
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    return make_model(nodes, {}, {"x": (ROWS, WIDTH)}, {"y": (ROWS, WIDTH)}, extra=weights)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_graph(underflowing_model())


@pytest.fixture(scope="module")
def models(graph: Graph, target: Cpu) -> dict[bool, CompiledModel]:
    """By whether they keep denormals."""
    return {keep: build(graph, {}, replace(target, keep_denormals=keep)) for keep in (False, True)}


def test_activations_become_zero_unless_denormals_are_kept(models: dict[bool, CompiledModel]) -> None:
    feeds = random_feeds(models[False].inputs, 1)

    def call(keep: bool) -> np.ndarray:
        return models[keep].run(feeds)["y"]

    kept = call(True)
    assert kept.max() < TINY and np.count_nonzero(kept) > kept.size / 4
    assert (kept.reshape(ROWS, WIDTH) > 0).any(axis=1).all()  # rows of all threads
    with ThreadPoolExecutor(4) as pool:  # whichever mode a thread had before
        order = [bool(index % 2) for index in range(64)]
        for keep, output in zip(order, pool.map(call, order), strict=True):
            assert np.array_equal(output, kept if keep else np.zeros_like(kept))
    assert np.float32(1e-30) * np.float32(1e-10) > 0  # the caller's own mode


def test_both_are_verified(graph: Graph, models: dict[bool, CompiledModel]) -> None:
    reference = Reference.compute(graph)
    for model in models.values():
        assert reference.check(model).fault is None


def test_the_metadata_say_which(models: dict[bool, CompiledModel]) -> None:
    for keep, model in models.items():
        assert model.metadata.target["keep_denormals"] is keep


def test_a_model_that_needs_denormals_is_refused_with_a_hint() -> None:
    model = underflowing_model((1e-20, 1e-20, 1e20, 1e20))
    with pytest.raises(ModelError, match=r"its outputs change by .* do not count as zero: try --keep-denormals"):
        sd.compile_model(model, fresh=True)
    assert sd.compile_model(model, fresh=True, keep_denormals=True).metadata.target["keep_denormals"]
