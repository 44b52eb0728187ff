"""What is proven of the rows of any graph is so: other rows of the inputs change no row of the outputs."""

from __future__ import annotations

import contextlib
from collections import Counter

import numpy as np
import pytest
from fuzz.batch import rng_of
from fuzz.drawing import Case
from fuzz.graphs import draw
from fuzz.shrink import values_of

from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.verification.row_flow import NotProven, prove_rows

GRAPHS = 120


@pytest.mark.long
def test_rows_that_are_proven_to_be_independent_are() -> None:
    proven = changed = 0
    for number in range(GRAPHS):
        case = draw(rng_of(f"rows/{number}"))
        graph = load_graph(case.model)
        sizes = Counter(info.shape[0] for info in graph.inputs if info.shape and info.shape[0] > 1)
        for rows in sizes:
            names = [info.name for info in graph.inputs if info.shape[:1] == (rows,)]
            with contextlib.suppress(NotProven):
                prove_rows(graph, names, rows)
                proven += 1
                changed += _check(number, case, names, [info.name for info in graph.outputs], rows)
    assert proven >= 5 and changed >= 5, (proven, changed)


def _check(number: int, case: Case, names: list[str], outputs: list[str], rows: int) -> bool:
    """Compares the outputs with those of inputs whose last row is another one; whether these differ in that row."""
    # Each element of the other row is one that the input has elsewhere, so that an index stays one.
    others = {name: np.concatenate([value[:-1], value[:1]]) for name, value in case.feeds.items() if name in names}
    before = values_of(case, outputs)
    after = values_of(Case(case.model, {**case.feeds, **others}), outputs)
    assert before is not None and after is not None
    differs = False
    for name in outputs:
        if before[name].ndim and before[name].shape[0] == rows:
            np.testing.assert_array_equal(after[name][:-1], before[name][:-1], f"graph {number}, output {name}")
            differs = differs or not np.array_equal(after[name][-1:], before[name][-1:], equal_nan=True)
        else:  # it depends on no row
            np.testing.assert_array_equal(after[name], before[name], f"graph {number}, output {name}")
    return differs
