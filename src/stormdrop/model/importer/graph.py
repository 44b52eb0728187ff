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
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import from_onnx

from ...errors import ModelError, one_line
from ..metadata import TensorInfo
from ..passes.broadcast import expand_constants
from ..passes.constants import fold_layouts
from ..passes.gathers import clip_indices
from ..passes.powers import expand_powers
from ..passes.views import simplify_views, static_shape
from .onnx_model import OnnxGraph, load_onnx
from .tasks import Task, extract_tasks, simplify_functions

_LAYOUTS = {
    "relax.nn.conv2d": ["NHWC", "OHWI"],
    # Without this entry it would follow its neighbours into NHWC, for which it has no lowering.
    "relax.nn.conv2d_transpose": ["NCHW", "IOHW"],
}


@dataclass(frozen=True)
class Graph:
    """A model as kernel calls.

    Attributes:
        name: The name of the model.
        mod: The Relax function `main` and the TensorIR functions that it calls.
        tasks: The distinct TensorIR functions.
        inputs: The inputs, in the order in which `main` takes them.
        outputs: The outputs, in the order in which `main` returns them.
        source: The ONNX model as it was read, to verify the compiled model against.
    """

    name: str
    mod: tvm.IRModule
    tasks: tuple[Task, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    source: onnx.ModelProto

    @property
    def constant_bytes(self) -> int:
        """The size of all weights together, in bytes."""
        sizes: list[int] = []

        def visit(node: Any) -> None:
            if isinstance(node, GenericConst):
                sizes.append(math.prod(node.value.shape) * node.value.dtype.itemsize)

        relax.analysis.post_order_visit(self.mod["main"], visit)
        return sum(sizes)


def load_graph(model: str | Path | onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Graph:
    """Import an ONNX model.

    Args:
        model: The path of an ONNX file, or a model in memory.
        shapes: The shapes of inputs whose shape the model leaves open, by input name.

    Raises:
        ModelError: The file cannot be read, a shape is open, or an operator is not supported. The message is one line.
    """
    read = load_onnx(model, shapes)
    try:
        mod = _optimise(_imported(read.cleaned))
    except Exception as error:
        # The importer and the passes raise many types, from Python's own to TVM's. Each of them means that the model
        # has something that they do not support.
        raise ModelError(f"{read.name}: cannot be imported: {one_line(error)}") from error
    mod = simplify_functions(mod)
    outputs = _outputs(mod, read)
    return Graph(read.name, mod, extract_tasks(mod), read.inputs, outputs, read.source)


def _imported(model: onnx.ModelProto) -> tvm.IRModule:
    """The model as Relax code. What the importer warns about and prints is dropped."""
    # It warns about every name that is no identifier, and prints to standard output before it raises.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return from_onnx(model, keep_params_in_input=False, sanitize_input_names=True)


def _optimise(mod: tvm.IRModule) -> tvm.IRModule:
    passes = relax.transform
    # The passes need a target to choose implementations for. What depends on the machine is decided by schedules.
    with tvm.target.Target("llvm"), tvm.transform.PassContext(opt_level=3):
        for step in (
            clip_indices,
            expand_powers,
            passes.CanonicalizeBindings(),
            passes.DecomposeOpsForInference(),
            fold_layouts,
            passes.FoldConstant(),
            expand_constants,
            passes.ConvertLayout(_LAYOUTS),
            passes.Normalize(),
            fold_layouts,
            passes.FoldConstant(),
            passes.OptimizeLayoutTransform(),
            simplify_views,
            passes.DeadCodeElimination(),
            passes.LegalizeOps(),
            passes.AnnotateTIROpPattern(),
            passes.FoldConstant(),
            passes.FuseOps(),
            passes.FuseTIR(),
            passes.RewriteDataflowReshape(),
            passes.DeadCodeElimination(),
        ):
            mod = step(mod)
    return mod


def _outputs(mod: tvm.IRModule, read: OnnxGraph) -> tuple[TensorInfo, ...]:
    """The outputs with names from the model, and with shapes and types from the import, as models may omit these."""
    result = mod["main"].ret_ty
    types = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    outputs = []
    for name, tensor in zip(read.outputs, types, strict=True):
        shape = static_shape(tensor)
        if shape is None:
            raise ModelError(f"{read.name}: the shape of output {name!r} depends on data and is not supported")
        outputs.append(TensorInfo(name, shape, str(tensor.dtype)))
    return tuple(outputs)
