"""Calls of a model that a device executes."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from ...errors import ArtifactError, DeviceError, InputError, ModelError
from ..calls import ModelCalls, Observer
from ..inputs import Array, Given
from ..program import Program
from .code import DeviceCode
from .contract import Device, StreamDevice
from .execution import DeviceExecution, DeviceProgram
from .parts import ModelParts

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORKED = (
    "the model was loaded before this process was forked, and the driver of a GPU works in one of the two only: load"
    ' the model after the fork, or start other processes with multiprocessing.get_context("spawn")'
)


class DeviceCalls(ModelCalls):
    """Calls a model on a device.

    There is an execution, with memory of its own on the device, for each call that is in progress. It is kept for the
    next call of its size.

    Args:
        open_device: Opens the device, at the first call or with `open`.
        program: The program.
        code: Its kernels.
        constants: The bytes of each constant.
        parts: Its parts that onnxruntime runs, if it has some.
    """

    times_itself = on_gpu = True

    def __init__(
        self,
        open_device: Callable[[], Device],
        program: Program,
        code: DeviceCode,
        constants: Sequence[Array],
        parts: ModelParts | None = None,
    ) -> None:
        self._open_device, self._program, self._code = open_device, program, code
        self._constants, self._parts = constants, parts
        self._opening = threading.Lock()
        self._opened: DeviceProgram | None = None
        self._idle: defaultdict[int, list[DeviceExecution]] = defaultdict(list)

    def open(self) -> None:
        self._on_device  # noqa: B018  what it raises is wanted

    @property
    def device(self) -> Device:
        """The device. Raises `DeviceError` as `open` does."""
        return self._on_device.device

    @property
    def _on_device(self) -> DeviceProgram:
        with self._opening:
            if self._opened is None:
                self._process = os.getpid()
                self._opened = DeviceProgram(
                    self._open_device(), self._program, self._code, self._constants, self._parts
                )
                self._constants = ()  # they are on the device
            return self._opened

    @contextmanager
    def _execution(self, size: int) -> Iterator[DeviceExecution]:
        """An execution that no other call uses meanwhile."""
        program = self._on_device
        if self._process != os.getpid():
            raise ArtifactError(_FORKED)
        try:
            execution = self._idle[size].pop()
        except IndexError:
            execution = DeviceExecution(program, size)
        try:
            yield execution
        except (ArtifactError, DeviceError, ModelError):
            raise  # one that has failed is not used again
        except InputError:
            self._idle[size].append(execution)
            raise
        self._idle[size].append(execution)

    def __call__(self, given: Given) -> list[Array]:
        with self._execution(given.wanted.index) as execution:
            return execution.run(given.arrays, given.rows)

    @property
    def gpu(self) -> int | None:
        """The number of the NVIDIA GPU; None for another device, and for one that is not open yet."""
        device = None if self._opened is None else self._opened.device
        return device.gpu if isinstance(device, StreamDevice) else None

    def run_on_device(
        self, size: int, arrays: Sequence[Any], stream: Any = None, into: Sequence[Any] | None = None
    ) -> list[Any]:
        with self._execution(size) as execution:
            return execution.run_on_device(arrays, stream, into)

    def profile(self, given: Given) -> list[tuple[str, float]]:
        with self._execution(given.wanted.index) as execution:
            return execution.profile(given.arrays)

    def observed(self, observer: Observer) -> ModelCalls:
        return _ObservedCalls(self._execution, observer)

    def seconds(self, given: Given, calls: int) -> float:
        with self._execution(given.wanted.index) as execution:
            return execution.seconds(given.arrays, calls)


class _ObservedCalls(ModelCalls):
    """Calls that an observer sees. It sees arrays of this machine."""

    def __init__(self, execution: Callable[[int], AbstractContextManager[DeviceExecution]], observer: Observer) -> None:
        self._execution, self._observer = execution, observer

    def __call__(self, given: Given) -> list[Array]:
        with self._execution(given.wanted.index) as execution:
            return execution.observed(given.arrays, self._observer)

    def observed(self, observer: Observer) -> ModelCalls:
        return _ObservedCalls(self._execution, observer)
