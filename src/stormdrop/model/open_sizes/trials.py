"""A process that executes kernels for any size before they become a part of a model.

What a schedule makes at some sizes may be wrong at another one, and write where it must not. Here it harms nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from tvm.tirx import PrimFunc
from tvm_ffi.serialization import from_json_graph_str, to_json_graph_str

from ...codegen.compile import Kernel, compile_kernel
from ...errors import MeasureError, UnsupportedFunction, one_line
from ...machine.cpu import Cpu
from ...machine.process.child_process import ChildProcess
from .checked import Sized, elements, wrong_at

_SECONDS = 60.0  # of an execution, and of computing what is right, at least
_ELEMENTS_PER_SECOND = 1e5  # of the arguments, at the slowest
_UNKNOWN = "nothing says what it computes: "


class Trials:
    """Executes kernels at sizes. Each is tried in another process, which is replaced if a kernel ends it.

    Args:
        target: The machine: this one.
    """

    def __init__(self, target: Cpu) -> None:
        self._target = target
        self._child: ChildProcess | None = None
        self._kernel = ""  # that the process has

    def wrong(self, kernel: PrimFunc, sized: Sized) -> str:
        """What is wrong with a kernel at a size, in one line; empty if nothing is.

        Args:
            kernel: The scheduled function, whose extents may be variables.
            sized: What it should compute at a size.

        Raises:
            UnsupportedFunction: Nothing says what the function computes.
            MeasureError: No process can be started.
        """
        text = to_json_graph_str(kernel)
        if self._child is None:
            environment = {"TVM_NUM_THREADS": str(self._target.cores)}
            self._child = ChildProcess(f"{__name__}:serve", (self._target,), environment, (__name__,))
            self._kernel = ""
        child = self._child
        transforms = {position: to_json_graph_str(each) for position, each in sized.transforms.items()}
        message = (text if text != self._kernel else "", to_json_graph_str(sized.function), transforms, sized.max_error)
        seconds = _SECONDS + elements(sized.function) / _ELEMENTS_PER_SECOND
        try:
            answer = child.answer(seconds) if child.send(message) else None
        except TimeoutError:
            self.close()
            return f"it takes more than {seconds:g} s"
        except BaseException:  # Ctrl-C, too: an answer that nobody has read would be taken for the next one
            self.close()
            raise
        self._kernel = text
        if answer is None:
            how = child.wait()
            self.close()
            return f"it crashes ({how})"
        if not isinstance(answer, str):
            self.close()
            raise MeasureError("a process that tries kernels answered with no text")
        if answer.startswith(_UNKNOWN):
            raise UnsupportedFunction(answer)
        return answer

    def close(self) -> None:
        """Ends the process. Closing twice is harmless."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(connection: Connection, target: Cpu) -> None:
    """Tries kernels in a child process until the pipe closes.

    Args:
        connection: Brings kernels and sizes, and takes what is wrong.
        target: The machine.
    """
    tvm_target = target.tvm()
    kernel: Kernel | None = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        while True:
            text, function, transforms, max_error = connection.recv()
            try:
                if text:
                    kernel = compile_kernel(from_json_graph_str(text), tvm_target)
                assert kernel is not None
                answer = wrong_at(kernel.call, _sized(function, transforms, max_error))
            except UnsupportedFunction as error:
                answer = f"{_UNKNOWN}{error}"
            except Exception as error:  # noqa: BLE001  whatever the compiler or the kernel raises is what is wrong with it
                answer = f"it fails: {one_line(error)}"
            connection.send(answer)
    os._exit(0)  # skips the clean-up of TVM and LLVM, which is not needed


def _sized(function: str, transforms: Mapping[int, str], max_error: float) -> Sized:
    packing: dict[int, Any] = {position: from_json_graph_str(each) for position, each in transforms.items()}
    return Sized(from_json_graph_str(function), packing, max_error)
