"""Calls of a model that a device executes. Several threads may use one object."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...errors import ArtifactError, DeviceError, InputError, ModelError
from ..inputs import Array, Given
from ..parts import RunPart
from ..program import Program
from .code import DeviceCode
from .contract import Device, StreamDevice
from .execution import DeviceExecution, DeviceProgram, Observer

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORKED = (
    "the model was loaded before this process was forked, and the driver of a GPU works in one of the two only: load"
    ' the model after the fork, or start other processes with multiprocessing.get_context("spawn")'
)


class DeviceCalls:
    """Calls a model on a device.

    There is an execution, with memory of its own on the device, for each call that is in progress. It is kept for the
    next call of its size.

    Args:
        open_device: Opens the device, at the first call or with `open`.
        program: The program.
        code: Its kernels.
        constants: The bytes of each constant.
        run_part: Runs its parts, if it has some, on this machine.
    """

    def __init__(
        self,
        open_device: Callable[[], Device],
        program: Program,
        code: DeviceCode,
        constants: Sequence[Array],
        run_part: RunPart | None = None,
    ) -> None:
        self._open_device, self._program, self._code = open_device, program, code
        self._constants, self._run_part = constants, run_part
        self._opening = threading.Lock()
        self._opened: DeviceProgram | None = None
        self._idle: defaultdict[int, list[DeviceExecution]] = defaultdict(list)

    def open(self) -> None:
        """Opens the device, and loads the kernels and the constants.

        Raises:
            DeviceError: There is no such device, it has too little memory, or the code is none for it.
        """
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
                self._opened = DeviceProgram(self._open_device(), self._program, self._code, self._constants)
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
            execution = DeviceExecution(program, size, self._run_part)
        try:
            yield execution
        except (ArtifactError, DeviceError, ModelError):
            raise  # one that has failed is not used again
        except InputError:
            self._idle[size].append(execution)
            raise
        self._idle[size].append(execution)

    def __call__(self, given: Given) -> list[Array]:
        """Runs the model.

        Args:
            given: The inputs of the call.

        Returns:
            Its outputs. The arrays belong to the caller.

        Raises:
            DeviceError: There is no such device, it has too little memory, or a kernel has failed.
            ArtifactError: This process was forked since the model was loaded.
            ModelError: onnxruntime does not take the inputs of a part.
        """
        with self._execution(given.wanted.index) as execution:
            return execution.run(given.arrays, given.rows)

    @property
    def gpu(self) -> int | None:
        """The number of the NVIDIA GPU, which is opened for it; None for another device.

        Raises:
            DeviceError: As `open`.
        """
        device = self._on_device.device
        return device.gpu if isinstance(device, StreamDevice) else None

    def run_on_device(
        self, size: int, arrays: Sequence[Any], stream: Any = None, into: Sequence[Any] | None = None
    ) -> list[Any]:
        """Runs the model on arrays in the memory of the device. See `DeviceExecution.run_on_device`.

        Args:
            size: The position of the size whose inputs they are.
            arrays: The inputs in their order.
            stream: The caller's stream.
            into: The arrays that the outputs are written to; None makes new ones.

        Returns:
            The outputs. They belong to the caller; the stream fills them.

        Raises:
            DeviceError: As for a call.
            InputError: An array is none that the device can use.
        """
        with self._execution(size) as execution:
            return execution.run_on_device(arrays, stream, into)

    def profile(self, given: Given) -> list[tuple[str, float]]:
        """Runs the model, and times its steps.

        Args:
            given: The inputs of the call.

        Returns:
            The symbol of each step, in the order of the execution, and its seconds.

        Raises:
            DeviceError: As for a call.
        """
        with self._execution(given.wanted.index) as execution:
            return execution.profile(given.arrays)

    def observed(self, given: Given, observer: Observer) -> list[Array]:
        """Runs the model step by step.

        Args:
            given: The inputs of the call.
            observer: Is told of each step.

        Returns:
            Its outputs.

        Raises:
            DeviceError: As for a call.
        """
        with self._execution(given.wanted.index) as execution:
            return execution.observed(given.arrays, observer)

    def seconds(self, given: Given, calls: int) -> float:
        """The seconds of a call by the device's clock, without the copies of inputs and outputs.

        Args:
            given: The inputs of the calls.
            calls: How many are timed, one after the other.

        Raises:
            DeviceError: As for a call.
        """
        with self._execution(given.wanted.index) as execution:
            return execution.seconds(given.arrays, calls)
