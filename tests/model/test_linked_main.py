"""Programs as functions that are linked to their kernels, as boards get them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from quantised_models import attention
from sized_models import pooled_model
from test_beside_the_virtual_machine import passed_on
from tiny_models import attention_model, zoo_model

from stormdrop.machine.cpu import Cpu
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.building.board import _Sent, library_of
from stormdrop.model.building.compile import build
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.isolated import Importer
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.random_weights import seed_weights

pytestmark = [pytest.mark.compiles, pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")]


def assert_the_same(model: CompiledModel, folder: Path) -> None:
    library_of(model._program, model.metadata).export_library(str(folder / "model.so"))
    sent = _Sent(tvm.runtime.load_module(str(folder / "model.so")), tvm.cpu(), model._program)
    for position, size in enumerate(model.sizes):
        feeds = random_feeds(size.inputs, 3)
        right = model.run(feeds)
        for _ in range(2):
            outputs = sent.run(position, [feeds[info.name] for info in size.inputs])
            for value, info in zip(outputs, size.outputs, strict=True):
                np.testing.assert_array_equal(value, right[info.name])


@pytest.mark.parametrize(
    "source",
    [
        lambda: seed_weights(attention_model(), 1),
        lambda: seed_weights(passed_on(), 1),
        lambda: seed_weights(zoo_model("squeezenet"), 1),
        attention,
    ],
    ids=["attention", "outputs that nothing computes", "squeezenet", "bytes"],
)
def test_a_linked_program_computes_the_same(source: Callable[[], onnx.ModelProto], target: Cpu, tmp_path: Path) -> None:
    assert_the_same(build(load_graph(source()), {}, target), tmp_path)


def test_each_size_has_a_function(target: Cpu, tmp_path: Path) -> None:
    with Importer() as importer:
        model = build(importer.load(pooled_model(), {"x": ((1, 3), 3, 8, 8)}), {}, target)
    assert_the_same(model, tmp_path)
