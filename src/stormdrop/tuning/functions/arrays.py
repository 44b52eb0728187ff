"""What arrays of NumPy, CuPy and torch have in common: contents, copies, types, memory, and work that goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def is_array(value: Any) -> TypeGuard[Any]:
    """Whether a value is an array, or one of NumPy's scalars."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def dtype_of(value: Any) -> str:
    """The type of an array or a number, by the name that NumPy gives it."""
    return str(value.dtype).removeprefix("torch.") if is_array(value) else np.asarray(value).dtype.name


def contents_of(value: Any) -> Array:
    """The contents of an array, in this machine's memory; bfloat16 of torch as float32."""
    if _is_tensor(value):
        tensor = value.detach().cpu()
        return np.asarray((tensor.float() if dtype_of(tensor) == "bfloat16" else tensor).numpy())
    return np.asarray(value.get() if hasattr(value, "get") else value)


def same_bytes(array: Any, values: Array) -> bool:
    """Whether an array holds the same bytes, NaNs and signs of zero included."""
    return contents_of(array).tobytes() == values.tobytes()


def copy_of(value: Any) -> Any:
    """A copy of an array of NumPy, CuPy or torch, on the same device and with its layout."""
    if _is_tensor(value):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value.copy(order="K") if isinstance(value, np.ndarray) else value.copy()


def write(array: Any, values: Array) -> None:
    """Overwrites an array in place."""
    if _is_tensor(array):
        array.detach().copy_(sys.modules["torch"].from_numpy(values))
    elif isinstance(array, np.ndarray):
        array[...] = values
    else:
        array.set(np.ascontiguousarray(values, dtype=array.dtype))


def strides_of(value: Any) -> tuple[int, ...]:
    """The distances between elements, in bytes."""
    if _is_tensor(value):
        return tuple(stride * value.element_size() for stride in value.stride())
    return tuple(getattr(value, "strides", ()))


def shared_with(value: Any, arrays: Sequence[tuple[str, Any]]) -> set[str]:
    """The names of the arrays that a value shares memory with."""
    begin, end = _addresses(value)
    return {name for name, array in arrays if max(begin, _addresses(array)[0]) < min(end, _addresses(array)[1])}


def _addresses(value: Any) -> tuple[int, int]:
    if _is_tensor(value):
        start, size = value.data_ptr(), value.element_size()
    elif isinstance(value, np.ndarray):
        start, size = value.ctypes.data, value.itemsize
    elif hasattr(value, "data") and hasattr(value.data, "ptr"):
        start, size = value.data.ptr, value.itemsize
    else:
        return 0, 0
    steps = [(extent - 1) * stride for extent, stride in zip(value.shape, strides_of(value), strict=True)]
    if any(extent == 0 for extent in value.shape):
        return 0, 0
    return start + sum(step for step in steps if step < 0), start + sum(step for step in steps if step > 0) + size


def wait_for_devices(arrays: Sequence[Any]) -> Callable[[], object]:
    """What waits for all that the devices of arrays do, in whatever stream."""
    waits: list[Callable[[], object]] = []
    if any(_is_tensor(array) and array.device.type == "cuda" for array in arrays):
        waits.append(sys.modules["torch"].cuda.synchronize)
    if any(type(array).__module__.startswith("cupy") for array in arrays):
        waits.append(sys.modules["cupy"].cuda.runtime.deviceSynchronize)

    def wait() -> None:
        for each in waits:
            each()

    return wait
