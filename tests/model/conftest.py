"""A tiny imported model and this machine, shared by the tests of the model path."""

from __future__ import annotations

import pytest
from tiny_models import residual_model

from stormdrop.machine.cpu import Cpu
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.random_weights import seed_weights


@pytest.fixture(scope="session")
def target() -> Cpu:
    return Cpu.detect()


@pytest.fixture(scope="session")
def residual() -> Graph:
    return load_graph(seed_weights(residual_model(), seed=1))
