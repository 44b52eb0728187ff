"""The permission to use tile registers, which Linux gives to a process that asks for it.

Without it the first instruction on tiles ends the process by a signal. A process that was started by another one has to
ask itself; a fork inherits the permission.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterable
from functools import cache

from ..errors import TargetError
from .fewer_units import hidden_features, model_name

_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18
TILES = "amx-tile"
"""LLVM's name of the extension."""


@cache
def ask_for_tiles() -> None:
    """Asks for tile registers, for all threads of this process.

    Raises:
        OSError: The operating system does not permit them, or this machine passes for a CPU that has none.
    """
    if hidden_features([TILES]):
        raise OSError(errno.EINVAL, f"{model_name('this CPU')} has no tile registers")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA):
        raise OSError(ctypes.get_errno(), "the operating system does not permit tile registers")


def permit(features: Iterable[str]) -> None:
    """Asks for tile registers if a kernel needs them.

    Args:
        features: LLVM's names of the extensions that the kernel needs.

    Raises:
        TargetError: The operating system does not permit them.
    """
    if TILES in set(features):
        try:
            ask_for_tiles()
        except OSError as error:
            raise TargetError(f"the kernel needs tile registers, and {error.strerror}") from error
