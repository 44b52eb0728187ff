"""Arrays in the memory of a GPU, as libraries exchange them: torch, CuPy, JAX and Numba.

    `__dlpack__`                  a capsule with a C structure; knows bfloat16, and orders the work of two streams
    `__cuda_array_interface__`    a dictionary; names a stream that the reader has to wait for

Neither copies anything. `given_array` reads both, `DeviceArray` offers both.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import InputError, one_line, quoted
from ..inputs import dtype_of
from ..program import bytes_of
from ..sizes import TensorInfo
from .contract import Memory

LEGACY_STREAM = 1
"""The default stream of a GPU, as both interfaces and the driver number it."""

_ON_CUDA, _IN_MANAGED = 2, 13  # kinds of DLPack's devices
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}  # DLPack's codes of types
_CAPSULE = b"dltensor"


class _DlTensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DlManaged(ctypes.Structure):
    """DLPack's DLManagedTensor."""

    _fields_ = (("tensor", _DlTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class GivenArray(NamedTuple):
    """An array of another library.

    Attributes:
        address: Where it begins.
        shape: Its shape.
        dtype: The name of its type.
        contiguous: Whether its elements lie one after the other, in C order.
        gpu: The number of the GPU, if the interface says it.
        stream: What has to be waited for.
        read_only: Whether the interface says that nothing may be written to it. DLPack's first version cannot.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str
    contiguous: bool
    gpu: int | None
    stream: int | None
    read_only: bool = False


def is_on_cuda(value: Any) -> bool:
    """Whether an array says that it lies in the memory of an NVIDIA GPU."""
    try:
        device = getattr(value, "__dlpack_device__", None)
        return hasattr(value, "__cuda_array_interface__") if device is None else int(device()[0]) == _ON_CUDA
    except (BufferError, RuntimeError, TypeError, ValueError):  # no memory, or that of several devices
        return False


def given_array(
    value: Any, info: TensorInfo, gpu: int, gpu_of: Callable[[int], int | None], stream: int, role: str = "input"
) -> tuple[GivenArray, Any]:
    """An input, or the place of an output, in the memory of a GPU, checked.

    Args:
        value: What the caller gives.
        info: What it has to be.
        gpu: The number of the GPU in whose memory it has to be.
        gpu_of: The number of the GPU in whose memory an address is, or None.
        stream: The stream that is going to use it.
        role: What messages call it.

    Returns:
        The array, and what has to be kept while it is used.

    Raises:
        InputError: It is in other memory, of another type or shape, or not contiguous; or it is the place of an
            output, and read-only.
    """
    what = f"{role} {info.name!r} is"
    try:
        read = _read(value, gpu, stream)
    except (AttributeError, BufferError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{what} no array that can be read: {one_line(error)}") from error
    except InputError as error:
        raise InputError(f"{what} {error}") from None
    if read is None:
        raise InputError(f"{what} a {type(value).__name__} that is not in the memory of GPU {gpu}, as all have to be")
    given, kept = read
    if given.dtype != info.dtype and (given.dtype, info.dtype) != ("void16", "bfloat16"):
        raise InputError(f"{what} {given.dtype}, not {info.dtype}")
    if given.shape != info.shape:
        raise InputError(f"{what} of shape {given.shape}, not {info.shape}")
    if not given.contiguous:
        raise InputError(f"{what} not contiguous: give a copy in C order, such as x.contiguous() of torch")
    if given.read_only and role == "output":
        raise InputError(f"{what} read-only")
    if given.gpu is None and bytes_of(info.shape, info.dtype) and (number := gpu_of(given.address)) != gpu:
        place = "in memory that CUDA does not know" if number is None else f"on GPU {number}"
        raise InputError(f"{what} {place}, and the model is on GPU {gpu}")
    return given, kept


def stream_number(stream: Any) -> int:
    """A stream as the driver numbers it.

    Args:
        stream: Its handle, a stream of torch, CuPy or Numba, or another object with `__cuda_stream__`; None is the
            default stream.

    Raises:
        InputError: It is no stream.

    Example:
        >>> stream_number(None), stream_number(0x5000)
        (1, 20480)
    """
    number = stream
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        number = (protocol() if callable(protocol) else protocol)[1]
    for name in ("cuda_stream", "ptr", "handle"):  # torch, CuPy, Numba
        number = getattr(number, name, number)
    number = getattr(number, "value", number)
    if number is not None and not isinstance(number, int):
        raise InputError(f"{quoted(stream)} is no CUDA stream")
    return number or LEGACY_STREAM


class DeviceArray:
    """An array in the memory of a GPU, which it owns. Work on a stream may still be about to fill it.

    `torch.from_dlpack`, `cupy.from_dlpack` and `jax.dlpack.from_dlpack` take it without a copy, and have their stream
    wait for that work. What reads `__cuda_array_interface__` finds the stream there. When the array and all that was
    made of it are gone, its memory is given back, for which the driver waits for the GPU.

    Args:
        memory: The memory.
        info: Its shape and type.
        gpu: The number of the GPU.
        stream: The stream whose work fills it. It has to be there as long as the array is exchanged.
        order: Has a stream (the second) wait for another (the first).

    Attributes:
        shape: Its shape.
        dtype: Its NumPy type.
        nbytes: Its bytes.
        gpu: The number of the GPU.
        stream: The stream whose work fills it.
    """

    def __init__(
        self, memory: Memory, info: TensorInfo, gpu: int, stream: int, order: Callable[[int, int], None]
    ) -> None:
        self.shape, self.dtype, self.nbytes = info.shape, dtype_of(info.dtype), bytes_of(info.shape, info.dtype)
        self.gpu, self.stream = gpu, stream
        self._memory, self._info, self._order = memory, info, order

    def __repr__(self) -> str:
        return f"DeviceArray({self._info.dtype}{list(self.shape)}, gpu={self.gpu})"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array as Numba's interface describes it, version 3. It has no name for bfloat16: "<V2"."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._memory.address if self.nbytes else 0, False),
            "strides": None,
            "stream": self.stream,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """The device as DLPack numbers it."""
        return _ON_CUDA, self.gpu

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule with the array.

        Args:
            stream: The stream that is going to read it, which waits; None for the default one, -1 for no waiting.
            max_version: Any: all readers know the first version.
            dl_device: Where it is wanted: where it is.
            copy: Whether a copy is wanted: no.

        Raises:
            BufferError: A copy is wanted, or another device.
        """
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"{self!r} is given as it is: not as a copy, and not on another device")
        if stream != -1:
            self._order(self.stream, stream or LEGACY_STREAM)
        rank, bits = len(self.shape), self.dtype.itemsize * 8
        kind = self._info.dtype.rstrip("0123456789")
        code = next(code for code, known in _KINDS.items() if known == kind)
        shape = (ctypes.c_int64 * rank)(*self.shape)
        strides = (ctypes.c_int64 * rank)(*(math.prod(self.shape[axis + 1 :]) for axis in range(rank)))
        address = self._memory.address if self.nbytes else None
        managed = _DlManaged(
            (address, *self.__dlpack_device__(), rank, code, bits, 1, shape, strides, 0), None, _delete
        )
        _exported[ctypes.addressof(managed)] = managed, shape, strides, self._memory
        return _new_capsule(ctypes.addressof(managed), _CAPSULE, _destroy)


def _read(value: Any, gpu: int, stream: int) -> tuple[GivenArray, Any] | None:
    """An array in the memory of a GPU, as its library describes it, and what has to be kept; None for any other."""
    kind, number = getattr(value, "__dlpack_device__", lambda: (0, 0))()
    if kind not in (_ON_CUDA, _IN_MANAGED):
        described = getattr(value, "__cuda_array_interface__", None)
        return None if described is None else (_of_dictionary(described), value)
    if number != gpu:  # torch exports nothing of a GPU that is not its current one
        raise InputError(f"on GPU {number}, and the model is on GPU {gpu}")
    if getattr(value, "is_neg", bool)():  # a mark of torch that DLPack does not carry
        raise InputError("a negated view: give x.resolve_neg()")
    capsule = value.__dlpack__(stream=stream)
    return _of_capsule(capsule), capsule


def _of_dictionary(described: Mapping[str, Any]) -> GivenArray:
    if described.get("mask") is not None:
        raise ValueError("it is masked, and a model knows no masks")
    dtype, shape, strides = np.dtype(described["typestr"]), tuple(described["shape"]), described.get("strides")
    return GivenArray(
        described["data"][0],
        shape,
        dtype.name if dtype.isnative else str(dtype),
        _is_contiguous(shape, strides, dtype.itemsize),
        None,
        described.get("stream"),
        bool(described["data"][1]),
    )


def _of_capsule(capsule: Any) -> GivenArray:
    tensor = _DlTensor.from_address(_pointer_of(capsule, _CAPSULE))
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tensor.strides[: tensor.ndim] if tensor.strides else None
    kind = _KINDS.get(tensor.code, f"DLPack's type {tensor.code} of bits: ")
    return GivenArray(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        kind if kind == "bool" else f"{kind}{tensor.bits}",
        tensor.lanes == 1 and _is_contiguous(shape, strides, 1),
        tensor.device_id,
        None,
    )


def _is_contiguous(shape: Sequence[int], strides: Sequence[int] | None, step: int) -> bool:
    """Whether the elements lie one after the other, `step` apart; None says so."""
    for extent, stride in zip(reversed(shape), reversed(strides or ()), strict=False):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return True


# What readers of capsules call: C functions, which have to outlive all modules.
_exported: dict[int, Any] = {}
_delete = _Deleter(_exported.__delitem__)


def _discard(capsule: int) -> None:
    """Deletes the structure of a capsule that nobody has read."""
    if _is_capsule(capsule, _CAPSULE):
        _delete(_pointer_in(capsule, _CAPSULE))


_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_destroy = _Destructor(_discard)


def _python(name: str, result: Any, *arguments: Any) -> Any:
    """A function of Python's interface for C."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_pointer_of = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_pointer_in = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_is_capsule = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_new_capsule = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)
for _function in (_delete, _destroy):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_function))
