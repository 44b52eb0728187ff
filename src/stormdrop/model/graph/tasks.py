"""The tasks of a graph: its distinct kernels, how often each is called, and which of its inputs are constants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GenericConst, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize, Schedule

from ...report.layer_label import with_layers
from .expressions import bindings_of, calls_kernel
from .layers import Layers, named_calls


@dataclass(frozen=True, eq=False)
class Task:
    """A distinct TensorIR function of a graph.

    Attributes:
        index: Its position among the tasks of the graph.
        name: The name of its first callee.
        function: The function with the symbol "main" and without tuning attributes, so that equal tasks of different
            models are equal.
        weight: How often the model calls it, at all of its sizes together.
        constants: The positions of the arguments that are constants in every call.
        callees: Its names in the graph's module and in those of the other sizes. A module may hold equal functions
            under several names.
        layers: The names of the layers that its calls compute, in the order of the calls. They are no part of what is
            tuned: kernels of equal work in different layers are one task.
    """

    index: int
    name: str
    function: tirx.PrimFunc
    weight: int
    constants: tuple[int, ...]
    callees: tuple[str, ...]
    layers: tuple[str, ...] = ()

    @property
    def described(self) -> str:
        """Its name and its layers, for messages: "fused_conv2d_relu (features.4: conv, relu)"."""
        return with_layers(self.name, self.layers)


def extract_tasks(mods: Sequence[tvm.IRModule], layers: Sequence[Layers] = ()) -> tuple[Task, ...]:
    """The tasks of modules, in the order of their first call. Structurally equal functions are one task.

    Args:
        mods: A model, or one at several sizes. No two of the modules have a function of one name.
        layers: Those of each module.
    """
    names: dict[str, dict[str, None]] = defaultdict(dict)
    for mod, known in zip(mods, layers, strict=False):
        for callee, of_call in named_calls(mod, known):
            names[callee].update(dict.fromkeys(of_call))
    calls: dict[str, list[relax.Call]] = defaultdict(list)
    groups: dict[tvm_ffi.StructuralKey, list[str]] = defaultdict(list)
    for mod in mods:
        for call in kernel_calls(mod):
            callee = call.args[0].name_hint
            if callee not in calls:
                groups[tvm_ffi.StructuralKey(normalise(mod[callee]))].append(callee)
            calls[callee].append(call)
    tasks = []
    for index, (key, callees) in enumerate(groups.items()):
        sites = [call for callee in callees for call in calls[callee]]
        arguments = zip(*(call.args[1].fields for call in sites), strict=True)
        constants = tuple(
            position
            for position, values in enumerate(arguments)
            if all(isinstance(value, GenericConst) for value in values)
        )
        of_task = tuple(dict.fromkeys(name for callee in callees for name in names[callee]))
        tasks.append(Task(index, callees[0], key.key, len(sites), constants, tuple(callees), of_task))
    return tuple(tasks)


def kernel_calls(mod: tvm.IRModule) -> list[relax.Call]:
    """All calls of `main` to TensorIR functions, in order."""
    return [binding.value for binding in bindings_of(mod["main"]) if calls_kernel(binding.value)]


def normalise(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with the symbol "main" and without attributes of passes, which differ between models."""
    for attribute in list(function.attrs.keys() if function.attrs else ()):
        if attribute != "tirx.noalias":
            function = function.without_attr(attribute)
    return function.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)


def simplify_functions(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with every block that only copies, such as a padding by zero elements, inlined into its reader."""
    simplified = tvm.IRModule(dict(mod.functions.items()))
    for variable, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc):
            simplified.update_func(variable, _inline_copies(function))
    return simplified


def has_nests(function: tirx.PrimFunc) -> bool:
    """Whether a function is a sequence of loop nests. TVM writes a scatter as one opaque block, which has none."""
    body = function.body
    return isinstance(body, SBlockRealize) and body.block.name_hint == "root"


def _inline_copies(function: tirx.PrimFunc) -> tirx.PrimFunc:
    if not has_nests(function):
        return function
    schedule = Schedule(tvm.IRModule({"main": function}))
    inlined = False
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        statement = schedule.get(block)
        if _is_copy(statement) and schedule.get_consumers(block):
            schedule.compute_inline(block)
            inlined = True
    return schedule.mod["main"] if inlined else function


def _is_copy(block: SBlock) -> bool:
    """Whether a block only stores B[i, j] = A[i, j]."""
    body = block.body
    return (
        isinstance(body, tirx.BufferStore)
        and isinstance(body.value, TensorLoad)
        and len(body.indices) == len(body.value.indices)
        and all(a.same_as(b) for a, b in zip(body.indices, body.value.indices, strict=True))
    )
