"""What rules ask about the blocks of a schedule. Every block of a workload consists of one store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir import Var
from tvm.s_tir import SBlockRealize, Schedule
from tvm.tirx import IterVar, SeqStmt
from tvm_ffi import structural_equal

from ...ir.expressions import variables
from ...ir.workload import Workload
from ...space.tile import largest_divisor as largest_divisor
from ..template import all_blocks, loads


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop around a block, and the block's iterator that the loop moves.

    Attributes:
        loop: The loop, as a schedule's primitives take it.
        extent: The loop's extent.
        name: The iterator's name.
        var: The iterator's variable.
        whole: The iterator's extent, which several loops may share.
        reduce: Whether the block reduces over the iterator.
    """

    loop: Any
    extent: int
    name: str
    var: Any
    whole: int
    reduce: bool


def names(schedule: Schedule) -> list[str]:
    """The blocks of a function in the order of its text."""
    return [str(schedule.get(block).name_hint) for block in all_blocks(schedule)]


def loops(schedule: Schedule, block: str) -> list[Loop]:
    """All loops around a block, the outermost first. `reduce` is true if the loop moves any reduced iterator."""
    iterators = _iterators(schedule, block)
    described = []
    for loop in schedule.get_loops(block):
        statement = schedule.get(loop)
        moved = [iterator for iterator, value in iterators if statement.loop_var in variables(value)]
        var, whole = (moved[0].var, moved[0].dom.extent) if moved else (statement.loop_var, statement.extent)
        reduce = any(iterator.iter_type == IterVar.CommReduce for iterator in moved)
        described.append(Loop(loop, int(statement.extent), str(var.name), var, int(whole), reduce))
    return described


def own_loops(schedule: Schedule, block: str) -> list[Loop]:
    """The innermost loops of a block that is not tiled yet: one for each of its iterators."""
    iterators = _iterators(schedule, block)
    around = schedule.get_loops(block)
    innermost = around[len(around) - len(iterators) :]
    statements = [schedule.get(loop) for loop in innermost]
    moved = [
        next((iterator for iterator, value in iterators if statement.loop_var in variables(value)), None)
        for statement in statements
    ]
    # Loops of one step may have been simplified out of the indices. They belong to the iterators that are left.
    rest = iter([iterator for iterator, _ in iterators if not any(iterator.same_as(other) for other in moved)])
    described = []
    for loop, statement, known in zip(innermost, statements, moved, strict=True):
        iterator = next(rest) if known is None else known
        reduce = iterator.iter_type == IterVar.CommReduce
        name, whole = str(iterator.var.name), int(iterator.dom.extent)
        described.append(Loop(loop, int(statement.extent), name, iterator.var, whole, reduce))
    return described


def reads(schedule: Schedule, block: str) -> list[Any]:
    """The loads of a block, without those of the element that it accumulates into."""
    return loads(schedule, schedule.get_sblock(block))


def store_of(schedule: Schedule, block: str) -> Any:
    """The store of a block."""
    return schedule.get(schedule.get_sblock(block)).body


def consumers(schedule: Schedule, block: str) -> list[str]:
    """The blocks that read what a block writes."""
    return [str(schedule.get(consumer).name_hint) for consumer in schedule.get_consumers(block)]


def is_output(schedule: Schedule, workload: Workload, block: str) -> bool:
    """Whether a block writes an output of the function."""
    return str(store_of(schedule, block).buffer.name) in {spec.name for spec in workload.outputs}


def reduces(schedule: Schedule, block: str) -> bool:
    """Whether a block combines over an iterator."""
    iterators = schedule.get(schedule.get_sblock(block)).iter_vars
    return any(iterator.iter_type == IterVar.CommReduce for iterator in iterators)


def extents(schedule: Schedule, block: str, reduce: bool) -> list[int]:
    """The extents of a block's spatial iterators, or with `reduce` of those that it reduces over."""
    kind = IterVar.CommReduce if reduce else IterVar.DataPar
    iterators = schedule.get(schedule.get_sblock(block)).iter_vars
    return [int(iterator.dom.extent) for iterator in iterators if iterator.iter_type == kind]


def reuses(schedule: Schedule, block: str) -> bool:
    """Whether a reduction reads elements again along a spatial iterator. Contractions do, pooling does not.

    This is Ansor's condition for multi-level tiling.
    """
    if not reduces(schedule, block):
        return False
    iterators = schedule.get(schedule.get_sblock(block)).iter_vars
    spatial = {
        iterator.var for iterator in iterators if iterator.iter_type == IterVar.DataPar and int(iterator.dom.extent) > 1
    }
    return any(spatial - variables(load) for load in reads(schedule, block))


def matched_consumer(schedule: Schedule, workload: Workload, block: str) -> str | None:
    """The only consumer of a block, if it is elementwise and reads each element exactly once; otherwise None."""
    readers = consumers(schedule, block)
    if len(readers) != 1 or is_output(schedule, workload, block) or reduces(schedule, readers[0]):
        return None
    return None if matching(schedule, block, readers[0]) is None else readers[0]


def matching(schedule: Schedule, block: str, consumer: str) -> dict[str, str] | None:
    """The name in a block of each iterator of its consumer, if they correspond one to one; otherwise None."""
    store = store_of(schedule, block)
    block_loads = [load for load in reads(schedule, consumer) if load.source.same_as(store.buffer)]
    if not all(same(load.indices, block_loads[0].indices) for load in block_loads):
        return None
    renamed: dict[str, str] = {}
    for stored, loaded in zip(store.indices, block_loads[0].indices, strict=True):
        if isinstance(stored, Var) and isinstance(loaded, Var) and str(loaded.name) not in renamed:
            renamed[str(loaded.name)] = str(stored.name)
        else:
            return None
    consumer_sizes = {renamed.get(name, ""): size for name, size in _sizes(schedule, consumer).items()}
    return renamed if consumer_sizes == _sizes(schedule, block) else None


def same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two lists of indices are the same expressions."""
    return len(left) == len(right) and all(structural_equal(a, b) for a, b in zip(left, right, strict=True))


def is_plain(access: Any) -> bool:
    """Whether the indices of a store or a load are iterators, each of them once."""
    return all(isinstance(index, Var) for index in access.indices) and len(set(access.indices)) == len(access.indices)


def _sizes(schedule: Schedule, block: str) -> dict[str, int]:
    """The extents of a block's spatial iterators, by name."""
    iterators = schedule.get(schedule.get_sblock(block)).iter_vars
    spatial = [iterator for iterator in iterators if iterator.iter_type == IterVar.DataPar]
    return {str(iterator.var.name): int(iterator.dom.extent) for iterator in spatial}


def _iterators(schedule: Schedule, block: str) -> list[tuple[Any, Any]]:
    """The iterators of a block, each with its value as an expression of the loops."""
    reference = schedule.get_sref(schedule.get_sblock(block))
    body = reference.parent.stmt.body
    siblings = list(body) if isinstance(body, SeqStmt) else [body]
    realize = next(
        sibling for sibling in siblings if isinstance(sibling, SBlockRealize) and sibling.block.same_as(reference.stmt)
    )
    return list(zip(realize.block.iter_vars, realize.iter_values, strict=True))
