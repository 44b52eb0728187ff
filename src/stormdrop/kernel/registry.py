"""The sketches that exist, and which of them apply to a workload."""

from __future__ import annotations

from collections.abc import Sequence

from ..space import Space
from .contraction import RegisterBlocked
from .sketch import Sketch
from .streaming import Streaming
from .target import Target
from .workload import Workload

SKETCHES: tuple[Sketch, ...] = (RegisterBlocked(), Streaming())


def sketches_for(
    workload: Workload, target: Target, sketches: Sequence[Sketch] | None = None
) -> list[tuple[Sketch, Space]]:
    """The sketches that apply to a workload with their spaces, the most promising first.

    Of those given, in their order; by default of all that exist, and then only the first that applies: the register
    blocks leave nothing to loops that stream.
    """
    if sketches is None:
        return _all(workload, target, SKETCHES)[:1]
    return _all(workload, target, sketches)


def _all(workload: Workload, target: Target, sketches: Sequence[Sketch]) -> list[tuple[Sketch, Space]]:
    found = []
    for sketch in sketches:
        space = sketch.space(workload, target)
        if space is not None:
            found.append((sketch, space))
    return found
