from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from tiny_models import residual_model, zoo_model

from stormdrop.model.random_weights import seed_weights


def values(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_values_depend_on_the_seed_alone() -> None:
    first, again, other = (values(seed_weights(residual_model(), seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not any(np.array_equal(first[name], other[name]) for name in first)


def test_the_role_of_a_weight_decides_its_distribution() -> None:
    weights = values(seed_weights(residual_model()))
    assert (weights["var1"] > 0).all()
    assert 0.5 < weights["scale1"].min() <= weights["scale1"].max() < 1.5
    # w1 sums 27 products with inputs of mean square 1, w2 16 products with rectified inputs.
    assert np.isclose(weights["w1"].std() * np.sqrt(27), 1.0, atol=0.2)
    assert np.isclose(weights["w2"].std() * np.sqrt(16), np.sqrt(2.0), atol=0.4)


def test_zoo_graph_has_no_constant_weight_left() -> None:
    model = seed_weights(zoo_model("squeezenet"))
    assert not any(node.op_type == "ConstantOfShape" for node in model.graph.node)
    assert [value.name for value in model.graph.input] == ["data_0"]
    floats = [array for array in values(model).values() if array.dtype == np.float32]
    assert len(floats) == 52 and all(len(np.unique(array)) > 1 for array in floats)
