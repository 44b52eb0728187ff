"""A short label of the layers that a kernel computes, for a column of a table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_NUMBER = re.compile(r"\d+")


def layer_label(layers: Sequence[str], width: int | None = None) -> str:
    """The names of layers in one line: what the names have in common once, then what is left of each.

    A kernel that is called several times computes alike layers elsewhere. They are counted: the first one stands for
    all.

    Args:
        layers: The names, whose parts are separated by dots.
        width: The most characters. Names that do not fit are counted. None is no bound.

    Returns:
        The label; empty if there are no layers.

    Example:
        >>> layer_label(["features.4.conv", "features.4.norm", "features.4.relu"])
        'features.4: conv, norm, relu'
        >>> layer_label(["features.4.conv", "features.4.norm", "features.4.relu"], 24)
        'features.4.conv (+2)'
        >>> layer_label(["layer2.1.conv1", "layer2.1.relu", "layer2.2.conv1", "layer2.2.relu"])
        'layer2.1: conv1, relu (+2)'
        >>> layer_label(["features.4.conv"], 10)
        '…es.4.conv'
    """
    alike = (position for position, name in enumerate(layers) if position and _pattern(name) == _pattern(layers[0]))
    for count in range(next(alike, len(layers)), 0, -1):
        label = _together(layers[:count]) + _further(len(layers) - count)
        if width is None or len(label) <= width:
            return label
    if not layers or width is None:
        return ""
    further = _further(len(layers) - 1)
    kept = max(1, width - len(further) - 1)
    return f"…{layers[0][-kept:].lstrip('.')}{further}"[:width]


def with_layers(name: str, layers: Sequence[str], width: int | None = 60) -> str:
    """The name of a kernel with its layers, for messages.

    Args:
        name: The name of the kernel.
        layers: The names of the layers that it computes.
        width: The most characters of the layers. None is no bound.

    Example:
        >>> with_layers("fused_conv2d_relu", ["features.4.conv", "features.4.relu"])
        'fused_conv2d_relu (features.4: conv, relu)'
        >>> with_layers("matmul m=8 n=8 k=8", [])
        'matmul m=8 n=8 k=8'
    """
    label = layer_label(layers, width)
    return f"{name} ({label})" if label else name


def label_of(entry: Mapping[str, Any], width: int | None = None) -> str:
    """What people call the kernel of an entry of a document: its layers, or its name if they are not known.

    Args:
        entry: Has the kernel's `name` (or `task`), and perhaps its `layers`.
        width: The most characters of the layers. None is no bound.

    Example:
        >>> label_of({"name": "fused_conv2d_relu", "layers": ["features.4.conv", "features.4.relu"]})
        'features.4: conv, relu'
        >>> label_of({"task": "fused_conv2d_relu"})
        'fused_conv2d_relu'
    """
    return layer_label(entry.get("layers") or (), width) or str(entry["name"] if "name" in entry else entry["task"])


def labels_of(names: Iterable[str], layers: Iterable[Mapping[str, Any]], width: int | None = None) -> list[str]:
    """What people call the kernels of these names.

    Args:
        names: The names of kernels.
        layers: The entry `layers` of the model's document.
        width: The most characters of the layers of a kernel. None is no bound.

    Example:
        >>> labels_of(["fused_sort", "sort1"], [{"name": "top.sort", "kernels": ["fused_sort"]}])
        ['top.sort', 'sort1']
    """
    known = list(layers)
    return [
        layer_label([layer["name"] for layer in known if name in layer["kernels"]], width) or name for name in names
    ]


def _pattern(name: str) -> str:
    """The name without the numbers of its modules."""
    modules, _, last = name.rpartition(".")
    return f"{_NUMBER.sub('', modules)}.{last}"


def _together(names: Sequence[str]) -> str:
    common = _common([name.split(".") for name in names]) if len(names) > 1 else 0
    shown = ", ".join(".".join(name.split(".")[common:]) for name in names)
    return f"{'.'.join(names[0].split('.')[:common])}: {shown}" if common else shown


def _common(names: Sequence[Sequence[str]]) -> int:
    """How many parts all names begin with; at least one part of each is left."""
    shortest = min(len(parts) for parts in names) - 1
    for position in range(shortest):
        if len({parts[position] for parts in names}) > 1:
            return position
    return shortest


def _further(count: int) -> str:
    return f" (+{count})" if count else ""
