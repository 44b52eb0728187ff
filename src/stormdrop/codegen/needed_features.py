"""Kernels that need an arithmetic unit are refused where it is missing, with a reason.

LLVM aborts the process if a target lacks the instruction that a function asks for, and a CPU that lacks it ends the
process when the kernel runs. Neither may cost more than one candidate, and neither says what was missing. A sketch
therefore names what its function needs (`attributes.NEEDS`), and code generation compares it with the target and, if
the kernel is to run in this process, with this CPU.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm.target import codegen
from tvm.tirx import PrimFunc

from ..errors import TargetError
from ..ir.attributes import NEEDS
from ..machine.detect import host_features
from ..machine.tiles import permit


def needed_features(function: PrimFunc) -> frozenset[str]:
    """LLVM's names of the extensions that a function says it needs."""
    return frozenset(str(name) for name in function.attrs.get(NEEDS, [])) if function.attrs else frozenset()


def check_target(function: PrimFunc, target: Any) -> None:
    """Checks that a TVM target has what a function needs.

    Args:
        function: A scheduled function.
        target: A target of TVM for LLVM.

    Raises:
        TargetError: It lacks an extension.
    """
    needed = needed_features(function)
    if needed:
        _check(needed, frozenset(str(name) for name in codegen.llvm_get_cpu_features(target)), "its target")


def check_host(function: PrimFunc) -> None:
    """Checks that this CPU has what a function needs, and permits it in this process, which is to run the kernel.

    Args:
        function: A scheduled function.

    Raises:
        TargetError: This CPU lacks an extension, or the operating system does not permit it.
    """
    needed = needed_features(function)
    if needed:
        _check(needed, _host(), "this CPU")
        permit(needed)


@cache
def _host() -> frozenset[str]:
    return host_features()


def _check(needed: frozenset[str], present: frozenset[str], what: str) -> None:
    missing = sorted(needed - present)
    if missing:
        raise TargetError(f"the kernel needs {' and '.join(missing)}, which {what} lacks")
