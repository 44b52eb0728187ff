"""Stores past the caches, as a knob.

A result that is larger than the caches can be stored by the machine's non-temporal stores. A line that is written as a
whole is then not read first, and it drives nothing else out of the caches. A ReLU of 64 MB
takes two thirds of the time.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from typing import Any

from tvm.tirx import PrimFunc

from ...ir import attributes
from ...ir.workload import Workload
from ...machine.cpu import Target
from ...space import Categorical, Knob

STORES, NON_TEMPORAL = "stores", "non_temporal"


def stores_knob(workload: Workload, target: Target) -> list[Knob]:
    """How results are stored, if that is a choice.

    It is one if the results are larger than the caches (as far as their sizes are known), so that nobody finds them
    there, and if the machine is an x86, which has such stores and a fence that orders them.
    """
    size = sum(4 * math.prod(output.shape) for output in workload.outputs if output.dtype == "float32")
    machine = (target.triple or platform.machine()).lower()
    if not machine.startswith(("x86", "amd64")) or not target.l2 or size <= target.caches:
        return []
    return [Categorical(STORES, [NON_TEMPORAL, "cached"])]


def stored(function: PrimFunc, config: Mapping[str, Any]) -> PrimFunc:
    """The function with this choice. Vectors that may not be aligned to 16 bytes are stored as usual in any case."""
    return function.with_attr(attributes.NON_TEMPORAL, 1) if config.get(STORES) == NON_TEMPORAL else function
