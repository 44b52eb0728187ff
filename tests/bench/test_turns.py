from __future__ import annotations

import numpy as np
import pytest
from contenders import Sleeper, contender

from stormdrop.bench.contender_process import ContenderProcess
from stormdrop.bench.turns import RoundTimes, take_turns
from stormdrop.measure.timing import TimingPlan

SHORT = TimingPlan(repeats=3, sample_seconds=1e-3)


@pytest.mark.parametrize("order", [(10e-3, 30e-3), (30e-3, 10e-3)])
def test_the_order_of_contenders_does_not_matter(order: tuple[float, float]) -> None:
    with (
        ContenderProcess(contender(Sleeper, seconds=order[0]), 1) as a,
        ContenderProcess(contender(Sleeper, seconds=order[1]), 1) as b,
    ):
        first, second = take_turns([a, b], 4, SHORT).seconds
    ratio = np.min(second) / np.min(first)  # other load makes a sleep longer, never shorter
    assert 0.8 < ratio / (order[1] / order[0]) < 1.25


class Scripted:
    """Stands for a process whose first `disturbed` turns are disturbed. Each turn appends its name to `log`."""

    def __init__(self, name: str = "", disturbed: int = 0, log: list[str] | None = None) -> None:
        self._name, self._disturbed, self._log, self.turns = name, disturbed, log, 0

    def take_turn(self, plan: TimingPlan, whole_calls: bool) -> tuple[list[float], bool]:
        self.turns += 1
        if self._log is not None:
            self._log.append(self._name)
        return [float(self.turns)] * plan.repeats, self.turns <= self._disturbed


def test_every_round_begins_with_another_contender() -> None:
    log: list[str] = []
    told: list[str] = []
    take_turns([Scripted(name, log=log) for name in "abc"], 4, on_phase=told.append)  # type: ignore[misc]
    assert "".join(log) == "abcbcacababc"
    assert told == [f"round {number} of 4" for number in range(1, 5)]


def test_a_disturbed_round_is_measured_again() -> None:
    process, told = Scripted(disturbed=3), list[str]()
    times = take_turns([process], 4, on_phase=told.append)  # type: ignore[list-item]
    assert times == RoundTimes([[4.0, 5.0, 6.0, 7.0]], disturbed=0)
    assert told[:3] == ["round 1 of 4", *["round 1 of 4, again because of other load"] * 2]
    assert told[-1] == "round 4 of 4"


def test_a_machine_that_stays_disturbed_is_reported() -> None:
    process = Scripted(disturbed=1000)
    times = take_turns([process], 4)  # type: ignore[list-item]
    assert times.disturbed == 4
    assert process.turns == 8
