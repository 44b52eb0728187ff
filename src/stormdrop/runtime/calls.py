"""What each way to call a model offers: by its library, on a GPU, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .inputs import Array, Given
from .program import State, Step

Observer = Callable[[Step, bool, Callable[[], list[Array]]], None]
"""Is told of each step before it is run (True) and after it (False). The function gives the arguments as arrays."""


class ModelCalls:
    """A way to call a model; there is a class for each. Several threads may use one object.

    Attributes:
        times_itself: Whether it times its steps. Those of any other way are seen by an observer.
        on_gpu: Whether it takes arrays in the memory of a GPU.
        states: The states that `step` writes in place; none if it does not.
    """

    times_itself = False
    on_gpu = False
    states: tuple[State, ...] = ()

    def open(self) -> None:
        """Makes ready what the first call needs otherwise.

        Raises:
            DeviceError: It is for a GPU, and that is not here, or cannot run it.
            StormdropError: Nothing can run a part.
        """

    def __call__(self, given: Given) -> list[Array]:
        """Runs the model.

        Args:
            given: The inputs of the call.

        Returns:
            Its outputs. The arrays belong to the caller.

        Raises:
            ArtifactError: A kernel or a part fails, or this process was forked since the model was loaded.
            DeviceError: There is no such device, it has too little memory, or a kernel has failed.
            ModelError: onnxruntime does not take the inputs of a part.
        """
        raise NotImplementedError

    def step(self, given: Given, memory: list[Array]) -> list[Array]:
        """Runs a decoder that writes its `states` in place.

        Args:
            given: The inputs of the call. Those of the states are not read, and may be anything.
            memory: An array for each state, of the shape of its output as `State.in_memory` has it, and aligned as
                kernels want it: the rows so far are in it, and the new ones are written behind them. The same list as
                before has the same arrays; it is emptied when these are no longer needed, because it may be kept.

        Returns:
            The other outputs in their order. The arrays belong to the caller.

        Raises:
            ArtifactError: As for a call.
            ModelError: As for a call.
            ValueError: An array of the memory has another shape, or begins elsewhere.
        """
        raise NotImplementedError

    def profile(self, given: Given) -> list[tuple[str, float]]:
        """Runs a model that times itself, and times its steps.

        Args:
            given: The inputs of the call.

        Returns:
            The symbol of each step, in the order of the execution, and its seconds. A part of a model on a device that
            this machine runs has two more entries, for the copies before and after it; see `device.parts`.

        Raises:
            ArtifactError: As for a call.
            DeviceError: As for a call.
            ModelError: As for a call.
        """
        raise NotImplementedError

    def observed(self, observer: Observer) -> ModelCalls:
        """The same calls, step by step, with arrays of this machine.

        Args:
            observer: Is told of each step before and after it.

        Raises:
            ArtifactError: The kernels cannot be called one by one.
        """
        raise NotImplementedError

    def run_on_device(
        self, size: int, arrays: Sequence[Any], stream: Any = None, into: Sequence[Any] | None = None
    ) -> list[Any]:
        """Runs a model on a GPU on arrays in its memory.

        Args:
            size: The position of the size whose inputs they are.
            arrays: The inputs in their order.
            stream: The caller's stream.
            into: The arrays that the outputs are written to; None makes new ones.

        Returns:
            The outputs: those of `into`, or `DeviceArray`s. They belong to the caller; the stream fills them.

        Raises:
            DeviceError: As for a call.
            InputError: An array is none that the device can use, or `into` has one whose shape depends on data.
        """
        raise NotImplementedError

    def seconds(self, given: Given, calls: int) -> float:
        """The seconds of a call on a GPU by the clock of that, without the copies of inputs and outputs.

        Args:
            given: The inputs of the calls.
            calls: How many are timed, one after the other.

        Raises:
            DeviceError: As for a call.
        """
        raise NotImplementedError
