"""Imports a torch module: torch exports it as a graph of its core operators, which TVM translates to Relax.

    torch     Linear(x) -> GELU
    exported  linear = permute, addmm(bias, x, w); gelu(linear)
    Relax     matmul(x, w) + bias, gelu

The weights go from torch to TVM in memory. If TVM does not know an operator, the exported program becomes an ONNX model
by `torch.onnx`, which is imported as all others are.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from ...errors import ModelError, one_line, shown
from ...runtime.sizes import TensorInfo
from ..graph.graph import Graph
from ..graph.layers import numbered
from ..graph.open_blocks import end_blocks
from ..inputs.combinations import Shapes
from ..inputs.ranges import Ranges, as_places
from ..inputs.torch_places import written_places
from ..onnx.index_ranges import index_ranges as onnx_index_ranges
from .import_onnx import graph_of
from .isolated import import_graph
from .relax_module import index_ranges, simplified
from .torch_converters import CONVERTERS
from .torch_layers import layers_of_program
from .torch_origin import TorchOrigin, inference

_logger = logging.getLogger(__name__)


def import_torch(model: Any, example_inputs: Any = None, shapes: Shapes | None = None) -> Graph:
    """Imports a torch module or an exported program.

    Args:
        model: A `torch.nn.Module`, imported as it is for inference, or a `torch.export.ExportedProgram`.
        example_inputs: The inputs of a module: a tuple of positional arguments, a mapping of arguments by name, or one
            tensor.
        shapes: The shapes of inputs whose sizes an exported program leaves open, by input name.

    Raises:
        ModelError: torch does not export the module, the inputs are no tensors, a size is open, or an operator is not
            supported.
    """
    if isinstance(model, torch.nn.Module):
        name = type(model).__name__
        if shapes:
            raise ModelError(
                f"{name}: the shapes of a torch module are those of example_inputs; leave shapes out, or give what "
                f"torch.export makes of the module with dynamic_shapes"
            )
        arguments, named = _arguments(name, example_inputs)
        program = _exported(name, model, arguments, named)
        module = model
    else:
        module = model.module()
        name = _name_of(model)
        if example_inputs is not None:
            raise ModelError(f"{name}: an exported program has its inputs already; leave example_inputs out")
        program = _with_sizes(name, model, module, shapes or {})
    return _imported(name, module, program)


def dimension_names(model: Any) -> dict[str, list[str | None]]:
    """What an exported program calls the open dimensions of its inputs, by input; nothing for a module."""
    if isinstance(model, torch.nn.Module):
        return {}
    values = {node.name: node.meta.get("val") for node in model.graph.nodes if node.op == "placeholder"}
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    return {
        name: [None if isinstance(size, int) else str(size) for size in value.shape] for name, value in tensors.items()
    }


# The way of torch


def _arguments(name: str, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of a module. Raises `ModelError` if they are none."""
    if example_inputs is None:
        raise ModelError(f"{name}: a torch module needs example_inputs, such as (torch.zeros(1, 3, 224, 224),)")
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    if isinstance(example_inputs, Mapping):
        arguments, named = (), dict(example_inputs)
    elif isinstance(example_inputs, tuple | list):
        arguments, named = tuple(example_inputs), {}
    else:
        raise ModelError(
            f"{name}: example_inputs is a {type(example_inputs).__name__}; give a tuple of torch tensors, or a mapping "
            f"of them by the names of the arguments"
        )
    leaves = torch.utils._pytree.tree_leaves((arguments, named))
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor | int | float | bool | str | None):
            raise ModelError(
                f"{name}: example_inputs holds a {type(leaf).__module__}.{type(leaf).__name__}; give torch tensors "
                f"(torch.from_numpy makes one of an array)"
            )
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise ModelError(f"{name}: example_inputs holds no torch tensor")
    return arguments, named


def _exported(name: str, module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    with inference(module), _quiet():
        try:
            return torch.export.export(module, arguments, named, strict=False)
        except Exception as error:
            # The module's own code runs here, and raises whatever it raises.
            raise ModelError(f"{name}: torch.export does not export it: {_reason(error)}") from error


def _with_sizes(name: str, program: Any, module: Any, shapes: Shapes) -> Any:
    """An exported program in which no size is open. Raises `ModelError` if one stays open, or is wrong."""
    tensors = {spec.arg.name: spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT}
    for unknown in sorted(set(shapes) - set(tensors)):
        raise ModelError(f"{name}: has no input {shown(unknown)!r}; its inputs are {', '.join(map(repr, tensors))}")
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    given: list[Any] = []
    is_open = False
    for key, spec in tensors.items():
        value = values[key]
        if isinstance(spec.arg, ConstantArgument):
            given.append(spec.arg.value)
            continue
        open_axes = [axis for axis, size in enumerate(value.shape) if not isinstance(size, int)]
        is_open |= bool(open_axes)
        shape = tuple(shapes.get(key, value.shape))
        if len(shape) != value.ndim:
            raise ModelError(f"{name}: input {key!r} has {value.ndim} dimensions, not {len(shape)}")
        for axis, size in enumerate(value.shape):
            if axis in open_axes and key not in shapes:
                example = "x".join("N" if other in open_axes else str(n) for other, n in enumerate(value.shape))
                raise ModelError(
                    f"{name}: dimension {axis} ({size}) of input {key!r} has no size; give the shape of that input, as "
                    f"in shapes={{{key!r}: ({example.replace('x', ', ')})}}"
                )
            if axis not in open_axes and shape[axis] != size:
                raise ModelError(f"{name}: dimension {axis} of input {key!r} is {size}, not {shape[axis]}")
        given.append(torch.zeros(shape, dtype=value.dtype))
    if not is_open:
        return program
    arguments, named = torch.utils._pytree.tree_unflatten(given, program.call_spec.in_spec)
    return _exported(name, module, arguments, named)


# The way to Relax


def _imported(name: str, module: Any, program: Any) -> Graph:
    _refuse_types(name, program)
    with _quiet():
        try:
            decomposed = program.run_decompositions()
        except Exception as error:
            # As in `_exported`.
            raise ModelError(f"{name}: torch does not decompose it: {_reason(error)}") from error
    _refuse_mutation(name, decomposed)
    origin = TorchOrigin(name, module, program)
    origin.places = written_places(decomposed)
    try:
        graph = _by_tvm(name, decomposed, origin)
    except ModelError as error:
        _logger.warning("%s; it is imported as an ONNX model instead", error)
        return _by_onnx(name, program, origin)
    origin.other_import = functools.partial(_by_onnx, name, program, origin)  # in case that TVM's import is wrong
    return graph


def _by_tvm(name: str, decomposed: Any, origin: TorchOrigin) -> Graph:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    program = _tensors_only(decomposed)
    importer = ExportedProgramImporter()
    with _quiet():
        try:
            # As `from_exported_program` does, which does not tell which variable is which node.
            mod = importer.from_exported_program(program, False, False, False, dict(CONVERTERS))
        except Exception as error:
            # It raises AssertionError, KeyError and others for what it does not know.
            end_blocks(importer.block_builder)
            raise ModelError(f"{name}: TVM does not import the exported program: {_reason(error)}") from error
    origin.ranges = _with_places(index_ranges(mod, origin.input_names), origin.places)
    inputs = tuple(
        TensorInfo(key, tuple(int(extent) for extent in variable.ty.shape.values), str(variable.ty.dtype))
        for key, variable in zip(origin.input_names, mod["main"].params, strict=True)
    )
    layers, of_bindings = layers_of_program(program, importer.env, mod)
    mod, marks = simplified(*numbered(mod, of_bindings))
    return graph_of(mod, marks, name, inputs, origin.output_names, origin, layers)


def _by_onnx(name: str, program: Any, origin: TorchOrigin) -> Graph:
    names = {"input_names": list(origin.input_names), "output_names": list(origin.output_names)}
    with _quiet():
        try:
            model = torch.onnx.export(program, dynamo=True, verbose=False, **names).model_proto
        except Exception as error:
            # The exporter raises its own types, and those of onnxscript and protobuf.
            raise ModelError(f"{name}: torch.onnx does not export it: {_reason(error)}") from error
    model.graph.name = name
    origin.ranges = _with_places(onnx_index_ranges(model), origin.places)
    graph = import_graph(model)
    origin.onnx, origin.other_import = graph.source, None
    return replace(graph, source=origin)


def _with_places(ranges: Ranges, places: Mapping[str, tuple[int, int, bool]]) -> Ranges:
    """What is known of the values of inputs, some of which are places of an axis that is written to."""
    return {**ranges, **{name: as_places(ranges.get(name), *known) for name, known in places.items()}}


def _refuse_mutation(name: str, program: Any) -> None:
    """Raises `ModelError` if the model keeps something from one call to the next, or changes its inputs."""
    for spec in program.graph_signature.output_specs:
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            what = "buffer" if spec.kind is OutputKind.BUFFER_MUTATION else "input"
            raise ModelError(f"{name}: changes its {what} {spec.target!r} when it runs, which a compiled model cannot")


def _refuse_types(name: str, program: Any) -> None:
    """Raises `ModelError` if an input or a weight has a type that NumPy lacks: the model could not be verified."""
    for node in program.graph.nodes:
        dtype = getattr(node.meta.get("val"), "dtype", None)
        if node.op == "placeholder" and dtype in (torch.bfloat16, torch.complex32):
            what = f"{node.name!r} is {str(dtype).removeprefix('torch.')}"
            raise ModelError(f"{name}: {what}, which is not supported; convert the module with .float()")


def _tensors_only(program: Any) -> Any:
    """A program without the inputs and outputs that are constants, such as None: TVM's importer fails for them."""
    signature, graph = program.graph_signature, program.graph
    constants = {
        spec.arg.name
        for spec in signature.input_specs
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, ConstantArgument)
    }
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.name in constants:
            graph.erase_node(node)
    signature.input_specs[:] = [spec for spec in signature.input_specs if spec.arg.name not in constants]
    (output,) = [node for node in graph.nodes if node.op == "output"]
    kept = [
        (value, spec)
        for value, spec in zip(output.args[0], signature.output_specs, strict=True)
        if not isinstance(spec.arg, ConstantArgument)
    ]
    output.args = (tuple(value for value, _ in kept),)
    signature.output_specs[:] = [spec for _, spec in kept]
    return program


def _name_of(program: Any) -> str:
    """The name of the class that was exported, if the program still knows it."""
    for node in program.graph.nodes:
        for _, kind in node.meta.get("nn_module_stack", {}).values():
            return str(kind).rpartition(".")[2]
    return "model"


def _reason(error: BaseException) -> str:
    return one_line(error.__cause__ or error)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drops what torch and TVM warn about and print: nothing of it is about the user's input."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
