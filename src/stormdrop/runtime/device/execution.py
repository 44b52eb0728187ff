"""Executes the program of a model on a device: everything is made once, and a call replays it.

    constants     uploaded once, for all executions on the device
    memory        inputs, outputs, storage, and what the launches of a kernel hand on, in one piece
    staging       inputs and outputs in this machine's memory
    launches      each with its arguments

    a call:       inputs to staging;  uploads, launches, downloads as one captured piece of work;  outputs from staging

Where onnxruntime runs a part, the work is in pieces: one before the part, and one after it; see `parts`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, cast

import numpy as np

from ...errors import ArtifactError, InputError, ModelError, StormdropError, one_line
from ..calls import Observer
from ..inputs import Array, copy_rows, dtype_of
from ..program import Program, Step, View, bytes_of, offsets_of
from ..sizes import OPEN, TensorInfo
from .blocks import blocks_of, staging_arrays
from .code import DeviceCode, DeviceKernel, Launch
from .contract import Device, StreamDevice, StreamQueue, Work
from .device_array import DeviceArray, GivenArray, given_array, stream_number
from .parts import TO_DEVICE, TO_HOST, DeviceTensor, ModelParts, cuda_parts


class DeviceProgram:
    """A program on a device, with its kernels and its constants there. Executions share it.

    Args:
        device: The device.
        program: The program.
        code: Its kernels.
        constants: The bytes of each constant.
        parts: Its parts that onnxruntime runs, if it has some.

    Raises:
        ArtifactError: A kernel that the program calls is not there, or has other parameters.
        DeviceError: The code is none for this device, or the device has too little memory.
        StormdropError: Nothing can run a part.
    """

    def __init__(
        self,
        device: Device,
        program: Program,
        code: DeviceCode,
        constants: Sequence[Array],
        parts: ModelParts | None = None,
    ) -> None:
        self.device, self.sizes, self.kernels = device, program.sizes, code.kernels
        _check_kernels(program, code)
        self.cuda_parts = None if parts is None else cuda_parts(parts, device)
        self.run_part = None if parts is None or self.cuda_parts else parts.on_host()
        self.function = device.load(code.images)
        *offsets, total = offsets_of((each.nbytes for each in constants), device.alignment)
        memory, queue = device.allocate(total), device.queue()
        self.constants = [
            device.part(memory, offset, each.nbytes) for offset, each in zip(offsets, constants, strict=True)
        ]
        for each, place in zip(constants, self.constants, strict=True):
            queue.upload(np.ascontiguousarray(each), place)
        queue.wait()


class DeviceExecution:
    """One size of a program on a device, ready to be executed by one caller at a time.

    Args:
        program: The program.
        size: The position of the size.

    Raises:
        DeviceError: The device has too little memory.
    """

    def __init__(self, program: DeviceProgram, size: int) -> None:
        self._size, self._run_part, self._cuda_parts = program.sizes[size], program.run_part, program.cuda_parts
        self._device, self._queue = program.device, program.device.queue()
        self._memory = blocks_of(self._size, program.kernels, self._device)
        self._views = [self._memory.of(view, program.constants, self._device) for view in self._size.views]
        self._inputs = staging_arrays(self._device, self._size.inputs)
        self._outputs = staging_arrays(self._device, self._size.outputs)
        self._kernels = program.kernels
        self._prepared = [self._prepare(program, step) for step in self._size.steps]
        self._made: dict[int, Array | DeviceTensor] = {}  # outputs whose shape depends on data, by their positions
        self._call = self._captured(self._uploads, self._downloads)

    @cached_property
    def _on_device(self) -> Sequence[Work]:
        """The work of a call without the copies of its inputs and outputs."""
        return self._captured()

    @cached_property
    def _shared(self) -> tuple[StreamDevice, StreamQueue]:
        """The device and the queue, if other libraries can work on the same memory. Else raises `InputError`."""
        device, queue = self._device, self._queue
        if not isinstance(device, StreamDevice) or not isinstance(queue, StreamQueue):
            raise InputError(f"{device.name}: arrays in the memory of a GPU are taken by CUDA only")
        if self._run_part is not None and any(step.kind == "part" for step in self._size.steps):
            raise InputError("onnxruntime runs a part of the model on this machine: give arrays of this machine")
        return device, queue

    def _prepare(self, program: DeviceProgram, step: Step) -> list[Any]:
        """The launches of a step that is a kernel."""
        if step.kind != "kernel":
            return []
        kernel = program.kernels[step.name]
        arguments = [
            *(self._views[position] for position in step.arguments),
            *self._memory.scratch(kernel, self._device),
        ]

        def prepared(launch: Launch) -> Any:
            function = program.function(launch.entry)
            return self._device.prepare(function, launch, [arguments[position] for position in launch.arguments])

        return [prepared(launch) for launch in kernel.launches]

    def run(self, arrays: Sequence[Array], rows: int | None = None) -> list[Array]:
        """Executes the program on arrays of this machine.

        Args:
            arrays: The inputs, perhaps with fewer rows than those of the size.
            rows: How many rows of the outputs are wanted; None for all.

        Returns:
            The outputs. They belong to the caller.

        Raises:
            DeviceError: A kernel has failed.
            ModelError: A part makes something else than it should.
        """
        for array, staged in zip(arrays, self._inputs, strict=True):
            copy_rows(array, staged)
        for work in self._call:
            work()
        self._queue.wait()
        return [(output if rows is None else output[:rows]).copy() for output in self._results()]

    def run_on_device(self, arrays: Sequence[Any], stream: Any = None, into: Sequence[Any] | None = None) -> list[Any]:
        """Executes the program on arrays in the memory of the device, without waiting for it.

        The inputs are copied to the memory of the program, and the outputs from it, by work in the caller's stream.

        Args:
            arrays: The inputs: anything with `__dlpack__` or `__cuda_array_interface__`, as torch, CuPy, JAX and Numba
                have it. They have to stay as they are until the stream has come so far.
            stream: The caller's stream: its handle, or a stream of torch, CuPy or Numba; None is the default stream.
            into: Arrays like the inputs that the outputs are written to; None makes a new one for each.

        Returns:
            The outputs: those of `into`, or `DeviceArray`s. They belong to the caller; the stream fills them.

        Raises:
            DeviceError: The device has too little memory, or the stream is being captured.
            InputError: An array is in other memory, of another type or shape, or not contiguous; CUDA does not drive
                this device; or the model has parts that this machine runs.
            ModelError: A part does not take what it reads.
        """
        (device, queue), steps = self._shared, self._on_device
        number, sources, results = stream_number(stream), self._size.inputs, self._size.outputs

        def checked(arrays: Sequence[Any], infos: Sequence[TensorInfo], role: str) -> list[tuple[GivenArray, Any]]:
            pairs = zip(arrays, infos, strict=True)
            return [given_array(array, info, device.gpu, device.gpu_of, number, role) for array, info in pairs]

        planned = [OPEN not in info.shape for info in results]
        if into is not None and not all(planned):
            name = results[planned.index(False)].name
            raise InputError(f"the shape of output {name} depends on data: it is written to no given array (into=)")
        given = checked(arrays, sources, "input")
        places = checked(into, results, "output") if into is not None else []
        outputs = [device.at(place.address) for place, _ in places] or [
            device.allocate(memory.size) if known else None
            for memory, known in zip(self._memory.outputs, planned, strict=True)
        ]
        with queue.on(number):
            for array, _ in (*given, *places):
                if array.stream is not None:
                    device.order(array.stream, number)
            for (array, _), info, memory in zip(given, sources, self._memory.inputs, strict=True):
                queue.copy(device.at(array.address), memory, bytes_of(info.shape, info.dtype))
            for work in steps:
                work()
            for source, target, info in zip(self._memory.outputs, outputs, results, strict=True):
                if target is not None:
                    queue.copy(source, target, bytes_of(info.shape, info.dtype))
        if into is not None:
            return list(into)
        made = [
            cast(DeviceTensor, self._made[index]) if memory is None else DeviceTensor(memory, info.shape, info.dtype)
            for index, (memory, info) in enumerate(zip(outputs, results, strict=True))
        ]
        return [
            DeviceArray(each.memory, TensorInfo(info.name, each.shape, info.dtype), device.gpu, number, device.order)
            for each, info in zip(made, results, strict=True)
        ]

    def profile(self, arrays: Sequence[Array]) -> list[tuple[str, float]]:
        """Executes the program step by step, and times the steps by the device's clock.

        Args:
            arrays: The inputs.

        Returns:
            The symbol of each step, in the order of the execution, and its seconds. A part that this machine runs has
            three entries, of which the first and the last are the copies before and after it.
        """
        self._begin(arrays)
        times: list[tuple[str, float]] = []
        for position, step in enumerate(self._size.steps):
            if step.kind == "part" and self._cuda_parts is None:
                begin = time.perf_counter()
                for name in self._part_on_host(step):
                    end = time.perf_counter()
                    times.append((name, end - begin))
                    begin = end
            else:
                times.append((step.symbol, self._queue.seconds(partial(self._step, position))))
        return times

    def observed(self, arrays: Sequence[Array], observer: Observer) -> list[Array]:
        """Executes the program step by step, and tells of each.

        Args:
            arrays: The inputs.
            observer: Is told of each step.

        Returns:
            The outputs.
        """
        self._begin(arrays)
        for position, step in enumerate(self._size.steps):

            def arguments(step: Step = step) -> list[Array]:
                found = (self._downloaded(view) for view in step.arguments)
                return [each for each in found if each is not None]

            observer(step, True, arguments)
            self._step(position)
            self._queue.wait()
            observer(step, False, arguments)
        self._downloads()
        self._queue.wait()
        return [output.copy() for output in self._results()]

    def seconds(self, arrays: Sequence[Array], calls: int) -> float:
        """The seconds of a call by the device's clock, without the copies of inputs and outputs.

        Args:
            arrays: The inputs.
            calls: How many calls are timed, one after the other.
        """
        self._begin(arrays)
        return self._queue.seconds(partial(_all, [*self._on_device] * calls)) / calls

    def _begin(self, arrays: Sequence[Array]) -> None:
        for array, staged in zip(arrays, self._inputs, strict=True):
            copy_rows(array, staged)
        self._uploads()
        self._queue.wait()

    def _captured(self, before: Work | None = None, after: Work | None = None) -> Sequence[Work]:
        """The pieces of work of a call, each of which the queue replays, or a part."""
        works: list[tuple[bool, Work]] = [] if before is None else [(False, before)]
        works += [(step.kind == "part", partial(self._step, at)) for at, step in enumerate(self._size.steps)]
        works += [] if after is None else [(False, after)]
        pieces: list[Work] = []
        for is_part, group in itertools.groupby(works, lambda each: each[0]):
            together = [work for _, work in group]
            pieces += together if is_part else [self._queue.capture(partial(_all, together))]
        return pieces

    def _step(self, position: int) -> None:
        step = self._size.steps[position]
        if step.kind == "part":
            self._part(step)
        elif step.kind == "copy":
            source, target = (self._views[view] for view in step.arguments)
            self._queue.copy(source, target, self._size.views[step.writes[0]].bytes)
        for prepared in self._prepared[position]:
            self._queue.launch(prepared)

    def _part(self, step: Step) -> None:
        """Runs a part: on the device, or on this machine."""
        if self._cuda_parts is None:
            for _ in self._part_on_host(step):
                pass
            return
        read = [self._placed(view) for view in step.reads]
        views = [self._size.views[view] for view in step.writes]
        written = [
            DeviceTensor(self._views[at], view.shape, view.dtype) for at, view in zip(step.writes, views, strict=True)
        ]
        try:
            made = self._cuda_parts.run(int(step.name), read, written, cast(StreamQueue, self._queue))
        except StormdropError:
            raise
        except Exception as error:  # onnxruntime's exceptions have no base class of their own
            raise _refused(step, error) from error
        self._made |= {view.index: tensor for view, tensor in zip(views, made, strict=True) if OPEN in view.shape}

    def _part_on_host(self, step: Step) -> Iterator[str]:
        """Runs a part on this machine. After each of three pieces of work it gives the name of that.

        What it reads is downloaded; it runs; what it writes is uploaded.
        """
        if self._run_part is None:
            raise RuntimeError(f"part {step.name} of a program needs somebody who runs it")
        read = [self._downloaded(view) for view in step.reads]
        yield f"{step.symbol}: {TO_HOST}"
        views = [self._size.views[view] for view in step.writes]
        memory = [None if OPEN in view.shape else _empty(view) for view in views]
        try:
            results = self._run_part(int(step.name), read, memory)  # type: ignore[arg-type]
        except StormdropError:
            raise
        except Exception as error:  # onnxruntime's exceptions have no base class of their own
            raise _refused(step, error) from error
        yield step.symbol
        sent = []  # which has to be there until the queue was waited for
        for position, view, result in zip(step.writes, views, results, strict=True):
            if OPEN in view.shape:
                self._made[view.index] = result
                continue
            if (result.shape, result.dtype) != (view.shape, dtype_of(view.dtype)):
                made = f"{result.dtype} of shape {result.shape}"
                raise ModelError(f"part {step.name} makes a result in {made}, not {view.dtype} of {view.shape}")
            sent.append(np.ascontiguousarray(result))
            self._queue.upload(sent[-1], self._views[position])
        self._queue.wait()
        yield f"{step.symbol}: {TO_DEVICE}"

    def _placed(self, position: int) -> DeviceTensor:
        """A view on the device. One whose shape depends on data is there once its part has run."""
        view = self._size.views[position]
        made = self._made.get(view.index) if OPEN in view.shape else None
        return made if isinstance(made, DeviceTensor) else DeviceTensor(self._views[position], view.shape, view.dtype)

    def _downloaded(self, position: int) -> Array | None:
        """A view as an array; None for an output whose part has not run yet."""
        view = self._size.views[position]
        if OPEN in view.shape and view.index not in self._made:
            return None
        made = self._made[view.index] if OPEN in view.shape else self._placed(position)
        return self._on_host(made)

    def _on_host(self, tensor: Array | DeviceTensor) -> Array:
        """A tensor as an array of this machine."""
        if not isinstance(tensor, DeviceTensor):
            return tensor
        array: Array = np.empty(tensor.shape, dtype_of(tensor.dtype))
        self._queue.download(tensor.memory, array)
        self._queue.wait()
        return array

    def _results(self) -> list[Array]:
        """The outputs after a call, in memory that the next one uses again."""
        return [
            self._on_host(self._made[index]) if index in self._made else staged
            for index, staged in enumerate(self._outputs)
        ]

    def _uploads(self) -> None:
        for array, memory in zip(self._inputs, self._memory.inputs, strict=True):
            self._queue.upload(array, memory)

    def _downloads(self) -> None:
        for array, memory in zip(self._outputs, self._memory.outputs, strict=True):
            self._queue.download(memory, array)


def _refused(step: Step, error: Exception) -> ModelError:
    return ModelError(f"onnxruntime does not run part {step.name}: {one_line(error)}")


def _all(pieces: Sequence[Work]) -> None:
    for piece in pieces:
        piece()


def _empty(view: View) -> Array:
    return np.empty(view.shape, dtype_of(view.dtype))


def _check_kernels(program: Program, code: DeviceCode) -> None:
    """Raises `ArtifactError` if the program calls a kernel that is not there, or with other arguments."""
    known: Mapping[str, DeviceKernel] = code.kernels
    for step in itertools.chain.from_iterable(size.steps for size in program.sizes):
        if step.kind == "kernel" and (step.name not in known or known[step.name].parameters != len(step.arguments)):
            raise ArtifactError(f"a kernel {step.name} of {len(step.arguments)} parameters is not there")
