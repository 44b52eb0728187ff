"""Imports whatever a user has as a model: an ONNX file or model, a torch module or exported program, a Relax module.

A file may be hostile, so ONNX is imported in a child process with bounds. A torch module or a Relax module is an object
of the user's own process, which has run the user's code already: it is imported in this process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx
import tvm

from ...errors import ModelError
from ..inputs.combinations import GivenShapes, all_shapes
from ..inputs.inputs import Values
from .isolated import import_graph
from .together import together

if TYPE_CHECKING:
    from ..graph.graph import Graph

Model: TypeAlias = Any
"""A path, an `onnx.ModelProto`, a `torch.nn.Module`, a `torch.export.ExportedProgram` or a Relax `tvm.IRModule`."""


def import_model(
    model: Model, shapes: GivenShapes | None = None, example_inputs: Any = None, values: Values | None = None
) -> Graph:
    """Imports a model.

    Args:
        model: The model.
        shapes: The shapes of inputs whose shape the model leaves open, by input name. In the place of a size there may
            be several: the graph then has one form for each; see `combinations`.
        example_inputs: The inputs of a torch module: a tuple of its positional arguments, or a mapping of those that
            it takes by name. Values do not matter, shapes and types do.
        values: The values of inputs of an ONNX model that become constants, by input name.

    Raises:
        ModelError: The model is none of these, it cannot be read, a shape is open, or an operator is not supported. The
            message is one line.
    """
    if values and not isinstance(model, str | Path | onnx.ModelProto):
        raise ModelError(f"values: only an ONNX model takes them, not {_described(model)}")
    torch = sys.modules.get("torch")  # whoever has a torch object has loaded torch
    if torch is not None and isinstance(model, torch.nn.Module | torch.export.ExportedProgram):
        from .torch_module import dimension_names, import_torch

        torch_shapes = all_shapes(shapes, lambda: dimension_names(model), type(model).__name__)
        return together([import_torch(model, example_inputs, given) for given in torch_shapes])
    if example_inputs is not None:
        raise ModelError(f"example_inputs: only a torch module takes them, not {_described(model)}")
    if isinstance(model, tvm.IRModule):
        from .relax_module import dimension_names as names_in_relax
        from .relax_module import import_relax

        relax_shapes = all_shapes(shapes, lambda: names_in_relax(model), "the Relax module")
        return together([import_relax(model, given) for given in relax_shapes])
    if isinstance(model, str | Path | onnx.ModelProto):
        return import_graph(model, shapes, values)
    raise ModelError(
        f"{_described(model)} is no model: give the path of an ONNX file, an onnx.ModelProto, a torch.nn.Module with "
        f"example_inputs, a torch.export.ExportedProgram, or a Relax tvm.IRModule"
    )


def _described(model: Model) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"
