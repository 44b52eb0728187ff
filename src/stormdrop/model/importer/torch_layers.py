"""The operators of an exported torch program as layers, and which variables of its import they are."""

from __future__ import annotations

import operator
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
        The layers, and which of them each binding of `main` computes. A call of a layer of torch, such as a Linear, is
        one, whatever it consists of. All other operators are called after the module whose code they stand in.
    """
    nodes = _computing(program)
    modules = {node: _module(node) for node in nodes}
    containers = containers_of(path for _, path, _ in modules.values())
    calls: dict[Any, list[Any]] = {}  # the nodes of each call of a layer of torch; others are layers by themselves
    for node, (call, path, kind) in modules.items():
        is_layer = kind.startswith("torch.nn.") and path not in containers
        calls.setdefault(call if is_layer else node, []).append(node)
    described, position_of = [], dict[Any, int]()
    for position, (call, members) in enumerate(calls.items()):
        _, path, kind = modules[members[0]]
        name = _operator(call) if call is members[0] else kind.rpartition(".")[2]
        described.append((path, name, name, members[0].name))
        position_of.update(dict.fromkeys(members, position))
    layers = layers_of(described)
    tuples = {each.var: each.value for each in bindings_of(mod["main"]) if isinstance(each.value, relax.Tuple)}
    variables: dict[Any, int] = {}
    for node, position in position_of.items():
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


def _module(node: Any) -> tuple[str, str, str]:
    """The innermost module that a node belongs to: its call, its path such as "layer1.0.conv1", and its class.

    All are empty for the model itself. Each call of a module has a name of its own.
    """
    stack = list(node.meta.get("nn_module_stack", {}).items())
    if not stack:
        return "", "", ""
    call, (path, kind) = stack[-1]
    return str(call), str(path), kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"


def _operator(node: Any) -> str:
    """The name of what a node calls, such as "conv2d" of `aten.conv2d.default`."""
    name = getattr(node.target, "_opname", None) or getattr(node.target, "__name__", str(node.target))
    return str(name).partition(".")[0]
