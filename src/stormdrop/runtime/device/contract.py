"""What executes a program on a GPU: a device with its memory, and queues of work on it.

CudaDevice      an NVIDIA GPU, by the driver's interface      cuda.py
OpenClDevice    any device that OpenCL drives                 opencl.py

The two differ in nothing else. `execution` makes all that a model needs of these few functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from ..inputs import Array
from .code import Image, Launch

Memory = Any
"""A piece of a device's memory. It is given back when nobody refers to it any more."""

Function = Any
"""A kernel that was loaded."""

Work = Callable[[], None]
"""Puts work into a queue."""


class Queue(Protocol):
    """Work on a device that is done in its order, while the caller goes on."""

    def upload(self, array: Array, memory: Memory) -> None:
        """Copies an array into memory of the device.

        Args:
            array: A contiguous array. It has to stay as it is until the queue was waited for.
            memory: At least as many bytes.
        """

    def download(self, memory: Memory, array: Array) -> None:
        """Copies memory of the device into an array, which has the values after the queue was waited for.

        Args:
            memory: At least as many bytes as the array has.
            array: A contiguous array.
        """

    def copy(self, source: Memory, target: Memory, size: int) -> None:
        """Copies memory of the device.

        Args:
            source: From here.
            target: To there.
            size: The bytes.
        """

    def launch(self, prepared: Any) -> None:
        """Launches a kernel.

        Args:
            prepared: What `Device.prepare` has returned. It is of one queue only.
        """

    def capture(self, work: Work) -> Work:
        """Something that puts the same work into the queue again, as fast as the device can take it.

        Args:
            work: Uploads from and downloads to `Device.staging` memory, copies and launches. It is not done now.
        """

    def wait(self) -> None:
        """Returns when all work is done.

        Raises:
            DeviceError: A kernel has failed.
        """

    def seconds(self, work: Work) -> float:
        """The seconds that the device takes for some work, by its own clock, after that was done.

        Args:
            work: Puts the work into this queue.
        """


class Device(Protocol):
    """A device with its memory.

    Attributes:
        name: What messages call it.
        alignment: A piece of memory that kernels read begins at a multiple of so many bytes.
    """

    name: str
    alignment: int

    def allocate(self, size: int) -> Memory:
        """Memory of the device whose content is not defined.

        Args:
            size: Its bytes.

        Raises:
            DeviceError: There is not as much.
        """

    def part(self, memory: Memory, offset: int, size: int) -> Memory:
        """A part of some memory.

        Args:
            memory: What `allocate` has returned.
            offset: Where the part begins, a multiple of `alignment`.
            size: Its bytes.
        """

    def staging(self, size: int) -> Array:
        """Memory of this machine from which and to which the device copies fastest: an array of uint8.

        Args:
            size: Its bytes.
        """

    def load(self, images: Sequence[Image]) -> Callable[[str], Function]:
        """Loads kernels.

        Args:
            images: The code, in one or several forms.

        Returns:
            The kernel with a name.

        Raises:
            DeviceError: None of the images is for this device, or it is damaged.
        """

    def prepare(self, function: Function, launch: Launch, arguments: Sequence[Memory]) -> Any:
        """A launch with its arguments, for `Queue.launch`.

        Args:
            function: The kernel.
            launch: How it is launched.
            arguments: What its arguments point to.

        Raises:
            DeviceError: The device cannot execute so many threads of it in a block.
        """

    def queue(self) -> Queue:
        """Another queue."""


@runtime_checkable
class StreamQueue(Protocol):
    """A queue whose work can go into the stream of somebody else.

    Attributes:
        stream: The number of the stream that its work goes into.
    """

    stream: int

    def on(self, stream: int) -> AbstractContextManager[None]:
        """Puts work into a stream of somebody else, after what is in this queue, which then waits for the work.

        Args:
            stream: The stream.
        """

    def copy(self, source: Memory, target: Memory, size: int) -> None:
        """As `Queue.copy`."""


@runtime_checkable
class StreamDevice(Protocol):
    """A device on whose memory other libraries of this process work too.

    Attributes:
        name: What messages call it.
        gpu: Its number in this process.
    """

    name: str
    gpu: int

    def allocate(self, size: int) -> Memory:
        """As `Device.allocate`. The memory has the attributes `address` and `size`."""

    def at(self, address: int) -> Memory:
        """Memory of somebody else.

        Args:
            address: Where it begins.
        """

    def gpu_of(self, address: int) -> int | None:
        """The number of the GPU in whose memory an address is; None for one that CUDA does not know.

        Args:
            address: The address.
        """

    def order(self, first: int, then: int) -> None:
        """Has what is put into a stream from now on wait for what another one has.

        Args:
            first: The stream that is waited for.
            then: The stream that waits.
        """
