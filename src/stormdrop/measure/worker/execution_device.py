"""The contract of a device that a worker's kernels run on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from ...codegen.compile import Kernel, load_kernel
from ..timing import Call

Array = NDArray[Any]

GUARD = 16 << 10
"""Bytes before and after an output that no kernel may write to: whole pages, so that its place in its page stays."""

GUARD_BYTE = 0x5A
"""What these bytes hold."""


class ExecutionDevice(Protocol):
    """A device with its memory and its clock.

    A device inherits from this class. What is not said to differ is as on a device with memory of its own.

    Attributes:
        in_process: Whether kernels run in this process, on its cores. A kernel that fails leaves such a device as it
            was; any other device must then not be used again by this process.
        on_cores: Whether this machine's cores execute the kernels, so that other work on them slows kernels down.
        fewest_executions: How many executions, back to back, tell how fast a kernel is. With fewer of them much of the
            time is that of launching the kernel.
    """

    in_process: bool = False
    on_cores: bool = False
    fewest_executions: int = 10

    def load(self, module: Any) -> Kernel:
        """The kernel of a module that was built in this process, ready to run on the device."""
        return load_kernel(module)

    def tensor(self, array: Array) -> Any:
        """A copy of the array in the device's memory."""

    def outputs(self, shapes: Sequence[tuple[tuple[int, ...], str]]) -> tuple[list[Any], list[Array]]:
        """Tensors that kernels write to, and a view of each in this process.

        Args:
            shapes: The shape and the dtype of each output.
        """

    def view(self, tensor: Any) -> Array:
        """The elements of a tensor. They are to be read only."""
        view: Array = tensor.numpy()
        return view

    def trespass(self) -> str:
        """One line if a kernel wrote to memory before or after an output since the last call; empty if none did."""
        return ""  # nothing is known of memory elsewhere

    def push(self, tensors: Sequence[Any], views: Sequence[Array]) -> None:
        """Copies what was written to the views into the tensors."""
        for tensor, view in zip(tensors, views, strict=True):
            tensor.copyfrom(view)

    def pull(self, tensors: Sequence[Any], views: Sequence[Array]) -> None:
        """Copies what kernels have written from the tensors into the views."""
        for tensor, view in zip(tensors, views, strict=True):
            view[...] = tensor.numpy()

    def call(self, kernel: Kernel, turns: Sequence[Sequence[Any]]) -> Call:
        """A call of the kernel.

        Args:
            kernel: The kernel, as `load` returned it.
            turns: Lists of arguments. The first execution takes the first list, the next execution the next one.
        """
        function = kernel.call
        if len(turns) == 1:
            (arguments,) = turns
            return lambda: function(*arguments)
        following = itertools.cycle(turns)
        return lambda: function(*next(following))

    def time_calls(self, call: Call, number: int) -> float:
        """The mean seconds of `number` executions, back to back."""

    def slowed(self) -> bool:
        """Whether a GPU runs below its usual speed at this moment."""
        return False

    def clock(self) -> int:
        """The clock of a GPU at this moment in MHz; 0 if it is not known."""
        return 0


def trespassing(counts: Sequence[int]) -> str:
    """One line if bytes before or after an output were written to; empty if none were.

    Args:
        counts: How many bytes were, before the first output, after it, before the second one, and so on.
    """
    for position, count in enumerate(counts):
        if count:
            place = "after" if position % 2 else "before"
            return f"the kernel writes to {count} bytes {place} output {position // 2}"
    return ""
