"""Which inputs of an exported program say where something is written, as in a static cache of keys and values.

places = begin + arange(3);  keys.index_copy_(2, places, new)     ->     begin is from 0 to the length of keys minus 3
"""

from __future__ import annotations

from typing import Any

import torch

_KEEPS = ("_to_copy", "_unsafe_view", "alias", "clone", "permute", "squeeze", "unsqueeze", "view")
"""Operators of torch whose output holds every element of their first input, once."""

_SUMS = ("index_add", "scatter_add", "scatter_reduce")
"""Operators of torch that sum up, or reduce, what is written to one place along an axis."""

_WRITES = ("index_copy", "index_fill", "scatter", *_SUMS)
"""Operators of torch that write to places along an axis: their second input is the axis, their third the places."""


def written_places(program: Any) -> dict[str, tuple[int, int, bool]]:
    """Finds the inputs whose elements, perhaps with numbers added, are places of an axis that is written to.

    Args:
        program: An exported program with torch's core operators.

    Returns:
        By the name of the input the least value with which all is written inside of the axis, the first one after the
        largest, and whether what is written to one place is summed up.
    """
    inputs = {node: (node.name, 0, 0) for node in program.graph.nodes if node.op == "placeholder"}
    numbers: dict[Any, tuple[int, int]] = {}
    found: dict[str, tuple[int, int, bool]] = {}
    for node in program.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        operator = node.target._schema.name.rpartition("::")[2]
        if operator in _KEEPS:
            if (source := node.args[0]) in inputs:
                inputs[node] = inputs[source]
            elif source in numbers:
                numbers[node] = numbers[source]
        elif operator == "arange":
            _count_up(node, numbers)
        elif operator in ("add", "sub"):
            _shift(node, operator == "sub", inputs, numbers)
        for axis, places in _writes(operator, node):
            if places in inputs and not places.meta["val"].dtype.is_floating_point:
                name, least, most = inputs[places]
                first, end = max(0, -least), int(node.args[0].meta["val"].shape[axis]) - most
                before = found.get(name, (first, end, True))
                found[name] = max(first, before[0]), min(end, before[1]), before[2] and _sums(operator, node)
    return {name: known for name, known in found.items() if known[0] < known[1]}


def _count_up(node: Any, numbers: dict[Any, tuple[int, int]]) -> None:
    """Takes the numbers of a node that counts up, the least and the largest."""
    start, end, *step = (0, *node.args) if len(node.args) == 1 else node.args
    values = [value for value in (start, end, *step) if isinstance(value, int)]
    if len(values) == 2 + len(step) and (counted := range(*values)):
        numbers[node] = min(counted), max(counted)


def _shift(
    node: Any, negative: bool, inputs: dict[Any, tuple[str, int, int]], numbers: dict[Any, tuple[int, int]]
) -> None:
    """Takes the output of a node that adds numbers to an input, or takes them from it."""
    first, second = node.args[:2]
    if node.kwargs.get("alpha", 1) != 1:
        return
    for one, other in [(first, second)] if negative else [(first, second), (second, first)]:
        added = (other, other) if isinstance(other, int) else numbers.get(other)
        if isinstance(one, torch.fx.Node) and one in inputs and added is not None:
            name, least, most = inputs[one]
            low, high = (-added[1], -added[0]) if negative else added
            inputs[node] = name, least + low, most + high
            return


def _writes(operator: str, node: Any) -> list[tuple[int, Any]]:
    """The axes that a node writes to, each with its places."""
    if operator in ("index_put", "_unsafe_index_put"):
        pairs = list(enumerate(node.args[1]))
    elif operator in _WRITES:
        pairs = [(node.args[1], node.args[2])]
    else:
        return []
    return [(axis, places) for axis, places in pairs if places is not None and not _is_mask(places)]


def _sums(operator: str, node: Any) -> bool:
    """Whether a node that writes sums up, or reduces, what comes to one place."""
    accumulates = operator in ("index_put", "_unsafe_index_put") and len(node.args) > 3 and bool(node.args[3])
    return operator in _SUMS or accumulates


def _is_mask(places: Any) -> bool:
    return bool(places.meta["val"].dtype is torch.bool)
