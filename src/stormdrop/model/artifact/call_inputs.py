"""Where kernels read the inputs of a call: in the caller's memory if they can, else in a copy."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from numpy.typing import NDArray

from ...runtime.inputs import address_of, copy_rows
from ...runtime.program import ALIGNMENT, bytes_of
from ...runtime.sizes import TensorInfo
from ..program.memory import aligned_memory

Copies = dict[str, tuple[int, NDArray[Any]]]
"""The memory for inputs that are copied, by name: where it begins, and the array."""


def placed(
    info: TensorInfo, value: NDArray[Any], anywhere: Collection[str], copies: Copies
) -> tuple[int, NDArray[Any]]:
    """Where kernels read an input.

    Args:
        info: The input at the size that runs the call.
        value: What the caller gives: of the same type, perhaps with fewer rows.
        anywhere: The inputs whose memory may begin at any element.
        copies: Has the memory for copies, which is made if there is none. It is kept, because touching fresh pages
            takes longer than copying.

    Returns:
        The address, and the input as an array that begins there.
    """
    if value.flags.c_contiguous and value.shape == info.shape:
        address = address_of(value)
        if address % (value.itemsize if info.name in anywhere else ALIGNMENT) == 0:
            return address, value
    if info.name not in copies:
        memory = aligned_memory(bytes_of(info.shape, info.dtype))
        copies[info.name] = address_of(memory), memory.view(info.dtype).reshape(info.shape)
    address, copied = copies[info.name]
    copy_rows(value, copied)
    return address, copied


def aligned(value: NDArray[Any]) -> NDArray[Any]:
    """Copies an array into memory that a model reads in place: contiguous, beginning at a multiple of 64 bytes."""
    copied: NDArray[Any] = aligned_memory(value.nbytes).view(value.dtype).reshape(value.shape)
    copied[...] = value
    return copied
