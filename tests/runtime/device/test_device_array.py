"""Arrays in the memory of a GPU, as libraries exchange them."""

from __future__ import annotations

import ctypes
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stormdrop.errors import InputError
from stormdrop.runtime.device import device_array
from stormdrop.runtime.device.device_array import DeviceArray, given_array, stream_number
from stormdrop.runtime.sizes import TensorInfo


class Memory:
    """Memory, in place of a GPU's."""

    address = 0x4000


def array_of(info: TensorInfo, ordered: list[tuple[int, int]] | None = None, gpu: int = 0) -> DeviceArray:
    seen = [] if ordered is None else ordered
    return DeviceArray(Memory(), info, gpu, 7, lambda *streams: seen.append(streams))


def read(value: Any, info: TensorInfo, gpu: int = 0) -> Any:
    return given_array(value, info, gpu, lambda address: 0, 9)[0]


class WithoutDlPack:
    """An array that has Numba's interface only."""

    def __init__(self, array: DeviceArray) -> None:
        self.__cuda_array_interface__ = array.__cuda_array_interface__


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "uint8", "bool"])
def test_what_is_offered_is_read_by_both_interfaces(dtype: str) -> None:
    info, ordered = TensorInfo("x", (2, 1, 3), dtype), list[tuple[int, int]]()
    array = array_of(info, ordered)
    given = read(array, info)
    assert (given.address, given.shape, given.dtype, given.gpu) == (0x4000, (2, 1, 3), dtype, 0)
    assert ordered == [(7, 9)] and given.stream is None  # DLPack has the reader's stream wait
    given = read(WithoutDlPack(array), info)
    assert (given.address, given.shape, given.stream) == (0x4000, (2, 1, 3), 7)
    assert given.dtype == dtype.replace("bfloat16", "void16")


def test_the_memory_lives_as_long_as_a_capsule() -> None:
    array = array_of(TensorInfo("x", (2, 3), "float32"))
    memory = weakref.ref(array._memory)
    capsule = array.__dlpack__(stream=-1)
    del array
    gc.collect()
    assert memory() is not None
    del capsule
    assert memory() is None


def test_a_reader_takes_over_what_a_capsule_holds() -> None:
    array = array_of(TensorInfo("x", (2, 3), "float32"))
    memory, capsule = weakref.ref(array._memory), array.__dlpack__(stream=-1)
    (address,) = device_array._exported
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    used = ctypes.create_string_buffer(b"used_dltensor")
    rename(capsule, used)
    del array, capsule
    assert memory() is not None
    managed = device_array._DlManaged.from_address(address)
    assert managed.tensor.strides[:2] == [3, 1]
    managed.deleter(address)
    assert memory() is None


def test_streams_that_wait_for_an_offered_array() -> None:
    ordered: list[tuple[int, int]] = []
    array = array_of(TensorInfo("x", (2, 3), "float32"), ordered)
    for stream in (None, 1, 5, -1):
        array.__dlpack__(stream=stream)
    assert ordered == [(7, 1), (7, 1), (7, 5)]
    with pytest.raises(BufferError, match="not as a copy, and not on another device"):
        array.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="not as a copy, and not on another device"):
        array.__dlpack__(dl_device=(1, 0))


def test_an_array_of_another_gpu_is_refused_before_its_library_exports_it() -> None:
    info = TensorInfo("x", (2,), "float32")
    with pytest.raises(InputError, match=r"^input 'x' is on GPU 1, and the model is on GPU 0$"):
        read(array_of(info, gpu=1), info)
    assert not device_array._exported


def test_what_a_library_does_not_export_is_one_line() -> None:
    class Tensor:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, stream: int) -> Any:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()\nmore")

    with pytest.raises(InputError) as caught:
        read(Tensor(), TensorInfo("x", (2,), "float32"))
    assert str(caught.value) == (
        "input 'x' is no array that can be read: BufferError: Can't export tensors that require gradient, use"
        " tensor.detach()"
    )


def test_an_array_of_this_machine_is_none() -> None:
    with pytest.raises(InputError, match="is a ndarray that is not in the memory of GPU 3, as all have to be"):
        read(np.zeros(2), TensorInfo("x", (2,), "float64"), 3)


@pytest.mark.parametrize(
    "stream",
    [
        0x5000,
        SimpleNamespace(cuda_stream=0x5000),
        SimpleNamespace(ptr=0x5000),
        SimpleNamespace(handle=ctypes.c_void_p(0x5000)),
        SimpleNamespace(__cuda_stream__=lambda: (0, 0x5000)),
    ],
)
def test_streams_of_libraries(stream: Any) -> None:
    assert stream_number(stream) == 0x5000
    assert stream_number(SimpleNamespace(cuda_stream=0)) == stream_number(0) == 1


def test_what_is_no_stream() -> None:
    with pytest.raises(InputError, match=r"^'main' is no CUDA stream$"):
        stream_number("main")
