"""Divides a graph into native nodes and onnxruntime parts, which are as large as possible and never form a cycle.

Each node has a level: native nodes have even ones, foreign nodes odd ones, and no node has a smaller one than what it
reads. All foreign nodes of a level are one part. A path between two nodes of one level stays in it, so a part
reads nothing that depends on itself.

    level   0               1              2         3
            Conv -> Relu -> LSTM    ---->  MatMul -> NonZero -> y
                      `---> Loop -> Add -----^                          Loop, Add and LSTM are one part
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import onnx

from . import contributed
from .nodes import names_read
from .standard import is_standard

_KERNELS = {
    *("Conv", "ConvInteger", "ConvTranspose", "DeformConv", "QLinearConv"),
    *("Attention", "Einsum", "Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"),
    *("GRU", "LSTM", "RNN"),
    *contributed.PRODUCTS,
}
"""Operators that are worth a crossing from and to an onnxruntime part. Between two parts, all others join them."""


@dataclass(frozen=True)
class Segment:
    """Foreign nodes of a graph that run together.

    Attributes:
        nodes: Their positions among the nodes of the graph, in its order.
        inputs: The values that they read from elsewhere, without constants.
        outputs: The values that are read elsewhere, or are outputs of the graph.
    """

    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Wiring:
    """Who computes what and who reads it in a graph, whose nodes are in order.

    Attributes:
        nodes: The nodes of the graph.
        constants: The values of `Constant` nodes and initializers.
        producers: The positions of the other nodes by what they compute.
        reads: For each node, the values that it reads: its inputs, and what its branches and bodies take from outside.
        outputs: The outputs of the graph.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.nodes = list(graph.node)
        self.constants = {tensor.name for tensor in graph.initializer}
        self.constants |= {name for node in graph.node if is_standard(node, "Constant") for name in node.output}
        self.producers = {
            name: position
            for position, node in enumerate(self.nodes)
            if not is_standard(node, "Constant")
            for name in node.output
        }
        outer = {*self.producers, *self.constants, *(value.name for value in graph.input)}
        self.reads = [[name for name in dict.fromkeys(names_read(node)) if name in outer] for node in self.nodes]
        self.outputs = [value.name for value in graph.output]
        self.readers: defaultdict[str, list[int]] = defaultdict(list)
        for position, names in enumerate(self.reads):
            for name in names:
                self.readers[name].append(position)

    def before(self, position: int) -> list[int]:
        """The nodes whose results a node reads."""
        return [self.producers[name] for name in self.reads[position] if name in self.producers]

    def segment(self, positions: Sequence[int]) -> Segment:
        """Nodes as an onnxruntime part."""
        inside = set(positions)
        made = [name for position in positions for name in self.nodes[position].output if name]
        read = dict.fromkeys(name for position in positions for name in self.reads[position])
        inputs = [name for name in read if name not in self.constants and self.producers.get(name) not in inside]
        outputs = [name for name in made if name in self.outputs or not inside.issuperset(self.readers[name])]
        return Segment(tuple(positions), tuple(inputs), tuple(outputs))


def divide(wiring: Wiring, foreign: set[int], may_cross: Callable[[str], bool]) -> Iterator[int | Segment]:
    """Divides a graph.

    Args:
        wiring: The graph.
        foreign: The positions of the nodes that cannot be native. Native nodes join them here: `Constant` nodes are
            neither.
        may_cross: Whether a value may be passed from one part to another: whether it is a tensor.

    Yields:
        Native nodes by position, and onnxruntime parts, in an order in which each comes after what it reads.
    """
    foreign = set(foreign)
    while joining := _joining(wiring, foreign, may_cross):
        foreign |= joining
    levels = _levels(wiring, foreign)
    by_level: defaultdict[int, list[int]] = defaultdict(list)
    for position, level in levels.items():
        by_level[level].append(position)
    for level in sorted(by_level):
        if level % 2:
            yield wiring.segment(by_level[level])
        else:
            yield from by_level[level]


def _levels(wiring: Wiring, foreign: set[int]) -> dict[int, int]:
    levels: dict[int, int] = {}
    for position, node in enumerate(wiring.nodes):
        if not is_standard(node, "Constant"):
            level = max((levels[other] for other in wiring.before(position)), default=0)
            levels[position] = level + (level % 2 != (position in foreign))
    return levels


def _joining(wiring: Wiring, foreign: set[int], may_cross: Callable[[str], bool]) -> set[int]:
    """Native nodes between two onnxruntime parts that cost less than the crossings, or that no tensor would cross."""
    levels = _levels(wiring, foreign)
    for name, position in wiring.producers.items():
        if position in foreign and not may_cross(name):
            last = max((levels[reader] for reader in wiring.readers[name]), default=0)
            between = {other for other, level in levels.items() if levels[position] < level < last}
            if between - foreign:
                return between - foreign
    joining: set[int] = set()
    for region in _regions(wiring, foreign, levels):
        after = {reader for position in region for reader in _readers(wiring, position)} - region
        before = {other for position in region for other in wiring.before(position)} - region
        enclosed = before & foreign and after & foreign
        if enclosed and not any(wiring.nodes[position].op_type in _KERNELS for position in region):
            joining |= region
    return joining


def _regions(wiring: Wiring, foreign: set[int], levels: dict[int, int]) -> list[set[int]]:
    """The connected sets of native nodes of each level."""
    region: dict[int, set[int]] = {}
    for position in levels:
        if position in foreign:
            continue
        region[position] = {position}
        for other in wiring.before(position):
            if levels[other] == levels[position] and region[other] is not region[position]:
                small, large = sorted((region[other], region[position]), key=len)
                large |= small
                region.update(dict.fromkeys(small, large))
    return list({id(members): members for members in region.values()}.values())


def _readers(wiring: Wiring, position: int) -> list[int]:
    return [reader for name in wiring.nodes[position].output for reader in wiring.readers[name]]
