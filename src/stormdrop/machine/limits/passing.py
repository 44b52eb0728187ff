"""What passes through the caches between two executions of a kernel, because other kernels of its model run.

A kernel that is measured alone finds its weights and its inputs in the caches of the cores. In a model it does not, if
there are more weights than these hold: they come from the last cache, or from memory if that is too small as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..cpu import Cpu
from .memory_rates import cached_bytes

_HELD = 0.5  # of caches: a model's weights that are more than this leave them between two executions of a kernel
_EVICTING = 1.5  # times the size of all caches: reading that much leaves nothing else in them
_PASSES = 8  # times the size of the second-level caches: little that was read before stays in them


@dataclass(frozen=True)
class Passing:
    """What leaves the caches between two executions of a kernel, because other kernels of its model run.

    Attributes:
        constants: The bytes of constants that pass.
        arguments: The bytes of all arguments that pass, at most, so that inputs and outputs leave the caches of the
            cores.
        place: Where the constants then come from: "memory" or "the last cache".
    """

    constants: int
    arguments: int
    place: str


def passing_between(target: Cpu, constants: int) -> Passing | None:
    """What passes through the caches between two executions of a kernel of a model.

    Args:
        target: The machine, with the number of cores to use.
        constants: The bytes of all constants of the model.

    Returns:
        None if half of the second-level caches hold the constants, or if the sizes of the caches are not known.
    """
    nearest, last = target.cores * target.l2, int(_HELD * cached_bytes(target))
    if constants <= _HELD * nearest or not nearest:
        return None
    leaving = min(_PASSES * nearest, max(last, nearest))
    if constants <= last:
        return Passing(leaving, leaving, "the last cache")
    return Passing(int(_EVICTING * cached_bytes(target)), leaving, "memory")
