"""The constant inputs of kernels, prepared outside the timing: transformed, and copied if caches must not hold them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi
from numpy.typing import NDArray

from ...ir.reference import evaluate

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

Array = NDArray[Any]

_CACHE_BYTES = 512 << 20  # constants that a worker keeps
_LARGE = 64 << 10  # bytes: only from here on the time that a constant takes from memory shows


def is_large(size: int) -> bool:
    """Whether the time shows that an array of so many bytes takes from beyond the caches of the cores."""
    return size >= _LARGE


def copies_of(size: int, passing: int) -> int:
    """The copies of an array that kernels take in turns, so that some bytes pass before one is taken again.

    Args:
        size: The bytes of the array. A small one has one copy only, because the time that it takes does not show.
        passing: The bytes that are to pass.
    """
    return max(1, -(-passing // size)) if is_large(size) else 1


class PreparedConstants:
    """A cache of constants as kernels want them. Its keys are transforms by their structure.

    Neighbours in a space often share the packing of a constant, so most kernels find theirs here.

    Each constant has as many copies as make up `passing_bytes`. A kernel that takes them in turns reads its constant
    from memory or from the last cache in every execution, as it does in a model whose other weights have passed through
    the caches since the last one. A small constant has one copy only, because the time that it takes does not show.

    Attributes:
        passing_bytes: The bytes of constants that pass through the caches between two executions.
    """

    def __init__(self, passing_bytes: int, tensor: Callable[[Array], Any]) -> None:
        """An empty cache.

        Args:
            passing_bytes: The bytes of constants that pass through the caches between two executions.
            tensor: Copies an array to the device.
        """
        self.passing_bytes = passing_bytes
        self._tensor = tensor
        self._entries: OrderedDict[tuple[int, int | None], list[tuple[PrimFunc | None, list[Any]]]] = OrderedDict()
        self._bytes = 0

    def clear(self) -> bool:
        """Drops all constants. Returns whether there were any."""
        held = bool(self._entries)
        self._entries.clear()
        self._bytes = 0
        return held

    def get(self, transform: PrimFunc | None, index: int, array: Array) -> list[Any]:
        """The equal tensors that a kernel takes in turns for one of its constants.

        Args:
            transform: Makes the constant from the input; None if the kernel takes the input as it is.
            index: The input's position among the inputs of the workload.
            array: The input.
        """
        key = (index, None if transform is None else int(tvm_ffi.structural_hash(transform)))
        for other, tensors in self._entries.get(key, ()):
            if other is transform or tvm_ffi.structural_equal(other, transform):
                self._entries.move_to_end(key)
                return tensors
        result = array if transform is None else np.ascontiguousarray(evaluate(transform, [array])[0])
        copies = copies_of(result.nbytes, self.passing_bytes)
        tensors = [self._tensor(result) for _ in range(copies)]
        self._entries.setdefault(key, []).append((transform, tensors))
        self._entries.move_to_end(key)
        self._bytes += result.nbytes * copies
        while self._bytes > _CACHE_BYTES and len(self._entries) > 1:
            _, dropped = self._entries.popitem(last=False)
            self._bytes -= sum(len(old) * int(np.prod(old[0].shape)) * old[0].dtype.itemsize for _, old in dropped)
        return tensors
