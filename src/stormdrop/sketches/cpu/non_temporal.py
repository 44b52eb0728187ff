"""Stores past the caches, as a knob.

A result that is larger than the caches can be stored by the machine's non-temporal stores. A line that is written as a
whole is then not read first, and it drives nothing else out of the caches. A ReLU of 64 MB takes two thirds of the
time. `codegen.lowering` makes these stores.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from typing import Any

from tvm.tirx import PrimFunc

from ...ir import attributes
from ...ir.workload import Workload
from ...machine.cpu import Cpu
from ...space import Categorical, Knob

STORES, NON_TEMPORAL = "stores", "non_temporal"
"""The name of the knob, and its value for stores past the caches. The other value is "cached"."""


def stores_knob(workload: Workload, target: Cpu) -> list[Knob]:
    """The knob that says how results are stored, if that is a choice.

    It is a choice if the results are larger than the caches, so that nothing finds them there, and if the machine is an
    x86, which has such stores and a fence that orders them.

    Args:
        workload: The function to schedule; its float32 results count.
        target: The machine to schedule it for.

    Returns:
        The knob `stores`, or no knob. There is none if the sizes of the caches are not known.
    """
    size = sum(4 * math.prod(output.shape) for output in workload.outputs if output.dtype == "float32")
    machine = (target.triple or platform.machine()).lower()
    if not machine.startswith(("x86", "amd64")) or not target.l2 or size <= target.caches:
        return []
    return [Categorical(STORES, [NON_TEMPORAL, "cached"])]


def stored(function: PrimFunc, config: Mapping[str, Any]) -> PrimFunc:
    """The function with the stores that a configuration asks for.

    Vectors that may not be aligned to 16 bytes are stored as usual in any case.
    """
    return function.with_attr(attributes.NON_TEMPORAL, 1) if config.get(STORES) == NON_TEMPORAL else function
