"""The plot of the best so far."""

from __future__ import annotations

import pytest

from stormdrop.report.dashboard.plot import plot


def test_nothing_to_draw() -> None:
    assert plot([]) is None
    assert plot([("a", [], 10.0)]) is None


def test_steps_go_down_and_stay_in_the_frame() -> None:
    drawn = plot([("a", [(1.0, 4e-3), (5.0, 1e-3)], 20.0), ("b", [(2.0, 2e-3)], 10.0)])
    assert drawn is not None
    first, second = drawn.lines
    assert (first.label, second.label) == ("1 ms", "2 ms")
    assert first.end[0] == drawn.right > second.end[0]
    assert drawn.bottom >= first.end[1] > second.end[1] >= drawn.top
    assert first.path.count("V") == 1 and first.path.endswith(f"H{first.end[0]}")


def test_a_long_curve_is_thinned() -> None:
    drawn = plot([("a", [(float(i), 1.0 / (1 + i)) for i in range(10_000)], 1e4)])
    assert drawn is not None
    assert drawn.lines[0].path.count("V") <= 401
    assert drawn.lines[0].label == "100 µs"


@pytest.mark.parametrize(
    ("longest", "labels"),
    [
        (0.4, ["0 s", "0.1 s", "0.2 s", "0.3 s", "0.4 s"]),
        (27.0, ["0 s", "10 s", "20 s"]),
        (250.0, ["0 s", "1 min", "2 min", "3 min", "4 min"]),
        (3 * 3600.0, ["0 s", "1 h", "2 h", "3 h"]),
    ],
)
def test_ticks_are_round(longest: float, labels: list[str]) -> None:
    drawn = plot([("a", [(0.0, 1e-3)], longest)])
    assert drawn is not None
    assert [label for _, label in drawn.across] == labels
