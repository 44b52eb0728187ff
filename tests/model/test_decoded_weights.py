"""Which weights of 4 and 8 bits are decoded when a model is compiled, and that the decoded ones are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import stormdrop as sd
from stormdrop.ir.reference import evaluate
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import parse_machine
from stormdrop.machine.known_gpus import EXAMPLE
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.onnx.contributed import DOMAIN, MATMUL_N_BITS
from stormdrop.model.precision.decoded_weights import FEW_ROWS, with_decoded_weights
from stormdrop.sketches.registry import sketches_for
from stormdrop.tuning.options import TuneOptions

K, N, BLOCK = 96, 40, 32
MANY = FEW_ROWS + 1
RNG = np.random.default_rng(5)


def model_of(rows: int, bits: int = 4, zeros: bool = True) -> onnx.ModelProto:
    """A product with codes, a bias and a Relu."""
    groups = K // BLOCK
    constants = {
        "codes": RNG.integers(0, 256, (N, groups, BLOCK * bits // 8), "uint8"),
        "scales": RNG.uniform(0.01, 0.02, N * groups).astype("float32"),
        "zeros": RNG.integers(0, 256, N * -(-groups * bits // 8), "uint8"),
        "bias": RNG.normal(size=N).astype("float32"),
    }
    inputs = ["x", "codes", "scales", "zeros" if zeros else "", "", "bias"]
    settings = {"K": K, "N": N, "bits": bits, "block_size": BLOCK}
    graph = helper.make_graph(
        [
            helper.make_node(MATMUL_N_BITS, inputs, ["sums"], domain=DOMAIN, **settings),
            helper.make_node("Relu", ["sums"], ["y"]),
        ],
        "codes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, rows, K])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, rows, N])],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if zeros or name != "zeros"],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def reads_codes(graph: Graph) -> bool:
    return any(str(parameter.ty.dtype) == "uint8" for task in graph.tasks for parameter in task.function.params)


@pytest.mark.parametrize(
    ("rows", "machine", "options", "codes"),
    [
        (FEW_ROWS, "cpu/x86-64-v3", {}, True),
        (FEW_ROWS, "cpu/x86-64-v3", {"precision": "bf16"}, True),
        (MANY, "cpu/x86-64-v3", {}, True),
        (MANY, "cpu/znver5", {}, True),
        (MANY, "cpu/znver5", {"precision": "bf16"}, False),
        (MANY, "cpu/znver5", {"sketches": "rules"}, False),
        (MANY, "cpu/znver5", {"max_error": 1e-6}, True),
        (MANY, EXAMPLE, {}, False),
        (MANY, "cpu/sapphirerapids", {}, False),  # its tiles multiply parts of float32 faster
        (MANY, "cpu/sapphirerapids", {"max_error": 1.5e-5}, True),
    ],
)
def test_what_is_decoded_depends_on_rows_machine_and_options(
    rows: int, machine: str, options: dict[str, Any], codes: bool
) -> None:
    graph = load_graph(model_of(rows))
    assert reads_codes(graph), "the importer leaves them as they are"
    decoded = with_decoded_weights(graph, parse_machine(machine), TuneOptions.of(**options))
    assert reads_codes(decoded) == codes
    assert (decoded is graph) == codes


@pytest.mark.parametrize(("bits", "zeros"), [(4, True), (4, False), (8, True), (8, False)])
def test_decoded_weights_give_the_same(bits: int, zeros: bool) -> None:
    graph = load_graph(model_of(MANY, bits, zeros))
    (before,) = graph.tasks
    decoded = with_decoded_weights(graph, parse_machine("cpu/sapphirerapids"), TuneOptions())
    (after,) = decoded.tasks
    assert len(after.function.params) == len(before.function.params) - 1 - zeros
    x = RNG.normal(size=(1, MANY, K)).astype("float32")

    def computed(each: Graph) -> Any:
        (task,) = each.tasks
        bindings = [binding for block in each.mod["main"].body.blocks for binding in block.bindings]
        fields = bindings[0].value.args[1].fields
        arguments = [field.value.numpy() if hasattr(field, "value") else x for field in fields]
        return evaluate(task.function, arguments)[0]

    np.testing.assert_allclose(computed(decoded), computed(graph), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("rows", "machine", "sketch"),
    [(1, "cpu/znver5", "code_dots"), (MANY, "cpu/znver5", "code_dots"), (1, "cpu/x86-64-v3", "code_sums")],
)
def test_layers_of_models_are_scheduled_as_operators_are(rows: int, machine: str, sketch: str, bits: int) -> None:
    """Relax has indices of 64 bits: an index that shifts a code once made 64 bits of it, which no sketch knew."""
    (task,) = load_graph(model_of(rows, bits)).tasks
    workload = Workload.create(task.name, task.function, task.constants)
    assert sketches_for(workload, parse_machine(machine))[0][0].name == sketch
    assert "int64" not in str(workload.function)


@pytest.mark.compiles
@pytest.mark.parametrize("options", [{}, {"max_error": 1e-6}], ids=str)
def test_compiled_models_are_right_with_digits_and_with_panels(options: dict[str, Any]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model = model_of(MANY)
    x = RNG.normal(size=(1, MANY, K)).astype("float32")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    y = sd.compile_model(model, **options).run({"x": x})["y"]
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
