"""The assembly of scheduled functions, for tests of what LLVM makes of them."""

from __future__ import annotations

from typing import Any

from tvm.tirx import PrimFunc

from stormdrop.codegen.compile import build_module


def assembly(function: PrimFunc, target: Any) -> str:
    """The assembly of a scheduled function.

    Args:
        function: The function.
        target: TVM's target for any machine that LLVM knows; this one or another.
    """
    return str(build_module(function, target).inspect_source("asm"))
