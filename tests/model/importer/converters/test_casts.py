"""Casts of numbers to integers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.model.building.compile import build
from stormdrop.model.importer.import_onnx import load_graph


@pytest.mark.compiles
def test_numbers_become_int32_in_a_kernel_that_sketches_take() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT32)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (8,))
    y = helper.make_tensor_value_info("y", TensorProto.INT32, (8,))
    graph = load_graph(
        helper.make_model(
            helper.make_graph([node], "cast", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
        )
    )
    for task in graph.tasks:
        Workload.create(task.name, task.function, task.constants)  # refuses integers of 64 bits
    values = np.array([0.5, -0.9, 7, -(2.0**31), 2.0**31 - 128, 1e10, -np.inf, np.nan], np.float32)
    limits = np.iinfo(np.int32)
    right = [0, 0, 7, limits.min, 2**31 - 128, 2**31 - 128, limits.min, 0]
    np.testing.assert_array_equal(build(graph, {}, Cpu.detect())(values), right)
