"""A stand-in for onnxruntime's CUDA provider: its CPU provider, on the memory of the stand-in for NVIDIA's driver.

As on a GPU, a run waits in the stream of its session, unless the shape of a result depends on data. Memory of results
that the session has made itself is filled with something else by its next run.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest

from .cuda_driver import CudaDriver, in_context

CUDA = "CUDAExecutionProvider"
_Session = onnxruntime.InferenceSession


def install(
    monkeypatch: pytest.MonkeyPatch, driver: CudaDriver, loads: bool = True, error: str = ""
) -> list[dict[str, str]]:
    """Gives onnxruntime a CUDA provider.

    Args:
        monkeypatch: Takes it away again.
        driver: The driver.
        loads: Whether the provider finds NVIDIA's libraries.
        error: What the provider raises, unless it is empty.

    Returns:
        The options of the provider of each session that is made from now on.
    """
    made: list[dict[str, str]] = []

    def session(model: bytes, options: Any = None, *, providers: Sequence[Any], enable_fallback: int = 1) -> Any:
        if error and providers != ["CPUExecutionProvider"]:
            if not enable_fallback:
                raise RuntimeError(error)
            print("EP Error", error)
            providers = ["CPUExecutionProvider"]
        if providers == ["CPUExecutionProvider"] or not loads:
            return _Session(model, options, providers=["CPUExecutionProvider"])
        (name, settings), fallback = providers
        assert (name, fallback) == (CUDA, "CPUExecutionProvider")
        made.append(settings)
        return CudaSession(_Session(model, options, providers=[fallback]), driver, settings)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, "CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    return made


class CudaSession:
    """A session that computes on the memory of a stand-in for the driver."""

    def __init__(self, session: Any, driver: CudaDriver, settings: dict[str, str]) -> None:
        self._session, self._driver = session, driver
        self._gpu, self._stream = int(settings["device_id"]), int(settings["user_compute_stream"])
        self._arena: dict[int, int] = {}
        self.get_inputs, self.get_outputs = session.get_inputs, session.get_outputs
        weakref.finalize(self, _free, driver, self._arena)

    def get_providers(self) -> list[str]:
        return [CUDA, "CPUExecutionProvider"]

    def io_binding(self) -> _Binding:
        return _Binding(self._gpu)

    def run_with_iobinding(self, binding: _Binding, options: Any) -> None:
        assert options.get_run_config_entry("disable_synchronize_execution_providers") == "1"
        if all(address is not None for _, address in binding.outputs.values()):
            self._driver.put(self._stream, ("part",), lambda: self._run(binding))
            return
        in_context(self._driver, "cuStreamSynchronize", self._stream)
        self._run(binding)

    def _run(self, binding: _Binding) -> None:
        for address, size in self._arena.items():
            ctypes.memset(address, 0x5A, size)
        results = self._session.run(list(binding.outputs), binding.inputs)
        for name, result in zip(binding.outputs, results, strict=True):
            expected, planned = binding.outputs[name]
            address = planned or 0
            if planned is None:
                address = in_context(self._driver, "cuMemAlloc", max(result.nbytes, 1))
                self._arena[address] = result.nbytes
            else:
                assert expected == (result.shape, result.dtype), f"{name} is bound to memory of another shape or type"
            ctypes.memmove(address, np.ascontiguousarray(result).ctypes.data, result.nbytes)
            binding.made.append(_Value(address, result.shape))


class _Binding:
    def __init__(self, gpu: int) -> None:
        self._gpu = gpu
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, tuple[Any, int | None]] = {}
        self.made: list[_Value] = []

    def bind_input(self, name: str, place: str, gpu: int, dtype: Any, shape: Sequence[int], address: int) -> None:
        assert (place, gpu) == ("cuda", self._gpu)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)
        self.inputs[name] = memory.view(dtype).reshape(shape)

    def bind_output(
        self, name: str, place: str, gpu: int, dtype: Any = None, shape: Any = None, address: int | None = None
    ) -> None:
        assert (place, gpu) == ("cuda", self._gpu)
        self.outputs[name] = None if address is None else (tuple(shape), np.dtype(dtype)), address

    def get_outputs(self) -> list[_Value]:
        return self.made or [_Value(address or 0, ()) for _, address in self.outputs.values()]


class _Value:
    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self._address, self._shape = address, shape

    def data_ptr(self) -> int:
        return self._address

    def shape(self) -> list[int]:
        return list(self._shape)


def _free(driver: CudaDriver, arena: dict[int, int]) -> None:
    for address in arena:
        in_context(driver, "cuMemFree", address)
