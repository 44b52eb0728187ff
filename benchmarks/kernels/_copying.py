"""A plain copy as a contender: the bandwidth of memory in the same rounds in which a kernel is timed.

On a shared machine memory can be half as fast in one minute as in another, so a bandwidth that was measured once says
little about a kernel that is timed later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stormdrop import Cpu
from stormdrop.machine.limits.measuring import compile_function
from stormdrop.machine.limits.peak_loops import copy_function


class Copy:
    """Copies an array on all cores with ordinary stores; `moved` is the number of bytes read plus those written."""

    def __init__(self, moved: float, threads: int) -> None:
        import tvm

        target = Cpu.detect()
        length = max(1, round(moved / 8 / threads / target.lanes)) * target.lanes
        function = copy_function(threads, length, target.lanes)
        self._kernel = compile_function(function, target.mcpu, threads).jit()["main"]
        self._source = tvm.runtime.tensor(np.ones((threads, length), "float32"))
        self._destination = tvm.runtime.tensor(np.zeros((threads, length), "float32"))
        self.versions: Mapping[str, str] = {"tvm": tvm.__version__}
        self.settings: Mapping[str, Any] = {"threads": threads, "bytes": 8 * threads * length}

    def run(self) -> object:
        return self._kernel(self._source, self._destination)

    def outputs(self) -> list[Any]:
        self.run()
        return [self._destination.numpy()]
