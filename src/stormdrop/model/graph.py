"""ONNX -> Relax -> folded, channels-last, fused: a graph of calls to a few distinct kernels, the tasks.

    ONNX     Conv(x, w, b) -> Add(_, y) -> Relu
    Relax    fused_conv2d_add_add_relu(x in NHWC, w in OHWI, b, y)

The model's inputs and outputs keep the user's names and layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from ..errors import ModelError
from .constants import fold_layouts
from .metadata import TensorInfo
from .onnx_graph import load_onnx
from .tasks import Task, extract_tasks, simplify_functions
from .views import simplify_views

_CHANNELS_LAST = {"relax.nn.conv2d": ["NHWC", "OHWI"]}


@dataclass(frozen=True)
class Graph:
    """A model as kernel calls.

    `mod` holds the Relax function `main` and the TensorIR functions that it calls; `tasks` are the distinct ones.
    `inputs` and `outputs` are in the order in which `main` takes and gives them. `source` is the model as it was
    read, to verify against.
    """

    name: str
    mod: tvm.IRModule
    tasks: tuple[Task, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    source: onnx.ModelProto


def load_graph(model: str | Path | onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Graph:
    """Read an ONNX model into a graph.

    `shapes` gives inputs of dynamic shape their sizes. Raises `ModelError`, one line, for a file that cannot be
    read, a shape that stays open, and an operator that is not supported.
    """
    read = load_onnx(model, shapes)
    try:
        mod = _optimise(from_onnx(read.cleaned, keep_params_in_input=False, sanitize_input_names=True))
    except Exception as error:
        # The importer and the passes raise many types, from Python's own to TVM's; all mean that this model is
        # outside what they take.
        raise ModelError(f"{read.name}: cannot be imported: {_first_line(error)}") from error
    mod = simplify_functions(mod)
    return Graph(read.name, mod, extract_tasks(mod), read.inputs, read.outputs, read.source)


def _optimise(mod: tvm.IRModule) -> tvm.IRModule:
    passes = relax.transform
    # The passes only legalise for a kind of target; what depends on the machine comes with the schedules.
    with tvm.target.Target("llvm"), tvm.transform.PassContext(opt_level=3):
        for step in (
            passes.CanonicalizeBindings(),
            passes.DecomposeOpsForInference(),
            fold_layouts,
            passes.FoldConstant(),
            passes.ConvertLayout(_CHANNELS_LAST),
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


def _first_line(error: Exception) -> str:
    lines: list[Any] = [line.strip() for line in str(error).splitlines() if line.strip()]
    return str(lines[-1] if lines else type(error).__name__)
