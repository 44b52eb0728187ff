"""Calls of a native model on inputs that are checked: where the library reads and writes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ..errors import ArtifactError
from .calls import ModelCalls
from .inputs import Array, Given, Wanted, address_of, check_memory, copy_rows
from .library import NativeModel
from .parts import PartCalls
from .program import State
from .sizes import OPEN

_SMALL = 1 << 13  # bytes of an output that is copied faster than memory for it is aligned
_ALIGNMENT = 64

_EMPTY: Array = np.empty(0, np.uint8)
_empty, _byte = np.empty, np.dtype(np.uint8)


class NativeCalls(ModelCalls):
    """Calls a native model.

    Args:
        native: The model.
        parts: Its parts that onnxruntime runs, if it has some.
        inputs: The number of its inputs.
        outputs: The number of its outputs.
        sizes: The number of its sizes. Behind them the library has one for each that writes its states in place.
        states: These states; none if it has no such sizes.
    """

    times_itself = True

    def __init__(
        self,
        native: NativeModel,
        parts: PartCalls | None,
        inputs: int,
        outputs: int,
        sizes: int = 0,
        states: tuple[State, ...] = (),
    ) -> None:
        self._native, self._run, self._handle = native, native.run, native.handle
        self._parts = parts
        self._sizes, self.states = sizes, states
        self._unread = {state.input for state in states}
        self._inputs, self._outputs = ctypes.c_void_p * inputs, ctypes.c_void_p * outputs

    def __call__(self, given: Given) -> list[Array]:
        wanted, rows, arrays = given
        inputs, outputs, _read, made = self._memory(wanted, arrays)  # what is read lives until the end of the call
        self._execute(wanted.index, inputs, outputs, made)
        return made if rows is None else [value[:rows].copy() for value in made]

    def step(self, given: Given, memory: list[Array]) -> list[Array]:
        wanted, _, arrays = given
        pairs = zip(arrays, wanted.inputs, strict=True)
        read = [_EMPTY if at in self._unread else _ready(value, each) for at, (value, each) in enumerate(pairs)]
        written = {state.output: array for state, array in zip(self.states, memory, strict=True)}
        for state, array in zip(self.states, memory, strict=True):
            check_memory(state, array, wanted.outputs[state.output][2])
        made = [
            written[at] if at in written else _memory_for(shape, dtype)
            for at, (_, dtype, shape) in enumerate(wanted.outputs)
        ]
        inputs, outputs = self._inputs(*map(address_of, read)), self._outputs(*map(address_of, made))
        self._execute(self._sizes + wanted.index, inputs, outputs, made)
        return [array for at, array in enumerate(made) if at not in written]

    def _execute(self, size: int, inputs: Any, outputs: Any, made: list[Array]) -> None:
        """Runs a size on addresses. Raises `ArtifactError` if a kernel or a part fails."""
        if self._parts is None:
            if self._run(self._handle, size, inputs, outputs, None):
                raise ArtifactError(self._native.error())
            return
        with self._parts.call(made) as call:
            failed = self._run(self._handle, size, inputs, outputs, None)
        if failed:
            raise call.error or ArtifactError(self._native.error())

    def profile(self, given: Given) -> list[tuple[str, float]]:
        wanted, _, arrays = given
        inputs, outputs, _read, made = self._memory(wanted, arrays)  # what is read lives until the end of the call
        if self._parts is None:
            return self._native.profile(wanted.index, inputs, outputs)
        with self._parts.call(made) as call:
            try:
                return self._native.profile(wanted.index, inputs, outputs)
            except ArtifactError as error:
                raise call.error or error from None

    def _memory(self, wanted: Wanted, arrays: list[Array]) -> tuple[Any, Any, list[Array], list[Array]]:
        """The addresses of the inputs and of the outputs, the arrays that are there, and arrays for the outputs."""
        read = [_ready(value, each) for value, each in zip(arrays, wanted.inputs)]  # noqa: B905  checked
        made = [_memory_for(shape, dtype) for _, dtype, shape in wanted.outputs]
        return self._inputs(*map(address_of, read)), self._outputs(*map(address_of, made)), read, made


def _memory_for(shape: tuple[int, ...], dtype: Any) -> Array:
    """Memory for an output, which begins where kernels write it, unless it is small."""
    made: Array = _empty(0 if OPEN in shape else shape, dtype)
    if made.nbytes <= _SMALL or made.ctypes.data % _ALIGNMENT == 0:
        return made
    memory: Array = _empty(made.nbytes + _ALIGNMENT, _byte)
    begin = -memory.ctypes.data % _ALIGNMENT
    aligned: Array = memory[begin : begin + made.nbytes].view(dtype).reshape(shape)
    return aligned


def _ready(value: Array, wanted: tuple[str, Any, tuple[int, ...]]) -> Array:
    """An input as the library reads it: contiguous, and with all rows of the size."""
    _, dtype, shape = wanted
    if value.flags.c_contiguous and value.shape == shape:
        return value
    copied: Array = _empty(shape, dtype)
    copy_rows(value, copied)
    return copied
