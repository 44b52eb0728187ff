"""Imports an ONNX model as a graph of calls to a few distinct kernels, the tasks.

TVM's frontend translates the model to Relax. There its constants are folded, its images become channels-last, and its
operators are fused:

    ONNX     Conv(x, w, b) -> Add(_, y) -> Relu
    Relax    fused_conv2d_add_add_relu(x in NHWC, w in OHWI, b, y)

The model's inputs and outputs keep the user's names and layouts.
"""

from __future__ import annotations

import contextlib
import io
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import tvm
from tvm import relax

from ...errors import ModelError, one_line, shown
from ...runtime.sizes import TensorInfo
from ..artifact.layers import Layer
from ..graph.expressions import bindings_of, operator_name, part_index
from ..graph.flow import Marks
from ..graph.graph import Graph
from ..graph.layers import Layers, Trace, Traced, renumbered
from ..graph.origin import Origin
from ..graph.tasks import extract_tasks, simplify_functions
from ..inputs.inputs import Values
from ..onnx.rewrites.code_layers import with_code_layers
from ..onnx.rewrites.grouped_heads import with_grouped_heads
from ..onnx.rewrites.narrow import decode_narrow
from ..onnx.rewrites.qdq import with_byte_layers
from ..onnx.sizes import is_too_large, too_large
from ..onnx.source import described
from ..onnx.weights import KERNEL_TYPES
from ..passes.batch_norms import fold_batch_norms
from ..passes.broadcast import expand_constants
from ..passes.byte_contractions import mark_byte_contractions
from ..passes.constants import fold_constants
from ..passes.copies import remove_copies
from ..passes.first_layers import without_transposed_images
from ..passes.gathers import clip_indices
from ..passes.legalize import legalize
from ..passes.powers import expand_powers
from ..passes.shuffles import move_shuffles
from ..passes.small_results import keep_small_results
from ..passes.upsampling import OPERATOR as UPSAMPLING
from ..passes.upsampling import as_products, only_upsamples
from ..passes.views import simplify_views, static_shape
from .failing_operator import failing_operator, operator_of
from .node_layers import layers_of_nodes, marks_of_nodes
from .partition import NotNative, import_with_parts

if TYPE_CHECKING:
    from .onnx_model import OnnxGraph

_CHANNELS_LAST = {"relax.nn.conv2d": ["NHWC", "OHWI"]}


def load_graph(
    model: str | Path | onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Values | None = None,
    name: str | None = None,
    weights: Path | None = None,
) -> Graph:
    """Imports an ONNX model in this process, without any bound: for files that are trusted. See `isolated`.

    The arguments are those of `read_source`. The file `weights` has to stay as long as the graph's source is used.

    Raises:
        ModelError: The file cannot be read, a shape is open, or an operator is not supported. The message is one line.
    """
    # This loads onnxscript, which a process that leaves the import to a child need not have.
    from .onnx_model import load_onnx

    read = load_onnx(model, shapes, values, name, weights)
    (mod, layers), foreign, shapes_of_open = import_with_parts(read, _converted)
    return Graph(
        read.name,
        mod,
        extract_tasks([mod], [layers]),
        read.inputs,
        _outputs(mod, read.name, read.outputs, shapes_of_open),
        read.source,
        read.converted,
        read.ignored,
        foreign,
        layers=layers,
    )


def graph_of(
    mod: tvm.IRModule,
    marks: Marks,
    name: str,
    inputs: tuple[TensorInfo, ...],
    outputs: tuple[str, ...],
    source: Origin,
    layers: Sequence[Layer],
) -> Graph:
    """Makes a graph of a Relax module that another importer made.

    Args:
        mod: Its function `main` computes the model; its weights are constants.
        marks: Which of the `layers` the variables of `main` compute, by `key_of`.
        name: The name of the model.
        inputs: The parameters of `main`.
        outputs: The names of what `main` returns.
        source: Where the module comes from.
        layers: The computing nodes of the model.

    Raises:
        ModelError: An operator is not supported, or the shape of an output depends on data. The message is one line.
    """
    try:
        final, found = _simplified(mod, marks, layers, name)
        tasks = extract_tasks([final], [found])
        return Graph(name, final, tasks, inputs, _outputs(final, name, outputs), source, layers=found)
    except ModelError:
        raise
    except Exception as error:
        # As in `load_graph`.
        raise ModelError(f"{name}: cannot be imported: {one_line(error)}") from error


def _converted(read: OnnxGraph) -> Traced:
    """The model as calls of kernels. Raises `NotNative` for what the importer and the passes do not support."""
    try:
        mod, layers = _simplified(*_imported(read), layers_of_nodes(read.source), read.name)
        _check_static(mod, read)
    except ModelError:
        raise
    except Exception as error:
        # The importer and the passes raise many types, from Python's own to TVM's. Each of them means that the model
        # has something that they do not support.
        raise NotNative(f"{read.name}: cannot be imported: {one_line(error)}") from error
    return Traced(mod, layers)


def _simplified(mod: tvm.IRModule, marks: Marks, layers: Sequence[Layer], name: str) -> Traced:
    """The module as calls of kernels, and which of the layers each of these computes."""
    mod, marks = _optimise(mod, marks, name)
    mod, marks = renumbered(simplify_functions(mod), marks)
    return Traced(mod, Layers.of(layers, mod, marks))


def _check_static(mod: tvm.IRModule, read: OnnxGraph) -> None:
    """Raises `NotNative` for an output that is no tensor, or of a wrong type, and for a shape that is not fixed."""
    result = mod["main"].ret_ty
    kinds = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    if len(kinds) != len(read.outputs) or not all(isinstance(kind, relax.TensorType) for kind in kinds):
        raise NotNative(f"{read.name}: an output is no tensor")
    for value, kind in zip(read.cleaned.graph.output, kinds, strict=True):
        declared = KERNEL_TYPES.get(value.type.tensor_type.elem_type)
        if declared not in (None, str(kind.dtype)):
            raise NotNative(f"{read.name}: output {shown(value.name)!r} is imported as {kind.dtype}, not {declared}")
    for value in (binding.value for binding in bindings_of(mod["main"])):
        kernel = isinstance(value, relax.Call) and part_index(value) is None
        types = value.ty.fields if isinstance(value.ty, relax.TupleType) else [value.ty]
        if kernel and any(static_shape(kind) is None for kind in types):
            operator = operator_of(value)
            raise NotNative(f"{read.name}: the shape of the result of operator {operator} depends on data")


def _imported(read: OnnxGraph) -> tuple[tvm.IRModule, Marks]:
    """The model as Relax code, and the layers of its variables. What the importer warns about and prints is dropped."""
    from .frontend import from_onnx

    # It warns about every name that is no identifier, and prints to standard output before it raises.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            model = with_grouped_heads(decode_narrow(with_code_layers(with_byte_layers(read.cleaned))))
            mod, names = from_onnx(model)
        except Exception as error:
            node = _node_of(error)
            if node is None:
                raise
            raise NotNative(f"{read.name}: {described(node)} cannot be imported: {one_line(error)}", node) from error
    _check_sizes(mod, read.name)
    return mod, marks_of_nodes(read.source, model, names)


def _check_sizes(mod: tvm.IRModule, name: str) -> None:
    """Raises `ModelError` for the first tensor that is larger than the memory: folding would compute some of them."""
    for binding in bindings_of(mod["main"]):
        shape = static_shape(binding.var.ty)
        if shape is not None and is_too_large(shape, 1):
            raise ModelError(f"{name}: the result of operator {operator_of(binding.value)} has {too_large(shape)}")


def _node_of(error: BaseException) -> onnx.NodeProto | None:
    """The node that the importer was translating when it raised; its own errors do not name it."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        node = frame.f_locals.get("node")
        found = node if isinstance(node, onnx.NodeProto) else found
    return found


def _optimise(mod: tvm.IRModule, marks: Marks, name: str) -> tuple[tvm.IRModule, Marks]:
    """The module with fused kernels, and the layers of its variables."""
    passes, trace = relax.transform, Trace(mod, marks)
    # The passes need a target to choose implementations for. What depends on the machine is decided by schedules.
    with tvm.target.Target("llvm"), tvm.transform.PassContext(opt_level=3):
        for step in (
            fold_batch_norms,
            clip_indices,
            expand_powers,
            keep_small_results,
            passes.CanonicalizeBindings(),
            passes.DecomposeOpsForInference(),
            fold_constants,
            expand_constants,
            _with_channels_last,
            passes.Normalize(),
            fold_constants,
            passes.OptimizeLayoutTransform(),
            as_products,
            simplify_views,
            move_shuffles,
            without_transposed_images,
            passes.DeadCodeElimination(),
            legalize,
            mark_byte_contractions,
            passes.AnnotateTIROpPattern(),
            passes.FoldConstant(),
            passes.FuseOps(),
            passes.FuseTIR(),
            passes.RewriteDataflowReshape(),
            remove_copies,
            passes.DeadCodeElimination(),
        ):
            try:
                mod = step(mod)
            except Exception as error:
                operator = failing_operator(mod, step)
                if operator is None:
                    raise
                raise NotNative(f"{name}: {operator} is not supported: {one_line(error)}") from error
            trace.follow(mod)
    return mod, trace.marks


def _with_channels_last(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with images whose channels are the last axis, as far as their operators can take them so."""
    calls = {operator_name(binding.value) for binding in bindings_of(mod["main"])}
    if calls.isdisjoint((*_CHANNELS_LAST, UPSAMPLING)):
        return mod  # the pass takes a time with the square of the number of bindings: seconds for a recurrent layer
    # TVM lowers a transposed convolution with channels first only, and without an entry it follows its neighbours.
    transposed = ["NHWC" if only_upsamples(mod) else "NCHW", "IOHW"]
    return relax.transform.ConvertLayout({**_CHANNELS_LAST, UPSAMPLING: transposed})(mod)


def _outputs(
    mod: tvm.IRModule, model: str, names: tuple[str, ...], open_shapes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[TensorInfo, ...]:
    """The outputs with names from the model, and with shapes and types from the import, as models may omit these.

    `open_shapes` are those that depend on data, which only a part that onnxruntime runs may make.
    """
    result = mod["main"].ret_ty
    types = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    known = open_shapes or {}
    outputs = []
    for name, tensor in zip(names, types, strict=True):
        shape = static_shape(tensor)
        if shape is None and name not in known:
            raise ModelError(f"{model}: the shape of output {name!r} depends on data and is not supported")
        if (dtype := str(tensor.dtype)) not in KERNEL_TYPES.values():
            raise ModelError(
                f"{model}: output {name!r} is {dtype}, which is not supported; outputs are "
                f"{', '.join(KERNEL_TYPES.values())}"
            )
        outputs.append(TensorInfo(name, known[name] if shape is None else shape, dtype))
    return tuple(outputs)
