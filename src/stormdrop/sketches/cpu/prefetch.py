"""Fetches a constant operand ahead while the kernel computes, as a knob.

Inside a model, weights come from memory. A contraction reads them panel by panel (the columns of a tile). Its
first tile waits for the panel, the others find it in a cache, so that loading and computing follow each other. With the
knob, the steps of the reduction over one panel fetch the next one, a line at a time.

The lines have to be spread. A core has some twenty of them under way; fetched in a burst at the beginning of a tile
they take as long as the tile would have waited, and nothing is gained. Spread over the steps they took a dense layer of
49 x 512 x 2048 from 659 to 545 us on a Zen 3, which is its time with weights in the caches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir.prim.expr import IntImm
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import AttrStmt, Evaluate, For, ForKind, PrimFunc, SeqStmt

from ...ir.expressions import Expr, loads_in, substitute, transform_statement, variables
from ...ir.stages import shape_of
from ...machine.cpu import Cpu
from ...space import Knob, Ordinal

PREFETCH = "prefetch"
"""The name of the knob: 1 if each panel of the column operand, or block of one, is fetched while another is used."""

LINE = 64
"""Bytes of a cache line."""

_PART = 1 / 8
"""Of a second cache: in models, loading so much still shows. 1x1 convolutions with 256 KB to 1 MB of weights from the
last cache take 5 to 15% longer on a Sapphire Rapids, whose second cache has 2 MB, if nothing is fetched ahead."""

_READ, _SECOND_CACHE, _DATA = 0, 2, 1  # operands of LLVM's prefetch instruction


def prefetch_knob(size: int, target: Cpu) -> list[Knob]:
    """The knob, if it may make a difference: if a constant operand is no small part of a second cache.

    Args:
        size: The bytes of the operand as it is laid out ahead of time; 0 if it is no constant.
        target: The machine. There is no knob if the size of its second cache is not known.

    Returns:
        The knob, or no knob.
    """
    return [Ordinal(PREFETCH, [0, 1])] if 0 < _PART * target.l2 <= size else []


def fetch_statements(panel: Callable[[Expr], Any], elements: int, steps: int, step: Expr) -> list[Any]:
    """The statements of one step that fetch its share of a panel.

    Args:
        panel: The load of the element at a position in the panel.
        elements: How many there are.
        steps: The steps that share the work.
        step: The number of this step.
    """
    itemsize = np.dtype(str(panel(IntImm("int32", 0)).ty.dtype)).itemsize
    lines = -(-elements * itemsize // LINE)
    each = -(-lines // steps)
    first = step * each if each > 1 else step // (steps // lines)
    flags = [IntImm("int32", flag) for flag in (_READ, _SECOND_CACHE, _DATA)]
    return [
        Evaluate(
            tirx.call_llvm_intrin(
                "void", "llvm.prefetch", tirx.address_of(panel((first + number) * (LINE // itemsize))), *flags
            )
        )
        for number in range(each)
    ]


def with_prefetch(kernel: PrimFunc, operand: Any, column_tile: str, row_tile: str | None) -> PrimFunc:
    """A kernel whose reduction fetches the next panel of an operand.

    Args:
        kernel: A scheduled function with the block "contraction_update".
        operand: The packed buffer; in memory a panel is all that follows the index of its column tile.
        column_tile: The name of the axis over tiles of columns.
        row_tile: The name of the axis over tiles of rows that runs inside of the axis over tiles of columns in the
            parallel loop, so that all of its tiles have one panel; None if there is no such axis.
    """
    found = _find(kernel.body, ())
    assert found is not None
    loops, realize = found
    block = realize.block
    at = dict(zip((axis.var for axis in block.iter_vars), realize.iter_values, strict=True))
    axes = {axis.var.name: axis for axis in block.iter_vars}
    load = next(load for load in loads_in(block.body.value) if load.source.same_as(operand))
    place = next(number for number, index in enumerate(load.indices) if axes[column_tile].var.same_as(index))
    panel = [substitute(index, at) for index in load.indices[: place + 1]]
    depends = {variable for index in panel for variable in variables(index)}
    # The steps with one panel, from the outermost loop on: how many there are, and the number of the present one.
    steps, step = 1, IntImm("int32", 0)
    counted = [(loop.loop_var, int(loop.extent)) for loop in loops if _serial(loop) and loop.loop_var not in depends]
    if row_tile is not None:
        counted.insert(0, (at[axes[row_tile].var], int(axes[row_tile].dom.extent)))
    for position, extent in counted:
        steps, step = steps * extent, step * extent + position
    innermost = [loop for loop in loops if _serial(loop)][-1]
    shape = shape_of(operand)

    def element(position: Expr) -> Any:
        zeros = [IntImm("int32", 0)] * (len(shape) - place - 2)
        indices = (*panel[:-1], panel[-1] + 1, *zeros, position)
        return operand[indices]

    fetches = fetch_statements(element, math.prod(shape[place + 1 :]), steps, step)

    def fetching(loop: For) -> For:
        if not loop.loop_var.same_as(innermost.loop_var):
            return loop
        body = SeqStmt([*fetches, loop.body])
        return For(
            *(loop.loop_var, loop.min, loop.extent, loop.kind, body),
            *(loop.thread_binding, loop.annotations, loop.step),
        )

    return kernel.with_body(transform_statement(kernel.body, lambda statement: statement, fetching))


def _serial(loop: For) -> bool:
    return int(loop.kind) == int(ForKind.SERIAL)


def _find(node: Any, loops: tuple[For, ...]) -> tuple[Sequence[For], SBlockRealize] | None:
    """The block of the contraction's steps, with the loops around it from the outermost on."""
    if isinstance(node, For):
        return _find(node.body, (*loops, node))
    if isinstance(node, SBlockRealize):
        return (loops, node) if node.block.name_hint == "contraction_update" else _find(node.block, loops)
    if isinstance(node, SBlock | AttrStmt):
        return _find(node.body, loops)
    if isinstance(node, SeqStmt):
        return next(filter(None, (_find(statement, loops) for statement in node.seq)), None)
    return None
