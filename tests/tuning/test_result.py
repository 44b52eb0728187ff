"""What a result of a tuning says if there is no schedule, or no peak to compare it with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from replayed_tuning import Counting, tune_replayed

from stormdrop.errors import MeasureError, UnsupportedFunction
from stormdrop.records import open_store
from stormdrop.trial import Candidate, Measurement, Request, Status


def test_a_result_without_a_schedule_says_so() -> None:
    class Broken(Counting):
        def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
            for _ in requests:
                yield Measurement(Status.RUNTIME, (), "died")

        def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
            return [Measurement(Status.RUNTIME, (), "died")] * len(candidates)

    with open_store("sqlite://") as store:
        result = tune_replayed(store, Broken(), trials=5)
    assert (result.best, result.failed) == (None, 5)
    with pytest.raises(UnsupportedFunction, match="no candidate worked"):
        _ = result.variant
    with pytest.raises(UnsupportedFunction, match="no candidate worked"):
        result.schedule()


def test_a_document_without_a_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise MeasureError("no")

    monkeypatch.setattr("stormdrop.machine.peak.peak", fails)
    with open_store("sqlite://") as store:
        document = tune_replayed(store, Counting(), trials=8).to_json()
    assert document["best"]["percent_of_peak"] is None
    assert document["best"]["gflops"] > 0
