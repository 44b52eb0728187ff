"""Ansor's features of statements: the processes that extract them give the values that one process gives."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.errors import MeasureError
from stormdrop.sketches import statement_features as features
from stormdrop.sketches.registry import sketches_for
from stormdrop.sketches.statements.features import WIDTH
from stormdrop.trial import Candidate

WORKLOAD = sd.operators.matmul(32, 64, 16)


@pytest.mark.parametrize(("name", "source"), [("cuda/a100", None), ("cuda/a100", "rules"), ("cpu", "rules")])
def test_processes_give_the_same_values(name: str, source: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    target = sd.parse_machine(name)
    sketches = sketches_for(WORKLOAD, target, source)
    rng = np.random.default_rng(0)
    candidates = [Candidate(space.name, space.sample(rng)) for _, space in sketches for _ in range(5)]
    expected = features.statement_features(sketches, WORKLOAD, target)(candidates)
    assert any(rows.any() for rows in expected) and all(rows.shape[1] == WIDTH for rows in expected)
    monkeypatch.setattr(features, "_FEW", 1)
    monkeypatch.setattr(features, "thread_count", lambda: 2)
    extract = features.statement_features(sketches, WORKLOAD, target)
    for asked in (candidates, candidates[::-1]):
        for rows, right in zip(extract(asked), expected if asked is candidates else expected[::-1], strict=True):
            np.testing.assert_array_equal(rows, right)


def test_what_a_sketch_knows_of_its_statements_is_not_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    target = sd.parse_machine("cuda/a100")
    sketches = sketches_for(WORKLOAD, target)
    ((sketch, space),) = sketches
    rng = np.random.default_rng(1)
    points = [space.sample(rng) for _ in range(30)]
    stated = sketch.statements(WORKLOAD, target, space.columns(points))  # type: ignore[attr-defined]
    known = stated[1].tolist()
    assert 0 < sum(known) < 30  # those in parts or stages are not known
    scheduled: list[Any] = []
    apply = type(sketch).apply

    def counted(self: Any, workload: Any, target: Any, config: Any) -> Any:
        scheduled.append(config)
        return apply(self, workload, target, config)

    candidates = [Candidate(space.name, point) for point in points]
    with monkeypatch.context() as patched:
        patched.setattr(type(sketch), "apply", counted)
        rows = features.statement_features(sketches, WORKLOAD, target)(candidates)
    assert scheduled == [space.config(point) for point, sure in zip(points, known, strict=True) if not sure]
    monkeypatch.setattr(features, "Stated", Sequence)  # now TVM does them all
    expected = features.statement_features(sketches, WORKLOAD, target)(candidates)
    for mine, right in zip(rows, expected, strict=True):
        np.testing.assert_array_equal(mine, right)


def test_processes_end_with_a_search_and_are_started_anew_after_a_crash() -> None:
    target = sd.parse_machine("cuda/a100")
    ((sketch, space),) = sketches_for(WORKLOAD, target)
    workers = features.FeatureWorkers({space.name: sketch}, WORKLOAD, target, count=2)
    jobs = [(space.name, space.config(space.origin))] * 3
    assert len(workers.rows(jobs)) == 3
    (first, _) = children = list(workers._children)
    first.kill()
    with pytest.raises(MeasureError, match="a process that extracts features ended"):
        workers.rows(jobs)
    assert not any(child.alive for child in children)
    assert len(workers.rows(jobs)) == 3
    children = list(workers._children)
    del workers
    gc.collect()
    assert not any(child.alive for child in children)
