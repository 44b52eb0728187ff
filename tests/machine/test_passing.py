"""How much passes through the caches between two executions, by the weights of a model and the caches of a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stormdrop.machine.cpu import Cpu
from stormdrop.machine.limits import passing as module
from stormdrop.machine.limits.passing import Passing, passing_between

MEBIBYTE = 1 << 20
HERE = replace(Cpu.detect(), cores=2, l2=MEBIBYTE, l3=480 * MEBIBYTE, l3s=1)


@pytest.mark.parametrize(
    ("weights", "passing"),
    [
        (1, None),
        (2, Passing(3 * MEBIBYTE, 3 * MEBIBYTE, "the last cache")),  # no more than half of it
        (4, Passing(9 * MEBIBYTE, 3 * MEBIBYTE, "memory")),
    ],
)
def test_as_much_passes_as_it_takes(monkeypatch: pytest.MonkeyPatch, weights: int, passing: Passing | None) -> None:
    monkeypatch.setattr(module, "cached_bytes", lambda target: 6 * MEBIBYTE)
    assert passing_between(HERE, weights * MEBIBYTE) == passing


def test_nothing_passes_if_the_caches_are_not_known() -> None:
    assert passing_between(replace(HERE, l2=0, l3=0, l3s=0), 100 * MEBIBYTE) is None
