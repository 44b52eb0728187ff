"""From a scheduled function to a callable: in process, without a C compiler and without files.

These settings differ from TVM's defaults. They were measured on convolutions, matmul, depthwise and softmax, and leave
the results as they are to the last bit (`benchmarks/kernels/cost.py` says what a candidate costs):

- Accumulators are on the stack (see `lowering`), so LLVM has less to find out. That saves 10 to 20 ms of some 100, and
  the kernels are faster.
- LLVM's level is 2 (see `Cpu.tvm`), which saves 5 to 15 ms. Level 1 would save 5 ms more, but it does not make
  vectors of strided loads as level 2 does.
- TVM's common subexpression elimination is off. It takes 9 to 32 ms on unrolled kernels, and LLVM does the same job
  anyway.
- The checks of the arguments' types and shapes are off. Generating them takes 5 ms and compiling them another 12, more
  than many a kernel. `check_arguments` makes the same checks once, in Python.

TVM's other just-in-time engine saves nothing. Some 12 ms go into conversions of half precision that TVM adds to every
module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.tirx import PrimFunc

from ..errors import TargetError
from ..ir.elementary import expand_for_gpu
from ..ir.reference import evaluate
from ..ir.stages import shape_of
from ..ir.workload import Workload
from ..machine.contract import OPENCL, Machine
from ..machine.process.forks import check_threads
from ..sketches.contract import Variant
from .gpu_lowering import GPU_PIPELINE, gpu_pass_config
from .lowering import PIPELINE
from .needed_features import check_host, check_target
from .opencl import build_opencl
from .opencl_runtime import OpenClRuntime

GENERATION = 1
"""Part of what times are recorded under. Raise it if the machine code of a schedule changes so that its times may."""

PASS_CONFIG = {"tirx.disable_cse_tir": True, "tirx.disable_assert": True}
"""The options of TVM's passes with which functions for CPUs are lowered."""


class TunedKernel:
    """A workload under one schedule, compiled in this process and ready to be called with NumPy arrays.

    `kernel(x, w)` takes the workload's inputs in order and returns its output, or a list if there are several. A
    constant input is laid out for the schedule when an array is passed for the first time, and again only if another
    array is passed. So do not write into such an array between two calls.

    Args:
        workload: The function that the schedule computes.
        target: The machine to compile for: this one.
        variant: The schedule.

    Raises:
        TargetError: The target is another machine, or the schedule needs an extension that this CPU lacks.

    Example:
        >>> import numpy as np
        >>> from stormdrop import operators
        >>> from stormdrop.machine.cpu import Cpu
        >>> from stormdrop.sketches.registry import sketches_for
        >>> workload, target = operators.matmul(4, 16, 8), Cpu.detect()
        >>> (sketch, space), *_ = sketches_for(workload, target)
        >>> kernel = TunedKernel(workload, target, sketch.apply(workload, target, space.config(space.origin)))
        >>> kernel(np.ones((4, 8), "float32"), np.ones((8, 16), "float32"))[0, :2]
        array([8., 8.], dtype=float32)
    """

    def __init__(self, workload: Workload, target: Machine, variant: Variant) -> None:
        if target.runner:
            raise TargetError(
                f"target {target.name}: its machine is {target.runner}; a kernel can be called there only"
            )
        self._runtime = runtime_of(target)
        self.workload = workload
        self.variant = variant
        check_host(variant.main)
        self._call = self._runtime.load(build_module(variant.main, target.tvm()))
        self._prepared: dict[int, tuple[Any, Any]] = {}

    def __repr__(self) -> str:
        inputs = ", ".join(f"{spec.name} {spec.dtype}{list(spec.shape)}" for spec in self.workload.inputs)
        return f"TunedKernel of {self.workload.name}: {inputs}"

    def __call__(self, *inputs: NDArray[Any]) -> Any:
        """Computes the outputs for these inputs.

        Raises:
            ValueError: The number, a shape or an element type of the inputs is wrong.
            ArtifactError: A kernel or a model has run in this process before it was forked.
        """
        check_threads()
        specs = self.workload.inputs
        if len(inputs) != len(specs):
            raise ValueError(f"{self.workload.name} takes {len(specs)} inputs, not {len(inputs)}")
        for spec, array in zip(specs, inputs, strict=True):
            if tuple(array.shape) != spec.shape or str(array.dtype) != spec.dtype:
                raise ValueError(
                    f"input {spec.name} must be {spec.dtype}{spec.shape}, not {array.dtype}{tuple(array.shape)}"
                )
        arguments = [self._argument(position, array) for position, array in enumerate(inputs)]
        outputs = [self._runtime.empty(spec.shape, spec.dtype) for spec in self.workload.outputs]
        self._call(*arguments, *outputs)
        results = [output.numpy() for output in outputs]
        return results[0] if len(results) == 1 else results

    def _argument(self, position: int, array: NDArray[Any]) -> Any:
        if position not in self.workload.constants:
            return self._runtime.tensor(np.ascontiguousarray(array))
        prepared = self._prepared.get(position)
        if prepared is None or prepared[0] is not array:
            transform = self.variant.transforms.get(position)
            laid_out = array if transform is None else evaluate(transform, [array])[0]
            prepared = (array, self._runtime.tensor(np.ascontiguousarray(laid_out)))
            self._prepared[position] = prepared
        return prepared[1]


class Runtime(Protocol):
    """The memory of a device, and how a built module becomes a callable on it."""

    def load(self, module: Any) -> Callable[..., object]:
        """The function of a module that was built for the device."""

    def tensor(self, array: NDArray[Any]) -> Any:
        """A copy of an array on the device."""

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """A tensor on the device whose elements are not defined. Its method `numpy` copies them to this process."""


def runtime_of(target: Machine) -> Runtime:
    """The runtime of a machine's device in this process: TVM's, or pyopencl.

    Raises:
        TargetError: This process has no such device.
    """
    device = target.local_device()
    return OpenClRuntime(device) if target.device == OPENCL else _TvmRuntime(device)


class _TvmRuntime:
    def __init__(self, device: Any) -> None:
        self._device = device

    def load(self, module: Any) -> Callable[..., object]:
        kernel = load_kernel(module)
        return lambda *arguments: kernel.call(*arguments)  # holds the module, too

    def tensor(self, array: NDArray[Any]) -> Any:
        return tvm.runtime.tensor(array, self._device)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        return tvm.runtime.empty(tuple(shape), dtype, self._device)


@dataclass(frozen=True)
class Kernel:
    """A compiled function.

    Args:
        call: Takes tensors in the order of the function's parameters and does not check them.
        module: Keeps the machine code alive.
    """

    call: Callable[..., object]
    module: Any


def compile_kernel(function: PrimFunc, target: Any) -> Kernel:
    """Compiles a scheduled function for a TVM target, to run in this process.

    Raises whatever TVM raises, and `TargetError` if the function needs what the target or this CPU lacks.
    """
    check_host(function)
    return load_kernel(build_module(function, target))


def compile_together(functions: Sequence[PrimFunc], target: Any) -> list[Kernel]:
    """Compiles functions for a TVM target that is a CPU, to run in this process: as `compile_kernel`, in one module.

    That takes some 30 ms less for each function but the first: what TVM adds to a module is compiled once.

    Raises whatever TVM raises if one of them cannot be compiled.
    """
    for function in functions:
        check_host(function)
        check_target(function, target)
    named = {f"main{position}": function for position, function in enumerate(functions)}
    module = _build_for_cpu(named, target)
    return [Kernel(module[name], module) for name in named]


def load_kernel(module: Any) -> Kernel:
    """The function `main` of a module. Looking it up makes LLVM generate the machine code."""
    return Kernel(module["main"], module)


def build_module(function: PrimFunc, target: Any) -> Any:
    """TVM's module of a scheduled function, for any machine that TVM knows; for OpenCL an `OpenClModule`.

    Raises whatever TVM raises, and `TargetError` if the function needs what the target lacks.
    """
    if str(target.kind.name) == OPENCL:
        return build_opencl(function, target)
    if str(target.kind.name) != "llvm":
        module = tvm.IRModule({"main": expand_for_gpu(function).with_attr("global_symbol", "main")})
        with tvm.transform.PassContext(config=gpu_pass_config(function)):
            return tvm.tirx.build(module, target.with_host("llvm"), pipeline=GPU_PIPELINE)
    check_target(function, target)
    return _build_for_cpu({"main": function}, target)


def _build_for_cpu(functions: Mapping[str, PrimFunc], target: Any) -> Any:
    module = tvm.IRModule({name: function.with_attr("global_symbol", name) for name, function in functions.items()})
    with tvm.transform.PassContext(config=PASS_CONFIG):
        return tvm.tirx.build(module, target, pipeline=PIPELINE)


def check_arguments(function: PrimFunc, arguments: Sequence[tuple[tuple[int, ...], str]]) -> None:
    """Checks that arguments fit the parameters of a function.

    Args:
        function: A scheduled function.
        arguments: The shape and the element type of each argument.

    Raises:
        ValueError: The number, a shape or an element type is wrong.
    """
    if len(function.params) != len(arguments):
        raise ValueError(f"the function has {len(function.params)} parameters, not {len(arguments)}")
    for position, (parameter, (shape, dtype)) in enumerate(zip(function.params, arguments, strict=True)):
        wanted = (shape_of(parameter), str(parameter.dtype))
        if wanted != (tuple(shape), dtype):
            raise ValueError(f"parameter {position} is {wanted[1]}{wanted[0]}, not {dtype}{tuple(shape)}")
