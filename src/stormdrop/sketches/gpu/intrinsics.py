"""TVM's tensor intrinsics for CUDA, loaded in a tenth of the time that a plain import takes.

TVM's module parses some 250 functions when it is imported. For each of them the parser calls `inspect.stack()`, which
searches all loaded modules for the source line of every frame; that takes half a minute on slow cores. The parser uses
the frames but not these lines, so the frames are handed to it without them.
"""

from __future__ import annotations

import inspect
import sys
import threading
from types import FrameType
from typing import Any

_LOCK = threading.Lock()


def cuda_intrinsics() -> Any:
    """The module `tvm.s_tir.tensor_intrin.cuda`. The first call in a process takes a few seconds."""
    with _LOCK:
        stack = inspect.stack
        inspect.stack = _stack_without_source
        try:
            from tvm.s_tir.tensor_intrin import cuda
        finally:
            inspect.stack = stack
    return cuda


def _stack_without_source(context: int = 1) -> list[inspect.FrameInfo]:
    """As `inspect.stack`, but `code_context` and `index` of each frame are None."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        frames.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back
    return frames
