"""What rules ask about the blocks of a schedule. Every block is one store, as workloads have them."""

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
from ..template import all_blocks, loads


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop around one block, and the iterator that it moves: its name, variable and whole extent."""

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
    """All loops around a block, the outermost first; `reduce` where any iterator that it moves is reduced over."""
    iterators = _iterators(schedule, block)
    found = []
    for loop in schedule.get_loops(block):
        statement = schedule.get(loop)
        moved = [each for each, at in iterators if statement.loop_var in variables(at)]
        var, whole = (moved[0].var, moved[0].dom.extent) if moved else (statement.loop_var, statement.extent)
        reduce = any(each.iter_type == IterVar.CommReduce for each in moved)
        found.append(Loop(loop, int(statement.extent), str(var.name), var, int(whole), reduce))
    return found


def own_loops(schedule: Schedule, block: str) -> list[Loop]:
    """The innermost loops of a block that is not tiled yet: one for each of its iterators."""
    iterators = _iterators(schedule, block)
    own = schedule.get_loops(block)
    own = own[len(own) - len(iterators) :]
    statements = [schedule.get(loop) for loop in own]
    moved = [next((each for each, at in iterators if loop.loop_var in variables(at)), None) for loop in statements]
    # Loops of one step may have been simplified out of the indices: they belong to the iterators that are left.
    rest = iter([each for each, _ in iterators if not any(each.same_as(other) for other in moved)])
    found = []
    for loop, statement, known in zip(own, statements, moved, strict=True):
        each = next(rest) if known is None else known
        reduce = each.iter_type == IterVar.CommReduce
        found.append(Loop(loop, int(statement.extent), str(each.var.name), each.var, int(each.dom.extent), reduce))
    return found


def reads(schedule: Schedule, block: str) -> list[Any]:
    """The loads of a block, but for the element that it accumulates into."""
    return loads(schedule, schedule.get_sblock(block))


def store_of(schedule: Schedule, block: str) -> Any:
    """The store of a block."""
    return schedule.get(schedule.get_sblock(block)).body


def consumers(schedule: Schedule, block: str) -> list[str]:
    """The blocks that read what a block writes."""
    return [str(schedule.get(each).name_hint) for each in schedule.get_consumers(block)]


def is_output(schedule: Schedule, workload: Workload, block: str) -> bool:
    """Whether a block writes an output of the function."""
    return str(store_of(schedule, block).buffer.name) in {spec.name for spec in workload.outputs}


def reduces(schedule: Schedule, block: str) -> bool:
    """Whether a block combines over an iterator."""
    return any(each.iter_type == IterVar.CommReduce for each in schedule.get(schedule.get_sblock(block)).iter_vars)


def extents(schedule: Schedule, block: str, reduce: bool) -> list[int]:
    """The extents of a block's spatial iterators, or of those that it reduces over."""
    wanted = IterVar.CommReduce if reduce else IterVar.DataPar
    iterators = schedule.get(schedule.get_sblock(block)).iter_vars
    return [int(each.dom.extent) for each in iterators if each.iter_type == wanted]


def reuses(schedule: Schedule, block: str) -> bool:
    """Whether a reduction reads elements again along a spatial iterator: contractions do, pooling does not.

    (Ansor's condition for multi-level tiling, on indices of loads.)
    """
    if not reduces(schedule, block):
        return False
    iterators = schedule.get(schedule.get_sblock(block)).iter_vars
    spatial = {each.var for each in iterators if each.iter_type == IterVar.DataPar and int(each.dom.extent) > 1}
    return any(spatial - _variables(load) for load in reads(schedule, block))


def matched_consumer(schedule: Schedule, workload: Workload, block: str) -> str | None:
    """The only consumer of a block, if it is elementwise and takes each element exactly once."""
    found = consumers(schedule, block)
    if len(found) != 1 or is_output(schedule, workload, block) or reduces(schedule, found[0]):
        return None
    return None if matching(schedule, block, found[0]) is None else found[0]


def matching(schedule: Schedule, block: str, consumer: str) -> dict[str, str] | None:
    """How the iterators of a consumer are called in a block, if they correspond one to one; else None."""
    store = store_of(schedule, block)
    wanted = [load for load in reads(schedule, consumer) if load.source.same_as(store.buffer)]
    if not all(same(load.indices, wanted[0].indices) for load in wanted):
        return None
    renamed: dict[str, str] = {}
    for own, index in zip(store.indices, wanted[0].indices, strict=True):
        if isinstance(own, Var) and isinstance(index, Var) and str(index.name) not in renamed:
            renamed[str(index.name)] = str(own.name)
        else:
            return None
    theirs = {renamed.get(name, ""): size for name, size in _sizes(schedule, consumer).items()}
    return renamed if theirs == _sizes(schedule, block) else None


def same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two lists of indices are the same expressions."""
    return len(left) == len(right) and all(structural_equal(a, b) for a, b in zip(left, right, strict=True))


def is_plain(store: Any) -> bool:
    """Whether a store writes the element that its iterators name, each once."""
    return all(isinstance(each, Var) for each in store.indices) and len(set(store.indices)) == len(store.indices)


def largest_divisor(extent: int, most: int) -> int:
    """The largest divisor that is at most `most`."""
    return max(size for size in range(1, min(extent, max(1, most)) + 1) if extent % size == 0)


def _sizes(schedule: Schedule, block: str) -> dict[str, int]:
    iterators = schedule.get(schedule.get_sblock(block)).iter_vars
    return {str(each.var.name): int(each.dom.extent) for each in iterators if each.iter_type == IterVar.DataPar}


def _variables(load: Any) -> set[Any]:
    return {each for index in load.indices for each in variables(index)}


def _iterators(schedule: Schedule, block: str) -> list[tuple[Any, Any]]:
    """The iterators of a block, each with its value in terms of the loops."""
    reference = schedule.get_sref(schedule.get_sblock(block))
    body = reference.parent.stmt.body
    siblings = list(body) if isinstance(body, SeqStmt) else [body]
    realize = next(each for each in siblings if isinstance(each, SBlockRealize) and each.block.same_as(reference.stmt))
    return list(zip(realize.block.iter_vars, realize.iter_values, strict=True))
