"""Makes one graph of the imports of a model at several sizes: what is equal in them is there once.

    batch 1: conv (8x8 pixels), dense        tasks: conv, dense, conv_size4, dense_size4
    batch 4: conv, dense

Structurally equal functions are one task, whichever sizes call them. A task's weight is the sum over all sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm
from tvm import tirx

from ...errors import ModelError
from ...runtime.program import FUNCTION
from ..artifact.onnxruntime_parts import OnnxruntimeParts
from ..graph.graph import Graph
from ..graph.renaming import joined


def together(graphs: Sequence[Graph]) -> Graph:
    """Makes one graph of several sizes of a model.

    Args:
        graphs: The model at each size, the main size first.

    Returns:
        The graph of the main size, with those of the other sizes as `others`. All of them have the same tasks and the
        same onnxruntime parts.

    Raises:
        ModelError: The model has other outputs at another size.
    """
    first = graphs[0]
    if len(graphs) == 1:
        return first
    for graph in graphs[1:]:
        if [info.name for info in graph.inputs + graph.outputs] != [info.name for info in first.inputs + first.outputs]:
            raise ModelError(f"{first.name}: its inputs or outputs have other names at size {_label(graph, graphs)}")
    foreign, positions = _parts(graphs)
    taken: set[str] = set()
    mods = []
    for position, (graph, parts) in enumerate(zip(graphs, positions, strict=True)):
        names = _kernel_names(graph.mod, f"_size{_label(graph, graphs)}" if position else "", taken)
        taken.update(names.values())
        names |= {f"{FUNCTION}{old}": f"{FUNCTION}{new}" for old, new in enumerate(parts)}
        mods.append(joined([(graph.mod, names)]))
    layers = tuple(dict.fromkeys(layer for graph in graphs for layer in graph.layers.all))
    sizes = [replace(graph, foreign=foreign, layers=graph.layers.among(layers)) for graph in graphs]
    return replace(sizes[0], others=tuple(sizes[1:])).rewritten(mods)


def _label(graph: Graph, graphs: Sequence[Graph]) -> str:
    """The sizes of a graph that differ from those of the others, such as "4" or "4x32"."""
    differing: dict[tuple[int, ...], int] = {}  # the size of this graph, by the sizes that all graphs have there
    for position, info in enumerate(graph.inputs):
        for axis, size in enumerate(info.shape):
            sizes = tuple(other.inputs[position].shape[axis] for other in graphs)
            if len(set(sizes)) > 1:
                differing[sizes] = size
    return "x".join(map(str, differing.values()))


def _kernel_names(mod: tvm.IRModule, suffix: str, taken: set[str]) -> dict[str, str]:
    """New names of the functions of a module that are in use by no other module."""
    names: dict[str, str] = {}
    for variable, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc):
            name = f"{variable.name_hint}{suffix}"
            while name in taken or name in names.values():
                name += "_"
            names[variable.name_hint] = name
    return names


def _parts(graphs: Sequence[Graph]) -> tuple[OnnxruntimeParts, list[list[int]]]:
    """The different onnxruntime parts of all graphs, and where those of each graph are among them."""
    from ..artifact.artifact_files import part_file

    index_of: dict[bytes, int] = {}
    reports = []
    positions: list[list[int]] = []
    for graph in graphs:
        positions.append([])
        for report, model in zip(graph.foreign.reports, graph.foreign.models, strict=True):
            if model not in index_of:
                index_of[model] = len(index_of)
                reports.append(replace(report, file=part_file(index_of[model])))
            positions[-1].append(index_of[model])
    return OnnxruntimeParts(reports, list(index_of)), positions
