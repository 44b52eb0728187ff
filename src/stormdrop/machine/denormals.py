"""Whether the calling thread flushes denormals, for libraries that leave this to the thread that calls them.

Our own kernels set their mode themselves; see `codegen.denormals`. The mode stands in a control register of the thread,
which is a part of C's floating-point environment.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
import threading
from typing import Any

# By machine, for Linux: where the register stands in C's `fenv_t`, and the bits that flush denormals.
_REGISTERS = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}
_PLACE = _REGISTERS.get(platform.machine()) if sys.platform == "linux" else None
_LARGEST = 64  # bytes of a `fenv_t`, at most


class denormals:
    """While active, the calling thread flushes denormals, or keeps them. Afterwards it has its own mode again.

    Only the mode for single and double precision matters here. Where it is not known how to set it, that is on other
    systems than Linux, the thread keeps its mode.

    Args:
        flushed: Whether they are flushed.

    Example:
        >>> import numpy as np
        >>> with denormals(flushed=False):
        ...     bool(np.float32(1e-30) * np.float32(1e-10) > 0)
        True
    """

    def __init__(self, flushed: bool) -> None:
        self._flushed = flushed
        self._before: int | None = None

    def __enter__(self) -> None:
        self._before = set_mode(self._flushed)

    def __exit__(self, *_: object) -> None:
        restore_mode(self._before)


def set_mode(flushed: bool) -> int | None:
    """Lets the calling thread flush denormals, or keep them.

    Args:
        flushed: Whether they are flushed.

    Returns:
        Its mode before, for `restore_mode`; None where it has this mode already, or it is not known how to set it.
    """
    if _PLACE is None:
        return None
    library, (environment, register) = _library(), _environment.memory
    library.fegetenv(environment)
    before: int = register.value
    mode = before | _PLACE[1] if flushed else before & ~_PLACE[1]
    if mode == before:
        return None
    register.value = mode
    library.fesetenv(environment)
    return before


def restore_mode(before: int | None) -> None:
    """Gives the calling thread its mode again.

    Args:
        before: What `set_mode` has returned in this thread.
    """
    if before is not None:
        environment, register = _environment.memory
        register.value = before  # the rest of its environment is as `set_mode` found it
        _library().fesetenv(environment)


class _Environment(threading.local):
    """Memory for the floating-point environment of a thread, as its address, and its control register in there."""

    def __init__(self) -> None:
        buffer = ctypes.create_string_buffer(_LARGEST)
        register = ctypes.c_uint32.from_buffer(buffer, _PLACE[0] if _PLACE is not None else 0)
        self.memory = ctypes.byref(buffer), register  # an address keeps what it is of, and is passed on faster


_environment = _Environment()


@functools.cache
def _library() -> Any:
    library = ctypes.PyDLL("libm.so.6")  # with Python's lock held: nothing else of this thread runs in between
    library.fegetenv.restype = library.fesetenv.restype = None
    return library
