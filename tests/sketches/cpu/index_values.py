"""Values of index expressions, for tests that check which elements a nest reads and writes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer

from stormdrop.ir.expressions import Expr, substitute
from stormdrop.ir.stages import Axis, Stage, shape_of
from stormdrop.sketches.cpu.nests import element_offset


def value_at(expression: Expr, position: Mapping[Any, int]) -> int:
    """The value of an integer expression or a condition, at one position of its variables."""
    numbers = {variable: IntImm("int32", value) for variable, value in position.items()}
    return int(Analyzer().simplify(substitute(expression, numbers)))


def positions(axes: Sequence[Axis]) -> Iterator[dict[Any, int]]:
    """All positions of some axes, by variable."""
    for numbers in itertools.product(*(range(axis.extent) for axis in axes)):
        yield {axis.var: number for axis, number in zip(axes, numbers, strict=True)}


def written(stage: Stage) -> list[int]:
    """The offsets that a stage writes in its buffer, one for each position of its spatial axes."""
    offset = element_offset(shape_of(stage.buffer), stage.indices)
    return [value_at(offset, position) for position in positions(stage.spatial)]
