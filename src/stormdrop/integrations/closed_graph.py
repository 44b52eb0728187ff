"""A graph of Dynamo as a module that `torch.export` takes: weights are constants, and nothing is written in place.

    graph(x, w, keys): keys.index_copy_(...); return y   ->   module(x, keys): return y, keys as they are afterwards

Who calls the module copies what was written back to where the graph would have written it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..errors import one_line

_logger = logging.getLogger(__name__)

_IN_PLACE = ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")
"""Python's operators that write to their first argument."""


class ClosedGraph(torch.nn.Module):
    """A graph as a module that takes some of its inputs; the others are constants.

    It returns what the graph returns, then the inputs that the graph writes to, as they are afterwards.
    """

    def __init__(
        self, graph: torch.fx.GraphModule, arguments: Sequence[Any], inputs: Sequence[int], written: Sequence[int]
    ) -> None:
        """Makes the module.

        Args:
            graph: The graph.
            arguments: Its inputs in a call.
            inputs: The positions of those that the module takes.
            written: The positions of those that the graph writes to, which the module takes.
        """
        super().__init__()
        self._graph, self._inputs, self._written = graph, tuple(inputs), tuple(written)
        self._others: dict[int, Any] = {}
        for position, argument in enumerate(arguments):
            if position in self._inputs:
                continue
            if isinstance(argument, torch.Tensor):
                self.register_buffer(f"weight_{position}", argument.detach())
            else:
                self._others[position] = argument
        self._count = len(arguments)

    def forward(self, *tensors: Any) -> Any:
        given = dict(zip(self._inputs, tensors, strict=True))
        given |= {position: given[position].clone() for position in self._written}
        arguments = [
            given[position]
            if position in given
            else self._others[position]
            if position in self._others
            else getattr(self, f"weight_{position}")
            for position in range(self._count)
        ]
        returned = self._graph(*arguments)
        return (*returned, *(given[position] for position in self._written)) if self._written else returned


def closed(name: str, *arguments: Any) -> ClosedGraph:
    """A `ClosedGraph` of these arguments that messages call by this name."""
    made: ClosedGraph = type(name, (ClosedGraph,), {})(*arguments)
    return made


def name_of(graph: torch.fx.GraphModule) -> str:
    """The function that a graph is of, such as "forward of resnet.py"; "a graph" if Dynamo does not say so."""
    stack = getattr(getattr(graph, "compile_subgraph_reason", None), "user_stack", ())
    return f"{stack[0].name} of {Path(stack[0].filename).name}" if stack else "a graph"


def written_inputs(graph: torch.fx.GraphModule, arguments: Sequence[Any]) -> tuple[int, ...]:
    """The positions of the inputs that a graph writes to.

    The graph is run on tensors without elements, whose versions torch counts, unless no node of it can write.

    Args:
        graph: The graph.
        arguments: Its inputs in a call.
    """
    if not any(_may_write(node) for node in graph.graph.nodes):
        return ()
    from ..model.importer.torch_origin import silenced  # loads the importer, which most graphs do not need here

    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fake = [
            mode.from_tensor(one, static_shapes=True) if isinstance(one, torch.Tensor) else one for one in arguments
        ]
        before = [one._version if isinstance(one, torch.Tensor) else 0 for one in fake]
        try:
            with silenced():  # a graph prints what it raises
                graph(*fake)
        except Exception as error:  # noqa: BLE001  an operator that torch cannot follow: torch.export says so, too
            _logger.info("torch cannot tell which inputs a graph writes to: %s", one_line(error))
            return ()
    return tuple(
        position
        for position, one in enumerate(fake)
        if isinstance(one, torch.Tensor) and one._version != before[position]
    )


def reads_by_strides(graph: torch.fx.GraphModule) -> bool:
    """Whether a graph reads memory by strides: what it computes depends on how its inputs lie (`torch.as_strided`)."""
    graphs = (module.graph for module in graph.modules() if isinstance(module, torch.fx.GraphModule))
    nodes = (node for each in graphs for node in each.nodes if node.op in ("call_method", "call_function"))
    return any("as_strided" in _name(node) for node in nodes)


def lies_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies as one of its shape that was just made."""
    return bool(tensor.is_contiguous()) and tensor.storage_offset() == 0


class WrittenMemory:
    """Tells whether what a graph writes to shares memory with another input of it: in doubt, it does.

    What lies where it lay in the last call is not compared with the weights again.

    Args:
        weights: The tensors that are always the same, at the same place.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self._weights = [_reach(weight) for weight in weights]
        self._last: tuple[list[Any], list[_Reach] | None] = [], []  # where they lay; None if these shared memory

    def is_shared(self, written: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> bool:
        """Whether elements of a tensor that is written to may be elements of another one, too, or twice its own.

        Two columns of one matrix count as shared, because their elements lie between each other's.

        Args:
            written: The tensors that are written to, of the same shapes in each call.
            read: Those that are only read, without the weights.
        """
        places = [(one.data_ptr(), one.stride()) for one in written]
        before, reaches = self._last
        if places != before:
            reaches = [_reach(one) for one in written]
            if not all(map(_is_spread, written)) or _overlap(reaches, self._weights):
                reaches = None
            self._last = places, reaches
        if reaches is None:
            return True
        others = [_reach(one) for one in read]
        return any(begin < end and first < last for first, end in reaches for begin, last in others)


_Reach = tuple[int, int]
"""The addresses in bytes from which and up to which the elements of a tensor lie."""


def _reach(tensor: torch.Tensor) -> _Reach:
    begin, shape = tensor.data_ptr(), tensor.shape
    if 0 in shape:
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


def _overlap(written: Sequence[_Reach], read: Sequence[_Reach]) -> bool:
    """Whether one of those that are written overlaps another one of all."""
    end_of_written = end_of_any = 0
    for begin, end, is_written in sorted([*((*one, True) for one in written), *((*one, False) for one in read)]):
        if begin < (end_of_any if is_written else end_of_written):
            return True
        end_of_any = max(end_of_any, end)
        end_of_written = max(end_of_written, end) if is_written else end_of_written
    return False


def _is_spread(tensor: torch.Tensor) -> bool:
    """Whether no two elements of a tensor are the same, such as those of `expand`."""
    if tensor.is_contiguous():
        return True
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def _may_write(node: torch.fx.Node) -> bool:
    """Whether a node may write to one of its arguments: in doubt, it may."""
    if node.op == "call_module" or node.kwargs.get("inplace") or "out" in node.kwargs:
        return True
    if node.op not in ("call_method", "call_function"):
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    name = _name(node)
    in_place = name.endswith("_") and not name.endswith("__")
    positional = any(argument is True for argument in node.args)  # as in relu(x, True)
    return in_place or name in _IN_PLACE or positional or not name


def _name(node: torch.fx.Node) -> str:
    """The name of the method or function that a node calls; empty if it has none."""
    return str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", ""))
