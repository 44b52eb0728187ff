"""The operators that are drawn, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzz.drawing import Drawing

Draw = Callable[[Drawing, str], object]


@dataclass(frozen=True)
class Operator:
    """An operator.

    Attributes:
        name: Its name.
        draw: Adds a node of it, with what it needs before it.
        since: The first opset that has it.
        weight: How often it is drawn.
    """

    name: str
    draw: Draw
    since: int
    weight: float


OPERATORS: dict[str, Operator] = {}


def operator(*names: str, since: int = 7, weight: float = 1.0) -> Callable[[Draw], Draw]:
    """Registers a function that draws nodes of these operators, which it is told."""

    def register(draw: Draw) -> Draw:
        for name in names:
            assert name not in OPERATORS
            OPERATORS[name] = Operator(name, draw, since, weight)
        return draw

    return register
