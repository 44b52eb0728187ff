"""Networks that ran once go on running: detectors with several outputs, from the import to the verification."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from detectors import DETECTORS

from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.verification.verify import Reference

pytestmark = pytest.mark.compiles
pytest.importorskip("onnxruntime", reason="it is the reference")


@pytest.mark.parametrize("make", DETECTORS)
def test_a_detector_is_right(make: Callable[[], onnx.ModelProto], target: Cpu) -> None:
    source = make()
    graph = load_graph(source)
    assert not graph.foreign.reports
    model = build(graph, {}, target)
    assert [info.name for info in model.outputs] == [output.name for output in source.graph.output]
    checked = Reference.compute(graph).check(model)
    assert checked.fault is None
