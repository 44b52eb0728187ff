"""A schedule as people read it: how its axes are split, and its loops in order with what each of them is.

The steps are read off the scheduled function, so they are those of every sketch, whatever made it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.s_tir import transform
from tvm.target import codegen
from tvm.tirx import AllocBuffer, AttrStmt, BufferStore, Evaluate, For, ForKind, IfThenElse, PrimFunc, SeqStmt

from ..errors import UnsupportedFunction
from ..ir.expressions import coefficients, loads_in
from .contract import Variant

_KINDS = {
    ForKind.SERIAL: "for",
    ForKind.PARALLEL: "parallel",
    ForKind.VECTORIZED: "vectorised",
    ForKind.UNROLLED: "unrolled",
}

_SCOPES = {
    "local": "in registers or on the stack",
    "shared": "in shared memory",
    "shared.dyn": "in shared memory",
    "wmma.accumulator": "in fragments of tensor cores",
    "wmma.matrix_a": "in fragments of tensor cores",
    "wmma.matrix_b": "in fragments of tensor cores",
}
"""Where buffers are, by their scope. Those of other scopes are in memory."""

_MOST_STATEMENTS = 400
"""Statements after which the rest is left out: a kernel of a Winograd convolution has thousands that are alike."""


def steps(variant: Variant) -> str:
    """What a schedule does, as lines.

    Args:
        variant: The schedule.

    Returns:
        What is packed ahead of time, how axes are split, and the loops: one line each, those inside of it indented.
    """
    lines = [
        f"pack      input {index} once, ahead of time, into {_shape(function.params[-1])}"
        for index, function in sorted(variant.transforms.items())
    ]
    function = _plain(variant.main)
    lines += _splits(function)
    lines += ["loops"]
    for count, (line, equal) in enumerate(groupby(_loops(function.body, "  "))):
        if count == _MOST_STATEMENTS:
            lines.append("  ... and more; --show tir shows all of it")
            break
        times = sum(1 for _ in equal)
        lines.append(f"{line}  ({times} times)" if times > 1 else line)
    return "\n".join(lines)


def _plain(function: PrimFunc) -> PrimFunc:
    """The loops of a function, without the blocks that TVM schedules by."""
    passes = [
        transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(),
        transform.CompactBufferAllocation(),
        transform.LowerOpaqueBlock(),
        tirx.transform.StmtSimplify(),
    ]
    return tvm.transform.Sequential(passes)(tvm.IRModule({"main": function}))["main"]


# How axes are split


def _splits(function: PrimFunc) -> list[str]:
    """How each axis of each output is made up of loops, and which loops only sum."""
    outputs = {parameter.name for parameter in function.params}
    found: dict[tuple[str, int], str] = {}
    for store, loops in _stores(function.body, {}):
        if store.buffer.name not in outputs:
            continue
        for axis, index in enumerate(store.indices):
            parts = _parts(index, loops)
            if len(parts) > 1:
                extent = store.buffer.shape[axis]
                product = " x ".join(parts)
                found.setdefault(
                    (store.buffer.name, axis), f"split     {store.buffer.name}[{axis}] {extent} = {product}"
                )
    return list(found.values())


def _parts(index: Any, loops: Mapping[Any, For]) -> list[str]:
    """The loops that an index is made of, the outermost first, with what each is."""
    try:
        factors = coefficients(index, set(loops)) or {}
    except UnsupportedFunction:
        return []
    ordered = sorted(factors, key=lambda variable: -abs(factors[variable]))
    return [_short(loops[variable]) for variable in ordered if factors[variable] and int(loops[variable].extent) > 1]


def _short(loop: For) -> str:
    kind = _kind(loop)
    return f"{loop.extent}" if kind == "for" else f"{loop.extent} {kind}"


def _stores(statement: Any, loops: Mapping[Any, For]) -> Iterator[tuple[BufferStore, Mapping[Any, For]]]:
    """Every store, with the loops around it by their variables."""
    if isinstance(statement, BufferStore):
        yield statement, loops
    elif isinstance(statement, For):
        constant = isinstance(statement.extent, IntImm)
        yield from _stores(statement.body, {**loops, statement.loop_var: statement} if constant else loops)
    else:
        for inner in _inside(statement):
            yield from _stores(inner, loops)


def _inside(statement: Any) -> list[Any]:
    """The statements inside of a statement."""
    if isinstance(statement, SeqStmt):
        return list(statement.seq)
    if isinstance(statement, IfThenElse):
        return [statement.then_case] + ([statement.else_case] if statement.else_case is not None else [])
    return [statement.body] if hasattr(statement, "body") else []


# The loops


def _loops(statement: Any, indent: str) -> Iterator[str]:
    if isinstance(statement, For):
        yield f"{indent}{_kind(statement)} {statement.extent}  ({statement.loop_var.name}){_annotations(statement)}"
        yield from _loops(statement.body, indent + "  ")
    elif isinstance(statement, BufferStore):
        yield f"{indent}{_store(statement)}"
    elif isinstance(statement, AllocBuffer):
        yield f"{indent}{_allocation(statement.buffer)}"
    elif isinstance(statement, IfThenElse):
        yield f"{indent}if {statement.condition}"
        yield from _loops(statement.then_case, indent + "  ")
        if statement.else_case is not None:
            yield f"{indent}else"
            yield from _loops(statement.else_case, indent + "  ")
    elif isinstance(statement, AttrStmt):
        if statement.attr_key == "thread_extent":
            yield f"{indent}on {statement.node.thread_tag} {statement.value}"
            indent += "  "
        yield from _loops(statement.body, indent)
    elif isinstance(statement, Evaluate):
        if isinstance(statement.value, Call):
            yield f"{indent}{_called(statement.value)}"
    else:
        for inner in _inside(statement):
            yield from _loops(inner, indent)


def _kind(loop: For) -> str:
    if loop.kind == ForKind.THREAD_BINDING:
        return f"on {loop.thread_binding.thread_tag}"
    return _KINDS[loop.kind]


def _annotations(loop: For) -> str:
    kept = [f"{name}={value}" for name, value in loop.annotations.items() if isinstance(value, int | IntImm)]
    return f" {', '.join(kept)}" if kept else ""


def _store(store: BufferStore) -> str:
    """A store by the buffers that it writes and reads."""
    own = store.buffer.name
    loaded = [load.source.name for load in loads_in(store.value)]
    if own not in loaded:
        return f"{own} = {' '.join(dict.fromkeys(loaded)) or 'a constant'}"
    loaded.remove(own)
    update = _UPDATES.get(type(store.value), "is updated with")
    return f"{own} {update} {' '.join(dict.fromkeys(loaded)) or 'a constant'}"


_UPDATES = {prim.Add: "+=", prim.Max: "max=", prim.Min: "min="}
"""What a store does to the value that it replaces, by the expression."""


def _allocation(buffer: Any) -> str:
    where = _SCOPES.get(buffer.scope(), "in memory")
    return f"keeps {buffer.name}: {_shape(buffer)} {buffer.dtype} {where}"


def _called(call: Call) -> str:
    name = str(getattr(call.op, "name", call.op)).removeprefix("tirx.").removeprefix("tir.")
    if name in {"call_llvm_intrin", "call_llvm_pure_intrin"}:
        name = codegen.llvm_get_intrinsic_name(int(call.args[0]))
    return f"calls {name}"


def _shape(buffer: Any) -> str:
    """The shape of a buffer without leading axes of one element."""
    extents = list(map(str, buffer.shape))
    while len(extents) > 1 and extents[0] == "1":
        del extents[0]
    return "x".join(extents)
