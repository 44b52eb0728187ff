"""stormdrop's own kernels and models as contenders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import hint
from ...measure.timing import Call
from ..contender import Unavailable

if TYPE_CHECKING:
    from ...ir.workload import Workload
    from ...machine.contract import Machine
    from ...sketches.contract import Variant

Array = NDArray[Any]


class ScheduledOperator:
    """A schedule of an operator, which is compiled in this process. Constants are transformed ahead of the timing."""

    def __init__(
        self, workload: Workload, variant: Variant, inputs: Sequence[Array], settings: Mapping[str, Any]
    ) -> None:
        """Compiles a schedule.

        Args:
            workload: The operator.
            variant: Its schedule.
            inputs: Its input arrays.
            settings: What the contender reports as its settings.
        """
        import tvm

        from ...codegen.compile import compile_kernel
        from ...machine.cpu import Cpu

        self._kernel = compile_kernel(variant.main, Cpu.detect().tvm())
        self._outputs = [tvm.runtime.empty(spec.shape, spec.dtype) for spec in workload.outputs]
        tensors = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in variant.arguments(inputs)]
        self._arguments = tensors + self._outputs
        self.versions = {"tvm": tvm.__version__}
        self.settings = settings

    def run(self) -> object:
        return self._kernel.call(*self._arguments)

    def outputs(self) -> list[Array]:
        self.run()
        return [output.numpy() for output in self._outputs]


class TunedOperator(ScheduledOperator):
    """Our kernel of an operator, given by the name of a sketch and a configuration of it."""

    def __init__(
        self, workload: Workload, sketch: str, config: Mapping[str, Any], inputs: Sequence[Array], threads: int
    ) -> None:
        from ...machine.cpu import Cpu
        from ...sketches.registry import cpu_sketches

        known = {registered.name: registered for registered in cpu_sketches()}
        if sketch not in known:
            raise Unavailable(f"there is no sketch {sketch!r}; {hint(sketch, sorted(known))}")
        variant = known[sketch].apply(workload, Cpu.detect(), config)
        super().__init__(workload, variant, inputs, {"threads": threads, "sketch": sketch, "config": dict(config)})


class OperatorOnDevice:
    """A scheduled operator on any device of this machine, which is timed by the device's clock.

    Args:
        workload: The operator.
        target: The machine that it was scheduled for.
        variant: Its schedule.
        inputs: Its input arrays.
        threads: Nothing that a device needs.

    Raises:
        TargetError: There is no such device here.
    """

    def __init__(
        self, workload: Workload, target: Machine, variant: Variant, inputs: Sequence[Array], threads: int
    ) -> None:
        import tvm

        from ...codegen.compile import build_module
        from ...measure.worker.devices import device_here

        compiled_for = target.tvm()  # makes CUDA number GPUs as the driver does, before one is used
        self._device = device_here(target)
        self._outputs, self._views = self._device.outputs([(spec.shape, spec.dtype) for spec in workload.outputs])
        tensors = [self._device.tensor(np.ascontiguousarray(array)) for array in variant.arguments(inputs)]
        kernel = self._device.load(build_module(variant.main, compiled_for))
        self._call = self._device.call(kernel, [[*tensors, *self._outputs]])
        self.versions = {"tvm": tvm.__version__}
        self.settings: Mapping[str, Any] = {"device": target.machine, "timed by": "the device, without copies"}

    def run(self) -> object:
        return self.outputs()

    def seconds(self, executions: int) -> float:
        return self._device.time_calls(self._call, executions)

    def outputs(self) -> list[Array]:
        self._call()
        self._device.pull(self._outputs, self._views)
        return self._views


class TunedModel:
    """A tuned model, given by the folder that it was saved to."""

    def __init__(self, artifact: str, inputs: Mapping[str, Array], threads: int) -> None:
        from ...model import load

        self._model = load(artifact)  # sets the number of threads before TVM is loaded
        from ...model.artifact.call_inputs import aligned

        self._inputs = {name: aligned(value) for name, value in inputs.items()}
        self.versions = {"tvm": self._model.metadata.tvm, "stormdrop": self._model.metadata.stormdrop}
        self.settings: Mapping[str, Any] = {"threads": threads}

    def run(self) -> object:
        return self._model.run(self._inputs)

    def forms(self, at_a_time: int) -> Mapping[str, Sequence[Call]]:
        """One model for all: calls that meet share the cores out."""
        return {"": [self.run] * at_a_time}

    def outputs(self) -> list[Array]:
        return list(self._model.run(self._inputs).values())


class ModelOnGpu(TunedModel):
    """A tuned model on a GPU: it is timed by the GPU's clock, inside of what was captured."""

    def __init__(self, artifact: str, inputs: Mapping[str, Array], threads: int) -> None:
        super().__init__(artifact, inputs, threads)
        self.settings = {"device": self._model.metadata.cpu, "timed by": "the device, without copies"}

    def seconds(self, executions: int) -> float:
        return self._model.seconds(self._inputs, executions)
