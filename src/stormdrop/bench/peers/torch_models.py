"""torch as a contender for ONNX models: eager, and compiled by its inductor. onnx2torch converts the graph."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from importlib import metadata as packages
from typing import Any, ClassVar
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from ...errors import one_line
from ...model.importer.onnx_model import load_onnx
from ...tuning.options import BF16, FLOAT32, FP16, TF32
from ..contender import Unavailable

Array = NDArray[Any]


class EagerModel:
    """Eager, with images that are channels-last in memory."""

    library: ClassVar[str] = "torch"
    compiled: ClassVar[bool] = False

    def __init__(self, model: bytes, inputs: Mapping[str, Array], threads: int, precision: str = FLOAT32) -> None:
        import onnx
        import torch

        # onnx2torch does not need torchvision's operators, whose CUDA part cannot be loaded with a torch for CPUs.
        with mock.patch("torch.library.register_fake", return_value=lambda function: function):
            import onnx2torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        given = onnx.load_from_string(model)
        self.versions = {"torch": torch.__version__, "onnx2torch": packages.version("onnx2torch")}
        self.settings = {"threads": threads, "compiled": self.compiled, "precision": precision}
        # In the cleaned graph, constants are folded and dropouts are gone: onnx2torch supports more such graphs, and
        # they run faster.
        reasons = []
        for cleaned in (True, False):
            try:
                graph = load_onnx(given).cleaned if cleaned else given
                weights = {tensor.name for tensor in graph.graph.initializer}
                names = [value.name for value in graph.graph.input if value.name not in weights]
                tensors = [torch.from_numpy(inputs[name]) for name in names]
                module = _with_known_shapes(torch, onnx2torch.convert(graph).eval(), tensors)
                self._prepare(torch, module, tensors)
                self.run()
            except Exception as error:  # noqa: BLE001
                # onnx2torch raises NotImplementedError for an unknown operator; its converters, the graph's operators
                # and the compiler may raise anything.
                reasons.append(one_line(error))
            else:
                return
        raise Unavailable(f"{self.library} does not run the model: {'; as it was written: '.join(reasons)}")

    def _prepare(self, torch: Any, module: Any, tensors: list[Any]) -> None:
        """Makes of a module and its inputs what is timed."""
        precision = str(self.settings["precision"])
        if precision not in (FLOAT32, TF32):
            low = {BF16: torch.bfloat16, FP16: torch.float16}[precision]
            module = module.to(low)
            tensors = [tensor.to(low) if tensor.is_floating_point() else tensor for tensor in tensors]
        if any(tensor.ndim == 4 for tensor in tensors):
            module = module.to(memory_format=torch.channels_last)
            tensors = [
                tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
                for tensor in tensors
            ]
        self._module, self._inputs = self._compile(torch, module), tensors

    def _compile(self, torch: Any, module: Any) -> Any:
        return module

    def run(self) -> object:
        return self._module(*self._inputs)

    def outputs(self) -> list[Array]:
        results: Any = self.run()
        values = list(results) if isinstance(results, tuple | list) else [results]
        numbers = [value.float() if value.is_floating_point() else value for value in values]
        return [np.ascontiguousarray(value.numpy()) for value in numbers]


class InductorModel(EagerModel):
    """Compiled by torch's inductor, with weights that are frozen into the graph and packed."""

    compiled = True
    mode: ClassVar[str | None] = None

    def _compile(self, torch: Any, module: Any) -> Any:
        import torch._inductor.config as inductor

        inductor.freezing = True
        return torch.compile(module, mode=self.mode)


_RESHAPING = ("OnnxReshape", "OnnxSqueezeDynamicAxes", "OnnxUnsqueezeDynamicAxes")


def _with_known_shapes(torch: Any, module: Any, tensors: Sequence[Any]) -> Any:
    """Replaces reshapes and slices that take tensors by ones that take numbers, for inputs of these shapes.

    onnx2torch's modules look into the tensors. torch's compiler and exporter do not trace that.
    """
    from torch.fx.passes.shape_prop import ShapeProp

    try:
        ShapeProp(module).propagate(*tensors)
    except RuntimeError as error:  # it names the node alone; what the node raised is the cause
        raise error.__cause__ or error from None
    for node in list(module.graph.nodes):
        call = _with_numbers(torch, module, node) if node.op == "call_module" else None
        if call is not None:
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.call_function(*call))
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _with_numbers(torch: Any, module: Any, node: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """The function and its arguments that do what a node does without tensors of numbers; None if there are none."""
    kind = type(module.get_submodule(node.target)).__name__
    shape = tuple(node.meta["tensor_meta"].shape) if kind in (*_RESHAPING, "OnnxSlice") else ()
    if kind in _RESHAPING:
        return torch.reshape, (node.args[0], shape)
    if kind == "OnnxSlice" and not node.kwargs and all(argument.op == "get_attr" for argument in node.args[1:]):
        numbers = [operator.attrgetter(argument.target)(module).tolist() for argument in node.args[1:]]
        slices = _slices(len(shape), *numbers)
        return None if slices is None else (operator.getitem, (node.args[0], slices))
    return None


def _slices(
    rank: int, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] = (), steps: Sequence[int] = ()
) -> tuple[slice, ...] | None:
    """The index of a tensor that does what ONNX' Slice does with these inputs; None for steps that torch refuses."""
    slices = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes or range(rank), steps or [1] * rank, strict=False):
        if step < 1:
            return None
        slices[axis] = slice(start, end, step)
    return tuple(slices)
