"""Operators of torch that we import ourselves compute what torch computes."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import stormdrop as sd

torch = pytest.importorskip("torch", reason="the operators are torch's")

pytestmark = pytest.mark.compiles


class Copies(torch.nn.Module):  # type: ignore[name-defined]
    """Writes slices along an axis into a copy of a tensor."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self._axis = axis

    def forward(self, x: Any, index: Any, values: Any) -> Any:
        return x.clone().index_copy_(self._axis, index, values)


class Puts(torch.nn.Module):  # type: ignore[name-defined]
    def forward(self, x: Any, index: Any, values: Any) -> Any:
        return torch.ops.aten.index_put(x, [None, index], values)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("index", [[3], [4, 0], [2, 1, 0, 3, 4]])
def test_slices_are_written_along_each_axis(axis: int, index: list[int], caplog: pytest.LogCaptureFixture) -> None:
    x, places = torch.randn(5, 6, 7), torch.tensor(index)
    values = torch.randn([len(index) if place == axis else size for place, size in enumerate(x.shape)])
    module = Copies(axis)
    with caplog.at_level(logging.WARNING, "stormdrop"):
        model = sd.compile_model(module, example_inputs=(x, places, values), fresh=True)
    assert not caplog.records, "it needs no ONNX model"
    np.testing.assert_array_equal(model(x.numpy(), places.numpy(), values.numpy()), module(x, places, values))


@pytest.mark.parametrize(("index", "values"), [([-1], (4, 1, 7)), ([-6, 2], (1, 2, 1)), ([1, 5], (7,))])
def test_indices_from_the_end_and_values_of_fewer_dimensions(index: list[int], values: tuple[int, ...]) -> None:
    x, places, new = torch.randn(4, 6, 7), torch.tensor(index), torch.randn(values)
    model = sd.compile_model(Puts(), example_inputs=(x, places, new), fresh=True)
    np.testing.assert_array_equal(model(x.numpy(), places.numpy(), new.numpy()), Puts()(x, places, new))
