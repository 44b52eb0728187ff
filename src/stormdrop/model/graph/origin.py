"""Where a graph comes from, as far as its verification needs it: another way to compute the same model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from numpy.typing import NDArray

from ..inputs.ranges import Ranges
from ..inputs.samples import Feeds

Outputs = dict[str, NDArray[Any]]
"""Arrays by the name of a tensor."""


class Origin:
    """The model that a graph was imported from, as another runtime computes it.

    onnxruntime computes an ONNX model, torch a torch module, and TVM with its default schedules a Relax module.
    """

    def index_ranges(self) -> Ranges:
        """What is known of the values of inputs, by name, such as the length of the table that one indexes."""
        raise NotImplementedError

    def before_saturation(self) -> Mapping[str, str]:
        """What a softmax or sigmoid takes that computes an output: the tensor's name by the name of the output.

        Only tensors that `outputs` computes; by default nothing, because it computes outputs alone.
        """
        return {}

    def outputs(self, feeds: Sequence[Feeds], names: Sequence[str]) -> tuple[list[Outputs], str]:
        """Runs the model as its other runtime does.

        Args:
            feeds: The inputs by name, for each run. The runtime may leave out all runs but the first if it is slow.
            names: The tensors to compute.

        Returns:
            The tensors by name for each run, and the name and version of the runtime.

        Raises:
            ModelError: The runtime cannot run the model.
        """
        raise NotImplementedError

    def seconds(
        self, feeds: Feeds, cores: int, within: float, alone: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> float | None:
        """Seconds of an execution by onnxruntime; None if it does not run such a model, which is the default.

        Args:
            feeds: The inputs by name.
            cores: The threads that it may use.
            within: Wall seconds that the timing may take, besides the start and two executions.
            alone: Makes the context in which it is timed, when it is loaded.

        Raises:
            ModelError: onnxruntime refuses the model.
        """
        return None

    def exact(self, feeds: Feeds) -> Outputs | None:
        """The outputs in float64, whatever the import made of the model; None if the runtime cannot compute them.

        That is the default: no runtime computes an ONNX model of float32 in float64, and TVM rounds each constant and
        each type of a Relax module to float32 again.
        """
        return None
