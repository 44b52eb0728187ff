"""Which kernel is tuned next."""

from __future__ import annotations

import math

import pytest

from stormdrop.model.tuning.gain import TaskProgress, gains


def told(kernel: TaskProgress, *slices: tuple[float, float]) -> TaskProgress:
    for effort, seconds in slices:
        kernel.add(effort, seconds)
    return kernel


def test_ansors_formula() -> None:
    """w (a (g(t) - g(t - D)) / D + (1 - a) min(-g / t, b C / max V - g)), with its sign turned round."""
    one = told(TaskProgress(3, 8.0, "a"), (10, 5.0), (20, 4.0), (30, 3.0))
    two = told(TaskProgress(1, 8.0, "a"), (10, 1.0))
    first, second = gains([one, two])
    # The sibling does 8 units of work in a second: at half its rate the first would take 2.
    assert first == pytest.approx(3 * (0.2 * (5 - 3) / 20 + 0.8 * max(3 / 30, 3 - 2 * 8 / 8)))
    assert second == pytest.approx(0.8 * 1 / 10)


def test_the_hope_of_siblings_fades() -> None:
    quick = told(TaskProgress(1, 8.0, "a"), (1, 1.0))
    slow = told(TaskProgress(1, 8.0, "a"), (1, 9.0))
    assert gains([slow, quick])[0] == pytest.approx(0.8 * 9.0)
    assert gains([slow], [quick])[0] == pytest.approx(0.8 * 9.0)
    told(slow, (2, 9.0), (3, 9.0), (4, 9.0))
    assert slow.idle_slices == 3
    assert gains([slow, quick])[0] == pytest.approx(0.8 * max(9.0 / 4, 7.0 / 4))
    told(slow, (5, 8.0))
    assert slow.idle_slices == 0


def test_nothing_is_expected_where_nothing_works() -> None:
    broken, working = (
        told(TaskProgress(1, 1.0, "a"), (1, math.inf)),
        told(TaskProgress(1, 1.0, "a"), (1, math.inf), (2, 3.0)),
    )
    assert gains([broken, working]) == [0.0, pytest.approx(0.8 * 3.0 / 2)]


def test_no_more_than_the_last_slices_count() -> None:
    slices = [(float(at), 10.0 - at) for at in range(1, 4)] + [(float(at), 7.0) for at in range(4, 9)]
    still = told(TaskProgress(1, 1.0, "a"), *slices)
    assert gains([still])[0] == pytest.approx(0.8 * 7.0 / 8)


def test_at_the_roofline_there_is_nothing_to_gain() -> None:
    assert gains([told(TaskProgress(5, 1.0, "a", least=2.0), (10, 2.0), (20, 2.0))]) == [0.0]


def test_calls_weigh() -> None:
    once, often = (told(TaskProgress(calls, 1.0, "a"), (10, 1.0)) for calls in (1, 12))
    assert gains([often])[0] == pytest.approx(12 * gains([once])[0])
