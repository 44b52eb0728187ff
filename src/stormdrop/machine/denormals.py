"""Whether the calling thread flushes denormals, for libraries that leave this to the thread that calls them.

Our own kernels set their mode themselves; see `codegen.denormals`. The mode stands in a control register of the thread,
which is a part of C's floating-point environment.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# By machine, for Linux: where the register stands in C's `fenv_t`, and the bits that flush denormals.
_REGISTERS = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}
_LARGEST = 64  # bytes of a `fenv_t`, at most


@contextmanager
def denormals(flushed: bool) -> Iterator[None]:
    """While active, the calling thread flushes denormals, or keeps them. Afterwards it has its own mode again.

    Only the mode for single and double precision matters here. Where it is not known how to set it, that is on other
    systems than Linux, the thread keeps its mode.

    Example:
        >>> import numpy as np
        >>> with denormals(flushed=False):
        ...     bool(np.float32(1e-30) * np.float32(1e-10) > 0)
        True
    """
    place = _REGISTERS.get(platform.machine()) if sys.platform == "linux" else None
    if place is None:
        yield
        return
    offset, bits = place
    environment = ctypes.create_string_buffer(_LARGEST)
    _library().fegetenv(environment)
    register = ctypes.c_uint32.from_buffer(environment, offset)
    before = register.value
    try:
        register.value = before | bits if flushed else before & ~bits
        _library().fesetenv(environment)
        yield
    finally:
        register.value = before
        _library().fesetenv(environment)


@functools.cache
def _library() -> Any:
    return ctypes.PyDLL("libm.so.6")  # with Python's lock held: nothing else of this thread runs in between
