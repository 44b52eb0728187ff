"""The sketches that exist, and which of them apply to a workload."""

from __future__ import annotations

from ..space import Space
from .contraction import RegisterBlocked
from .sketch import Sketch
from .streaming import Streaming
from .target import Target
from .workload import Workload

SKETCHES: tuple[Sketch, ...] = (RegisterBlocked(), Streaming())


def sketches_for(workload: Workload, target: Target) -> list[tuple[Sketch, Space]]:
    """The sketches that apply to a workload with their spaces, the most promising first."""
    found = []
    for sketch in SKETCHES:
        space = sketch.space(workload, target)
        if space is not None:
            found.append((sketch, space))
    return found
