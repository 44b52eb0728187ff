"""Numbers, times and configurations as people read them."""

from __future__ import annotations

import math

import pytest

from stormdrop.report.formatting import ago, ascii_time, config, count, time


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"),
        (math.nan, "–"),
        (2e-7, "0.2 µs"),
        (45.6e-6, "45.6 µs"),
        (0.0123, "12.3 ms"),
        (12.0, "12 s"),
        (1234.5, "1,234 s"),
    ],
)
def test_times(seconds: float | None, shown: str) -> None:
    assert time(seconds) == shown
    assert ascii_time(seconds) == shown.replace("µ", "u").replace("–", "-")
    assert ascii_time(seconds).isascii()


def test_groups_of_knobs_and_what_is_no_moment() -> None:
    assert config({"rows": 4, "inner": {"tile": (8, 2)}}) == "rows=4, inner=(tile=8x2)"
    assert config(None) == ""
    assert ago("no date") == ""
    assert " h" in ago("2000-01-01T00:00:00")
    assert (count(1), count(1, "trial"), count(0, "trial")) == ("1", "1 trial", "0 trials")
