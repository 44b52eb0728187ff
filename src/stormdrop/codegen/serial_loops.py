"""A kernel for a GPU as a function for the CPU, to check what it computes without a GPU.

Loops over blocks and threads become serial loops. Each thread then fetches all data that its block stages, again and
again, and needs no barrier. So this checks every index, every bound and the order of the steps. It does not check the
barriers, which TVM puts in when it lowers a kernel. Functions such as tanh are computed as on the GPU.
"""

from __future__ import annotations

from typing import Any

from tvm.tirx import For, ForKind, PrimFunc

from ..ir.elementary import expand_for_gpu
from ..ir.expressions import transform_statement


def with_serial_loops(function: PrimFunc) -> PrimFunc:
    """The function with a serial loop in place of each loop over blocks or threads, and functions as a GPU has them."""

    def unbound(loop: Any) -> Any:
        if loop.kind != ForKind.THREAD_BINDING:
            return loop
        return For(loop.loop_var, loop.min, loop.extent, ForKind.SERIAL, loop.body)

    return expand_for_gpu(function.with_body(transform_statement(function.body, lambda node: node, unbound)))
