"""The operators of an exported torch program as layers, and which variables of its import they are."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping
from typing import Any

import tvm
from torch.export.graph_signature import InputKind
from tvm import relax

from ..artifact.layers import Layer, containers_of, layers_of
from ..graph.expressions import bindings_of


def layers_of_program(
    program: Any, made: Mapping[Any, Any], mod: tvm.IRModule
) -> tuple[tuple[Layer, ...], list[frozenset[int] | None]]:
    """The layers of an exported program.

    Args:
        program: The program.
        made: The variable of the import that each node of its graph has become.
        mod: The import.

    Returns:
        The layers, called after the modules that they belong to, and which of them each binding of `main` computes.
    """
    nodes = _computing(program)
    stacks = [list(node.meta.get("nn_module_stack", {}).values()) for node in nodes]
    paths = [str(stack[-1][0]) if stack else "" for stack in stacks]
    in_module, containers = Counter(paths), containers_of(paths)
    kinds = [
        _kind(stack[-1][1]) if path not in containers and path and in_module[path] == 1 else _operator(node)
        for node, path, stack in zip(nodes, paths, stacks, strict=True)
    ]
    layers = layers_of([(path, kind, kind, node.name) for path, kind, node in zip(paths, kinds, nodes, strict=True)])
    tuples = {each.var: each.value for each in bindings_of(mod["main"]) if isinstance(each.value, relax.Tuple)}
    variables: dict[Any, int] = {}
    for position, node in enumerate(nodes):
        variable = made.get(node)
        for each in tuples[variable].fields if variable in tuples else [variable]:
            if isinstance(each, relax.Var):
                variables.setdefault(each, position)  # a node that does nothing is the variable that it reads
    found = [variables.get(binding.var) for binding in bindings_of(mod["main"])]
    return layers, [None if position is None else frozenset([position]) for position in found]


def _computing(program: Any) -> list[Any]:
    """The nodes of a program that depend on its inputs, without those that take elements of tuples."""
    given = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT}
    depend: set[Any] = set()
    for node in program.graph.nodes:
        if node.name in given or depend.intersection(node.all_input_nodes):
            depend.add(node)
    return [
        node
        for node in program.graph.nodes
        if node.op == "call_function" and node in depend and node.target is not operator.getitem
    ]


def _kind(module: Any) -> str:
    """The name of the class of a module, such as "Conv2d"."""
    return str(getattr(module, "__name__", module)).rpartition(".")[2]


def _operator(node: Any) -> str:
    """The name of what a node calls, such as "conv2d" of `aten.conv2d.default`."""
    name = getattr(node.target, "_opname", None) or getattr(node.target, "__name__", str(node.target))
    return str(name).partition(".")[0]
