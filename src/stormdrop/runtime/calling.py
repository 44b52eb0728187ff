"""What all models have in common that are called: inputs in order or by name, and a few lines that describe them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InputError, shown
from .device.device_array import DeviceArray, is_on_cuda
from .sizes import Size, TensorInfo, described, sizes_in_words

if TYPE_CHECKING:
    from .calls import ModelCalls
    from .inputs import CallInputs


class CallableModel:
    """A model that runs on arrays.

    Attributes:
        metadata: What the model says about itself.
    """

    metadata: Any
    _inputs: CallInputs
    _calls: ModelCalls

    def _results(self, feeds: Any) -> Sequence[Any]:
        """The outputs for inputs by name."""
        raise NotImplementedError

    def run_on_device(
        self, feeds: Mapping[str, Any], stream: Any = None, into: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Runs a model for an NVIDIA GPU on arrays in its memory: nothing is copied from it, and nothing waited for.

        A call and `run` do the same, in the default stream, if an input is such an array.

        Args:
            feeds: Each input by name: anything with `__dlpack__` or `__cuda_array_interface__`, as torch, CuPy, JAX and
                Numba have it. Together they have the shapes of one of `sizes`.
            stream: The caller's stream: its handle, or a stream of torch, CuPy or Numba; None is the default stream.
            into: An array like the inputs for each output, by name, which the output is written to: no memory is then
                allocated. None makes new arrays. One that is read-only is refused if it says so by
                `__cuda_array_interface__`; the form of DLPack that is read cannot say it.

        Returns:
            All outputs by name: the arrays of `into`, or `DeviceArray`s. They belong to the caller; the stream fills
            them.

        Raises:
            DeviceError: There is no such GPU, it has too little memory, or the stream is being captured.
            InputError: The model is for another device, or this machine runs parts of it; an array is in other memory,
                of another type or shape, or not contiguous; or `into` lacks an output, has one whose shape depends on
                data, or a read-only array.

        Example:
            ```text
            outputs = model.run_on_device({"x": torch.randn(1, 3, 224, 224, device="cuda")})
            y = torch.from_dlpack(outputs["y"])
            ```
        """
        if not self._calls.on_gpu:
            raise InputError(
                f"{self.metadata.name}: runs on arrays of this machine, and takes none in the memory of a GPU"
            )
        size, arrays = self._inputs.elsewhere(feeds)
        names = [info.name for info in self.outputs]
        if into is not None and into.keys() != set(names):
            raise InputError(f"{self.metadata.name}: its outputs are {', '.join(names)}, not {', '.join(into)}")
        places = None if into is None else [into[name] for name in names]
        results = self._calls.run_on_device(size, arrays, stream, places)
        return {info.name: value for info, value in zip(self.outputs, results, strict=True)}

    def _results_on_device(self, feeds: Any) -> Sequence[DeviceArray] | None:
        """The outputs of a model on a GPU, if an input lies in the memory of one; None if not."""
        if isinstance(feeds, Mapping) and any(is_on_cuda(feeds.get(name)) for name in self._inputs.names):
            return list(self.run_on_device(feeds).values())
        return None

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and type of each input, in the order in which a call takes them; the shapes of the first size."""
        return self.metadata.inputs  # type: ignore[no-any-return]

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and type of each output, in the order in which a call returns them."""
        return self.metadata.outputs  # type: ignore[no-any-return]

    @property
    def sizes(self) -> Sequence[Size]:
        """The sizes that the model was compiled for: inputs and outputs with their shapes."""
        return self._inputs.sizes

    def __repr__(self) -> str:
        """A few lines: the model's name, its inputs and its outputs, and its sizes if there are several."""
        tensors = {"inputs": self.inputs, "outputs": self.outputs}
        lines = [f"{name:<8} {described(infos)}" for name, infos in tensors.items()]
        if len(self.sizes) > 1:
            batched = self.metadata.batched
            fewer = f"; fewer rows of {', '.join(map(shown, batched))}" if batched else ""
            lines.append(f"{'sizes':<8} {'; '.join(sizes_in_words(self.sizes))}{self._inputs.ranges}{fewer}")
        return "\n  ".join([f"{type(self).__name__} {shown(self.metadata.name)}:", *lines])

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs the model on inputs in order or by keyword; otherwise as `run`.

        Args:
            *arguments: The first inputs, in the order of `inputs`.
            **named: The other inputs by name.

        Returns:
            The output as a NumPy array, or a tuple of arrays in the order of `outputs` if there are several. They are
            `DeviceArray`s if an input lies in the memory of a GPU; see `run_on_device`.

        Raises:
            InputError: An input is missing, unknown, given twice, or of another shape or type.

        Example:
            ```python
            probabilities = model(image)
            ```
        """
        names = self._inputs.names
        if len(arguments) > len(names):
            inputs = f"{len(names)} input{'s' if len(names) != 1 else ''}"
            raise InputError(f"{self.metadata.name} takes {inputs}, not {len(arguments)}")
        feeds = dict(zip(names, arguments))  # noqa: B905  fewer are completed by name, or refused
        if named:
            for name in sorted(feeds.keys() & named.keys()):
                raise InputError(f"{self.metadata.name}: input {name!r} is given twice")
            feeds.update(named)
        results = self._results(feeds)
        return results[0] if len(results) == 1 else tuple(results)
