"""The error that rounding explains: the worst of a few executions, and no more of them than are needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tiny_models import residual_model

from stormdrop.model.importer.any_model import import_model
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.precision.mixed import in_mixed_precision
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.verification import exact as exact_module
from stormdrop.model.verification.exact import ExactModel
from stormdrop.model.verification.rounding import Rounded, draws


class Executions:
    """A model whose only output is 1 plus what its executions are told to be off."""

    def __init__(self, *errors: float) -> None:
        self.errors = list(errors)
        self.arguments: list[Mapping[str, Any]] = []

    def tensors(self, _feeds: Any, _variables: Any, **arguments: Any) -> dict[str, Any]:
        self.arguments.append(arguments)
        return {"output 'y'": np.array([1 + self.errors[len(self.arguments) - 1], 0.5])}


def rounded(model: Any) -> Rounded:
    runs: list[tuple[float, Mapping[str, Any]]]
    runs = [(3.0, {"rounded": True}), *((3.0, {"rounded": True, "noise": noise}) for noise in draws())]
    return Rounded(model, {}, {}, {"output 'y'": np.array([1.0, 0.5])}, runs)


def test_an_execution_that_was_lucky_is_not_the_last_word() -> None:
    model = Executions(1e-4, 2e-3, 5e-3, 1e-3, 1e-3)
    explained = rounded(model)
    assert np.isclose(explained("output 'y'", 0.5), 3 * 5e-3)
    assert [sorted(arguments) for arguments in model.arguments] == [["rounded"], *[["noise", "rounded"]] * 4]


def test_no_more_is_executed_than_explains_the_error() -> None:
    model = Executions(1e-4, 2e-3, 5e-3, 1e-3, 1e-3)
    explained = rounded(model)
    assert np.isclose(explained("output 'y'", 2e-4), 3e-4) and len(model.arguments) == 1
    assert np.isclose(explained("output 'y'", 4e-3), 6e-3) and len(model.arguments) == 2
    assert np.isclose(explained("output 'y'", 4e-3), 6e-3) and len(model.arguments) == 2


def test_noise_that_leaves_the_range_of_numbers_explains_nothing() -> None:
    assert np.isclose(rounded(Executions(1e-4, np.inf, 2e-3, np.nan, 1e-3))("output 'y'", 0.5), 6e-3)


def test_rounding_that_leaves_it_explains_everything() -> None:
    assert rounded(Executions(np.inf))("output 'y'", 0.5) == np.inf


def test_noise_is_rounded_to_the_type_of_its_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """So other last bits of a sum make another number of bfloat16 now and then, and nothing in between."""
    monkeypatch.setattr(exact_module, "NOISE", 2.0**-10)
    graph = in_mixed_precision(import_model(seed_weights(residual_model(), seed=1))).graph
    exact = ExactModel(graph)
    feeds = random_feeds(graph.inputs, 0)
    variables = [binding.var for block in graph.mod["main"].body.blocks for binding in block.bindings]
    kept = [variable for variable in variables if str(getattr(variable.ty, "dtype", "")) == "bfloat16"]
    assert kept
    _, plain = exact.run(feeds, kept, rounded=True)
    _, noisy = exact.run(feeds, kept, rounded=True, noise=np.random.default_rng(0))
    assert {str(noisy[variable].dtype) for variable in kept} == {"bfloat16"}
    changed = sum(np.count_nonzero(plain[variable] != noisy[variable]) for variable in kept)
    assert 0 < changed < sum(plain[variable].size for variable in kept) / 4
