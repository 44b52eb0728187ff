"""Lines for an SVG: the best so far over the seconds of tuning, as steps. A template draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..formatting import duration, time

WIDTH, HEIGHT = 480, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 10, 30
_MOST_STEPS = 400
_STEPS = (10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)  # seconds between ticks

Curve = Sequence[tuple[float, float]]
"""(seconds of tuning, seconds per execution), whenever the latter changed."""


@dataclass(frozen=True)
class Line:
    """One line.

    Attributes:
        name: What it is of.
        path: The points, as an SVG path takes them.
        end: The position of its last point.
        label: The last value in words.
    """

    name: str
    path: str
    end: tuple[float, float]
    label: str


@dataclass(frozen=True)
class Plot:
    """Lines in one frame, with (position, label) of the ticks. Positions are in the units of the SVG."""

    lines: Sequence[Line]
    across: Sequence[tuple[float, str]]
    up: Sequence[tuple[float, str]]
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = HEIGHT - _BOTTOM
    width: float = WIDTH
    height: float = HEIGHT


def plot(curves: Sequence[tuple[str, Curve, float]]) -> Plot | None:
    """A plot of curves with a logarithmic scale of times; None if there is nothing to draw.

    Args:
        curves: The name of each, its points, and the seconds of tuning at which it ends.
    """
    curves = [(name, _thinned(curve), end) for name, curve, end in curves if curve]
    if not curves:
        return None
    longest = max(max(end, curve[-1][0]) for _, curve, end in curves) or 1.0
    values = [value for _, curve, _ in curves for _, value in curve if value > 0]
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = max(0.05, 0.08 * (high - low))
    low, high = low - margin, high + margin

    def x(seconds: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * seconds / longest, 1)

    def y(value: float) -> float:
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (high - math.log10(value)) / (high - low), 1)

    drawn = [
        Line(
            name,
            _steps([(x(at), y(value)) for at, value in curve], x(end)),
            (x(end), y(curve[-1][1])),
            time(curve[-1][1]),
        )
        for name, curve, end in ((name, curve, max(end, curve[-1][0])) for name, curve, end in curves)
    ]
    across = [(x(tick), duration(tick)) for tick in _round_ticks(longest)]
    up = [(y(10**power), time(10**power)) for power in _ticks(low, high)]
    return Plot(drawn, across, up)


def _steps(points: Sequence[tuple[float, float]], end: float) -> str:
    (first_x, first_y), *rest = points
    return f"M{first_x} {first_y}" + "".join(f"H{x}V{y}" for x, y in rest) + f"H{end}"


def _thinned(curve: Curve) -> Curve:
    """At most `_MOST_STEPS` points of a curve, the last one among them."""
    if len(curve) <= _MOST_STEPS:
        return curve
    stride = len(curve) / _MOST_STEPS
    return [curve[int(index * stride)] for index in range(_MOST_STEPS)] + [curve[-1]]


def _round_ticks(longest: float) -> list[float]:
    """Four ticks or so from 0 to the end, at numbers that people like."""
    if longest < _STEPS[0]:
        power: float = 10 ** math.floor(math.log10(longest / 4))
        step = power * next(factor for factor in (1, 2, 5, 10) if longest / (factor * power) <= 5)
    else:
        step = next((each for each in _STEPS if longest / each <= 5), longest / 4)
    return [index * step for index in range(int(longest / step) + 1)]


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten within a range: those of 1, 2 and 5 if it is short, else of 1 alone."""
    factors = (1, 2, 5) if high - low < 2.5 else (1,)
    powers = range(math.floor(low), math.ceil(high) + 1)
    found = [power + math.log10(factor) for power in powers for factor in factors]
    inside = [each for each in found if low <= each <= high]
    return inside if len(inside) >= 2 else [low + (high - low) * part for part in (0.1, 0.5, 0.9)]
