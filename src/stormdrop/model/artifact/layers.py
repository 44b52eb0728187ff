"""The layers of a model: the computing nodes of what it was imported from, and the calls of kernels that compute them.

    Conv /features/4/conv/Conv, Relu /features/4/relu/Relu     ->     one call of fused_conv2d_relu

Profiles, tables and messages name kernels by them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NUMBER = re.compile(r"_\d+$")


@dataclass(frozen=True)
class Layer:
    """A computing node of the model that was imported: a node of ONNX, an operator of torch or of Relax.

    Attributes:
        name: A readable name that no other layer has, such as "features.4.conv".
        operator: What it computes, such as "Conv".
        node: What the model itself calls it, such as "/features/features.4/conv/Conv".
    """

    name: str
    operator: str
    node: str


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel, or of a part that onnxruntime runs, in an execution of a model.

    Attributes:
        kernel: The name of the kernel in the program.
        layers: The positions of the layers that it computes, in their order.
    """

    kernel: str
    layers: tuple[int, ...]


def path_of(node: str, operator: str) -> tuple[str, str]:
    """The module that a node of a model belongs to, and what is left of the node's name.

    Exporters write the modules as a path, whose last part is the operator, perhaps with a number.

    Args:
        node: The name of the node.
        operator: Its operator.

    Example:
        >>> path_of("/features/features.4/features.4.conv/Conv", "Conv")
        ('features.4.conv', 'Conv')
        >>> path_of("/layer1/layer1.0/Add_1", "Add")
        ('layer1.0', 'Add_1')
        >>> path_of("conv1", "Conv")
        ('conv1', '')
    """
    parts = [part for part in node.split("/") if part]
    rest = parts.pop() if len(parts) > 1 and _NUMBER.sub("", parts[-1]) == operator else ""
    # A module inside a sequence repeats the name of the sequence.
    kept = [part for part, after in zip(parts, [*parts[1:], ""], strict=True) if not after.startswith(f"{part}.")]
    return ".".join(kept), rest


def layers_of(nodes: Sequence[tuple[str, str, str, str]]) -> tuple[Layer, ...]:
    """The layers of a model, with readable names.

    Args:
        nodes: For each layer its module and what else names it there, as `path_of` returns them, its operator, and what
            the model calls it.

    Returns:
        The layers. The second one of a name gets "#2" at its end.

    Example:
        >>> [layer.name for layer in layers_of([("a.conv", "Conv", "Conv", "x"), ("a", "Add", "Add", "y")])]
        ['a.conv', 'a.Add']
    """
    operators: defaultdict[str, set[str]] = defaultdict(set)
    for path, _, operator, _ in nodes:
        operators[path].add(operator)
    containers = containers_of(operators)
    taken: Counter[str] = Counter()
    layers = []
    for path, rest, operator, node in nodes:
        # The name of a module is enough if the module computes one thing. A number says nothing about it.
        enough = len(operators[path]) == 1 and path not in containers and not path.rpartition(".")[2].isdigit()
        name = path if path and (enough or not rest) else f"{path}.{rest}".strip(".")
        taken[name] += 1
        if taken[name] > 1:
            name = f"{name}#{taken[name]}"
        layers.append(Layer(name, operator, node))
    return tuple(layers)


def containers_of(paths: Iterable[str]) -> set[str]:
    """The modules that others of these are parts of.

    Example:
        >>> sorted(containers_of(["a.b.conv", "a.c"]))
        ['a', 'a.b']
    """
    parts = [path.split(".") for path in paths]
    return {".".join(each[:length]) for each in parts for length in range(1, len(each))}
