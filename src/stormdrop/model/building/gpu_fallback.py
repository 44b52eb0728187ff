"""A plain GPU schedule for the tasks that no sketch schedules: every loop nest becomes a kernel.

for i, j, k:  C[i, j] += ...      ->      block ij0, thread ij1:  for k:  C[ij / n, ij % n] += ...

The spatial loops of a nest are fused and split to blocks and threads; a thread reduces serially. TVM writes a few
functions, such as scatters, as loops without a statement of what they read and write. There a loop is only split if its
iterations write to different elements for certain; otherwise one thread does all of them, in their order.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call, Range, TensorLoad, Var
from tvm.ir.prim.expr import IntImm
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.sym import Analyzer
from tvm.tirx import AttrStmt, BufferStore, For, ForKind, IterVar, SeqStmt
from tvm_ffi import structural_map, structural_walk

from ...errors import ModelError
from ...ir.expressions import variables_outside_loads
from ...ir.stages import intermediate
from ...machine.gpu import Gpu
from ...sketches.rules.blocks import own_loops
from ..graph.tasks import has_nests
from .fallback import Fallback, attempt, block_names, inline

_THREADS = 256  # of a block, if there is work for so many

_GRID, _THREAD = "blockIdx.x", "threadIdx.x"


def schedule_gpu_fallback(function: tirx.PrimFunc, device: Gpu) -> Fallback:
    """Schedules any function for a GPU.

    Args:
        function: The function; it is not changed.
        device: The GPU.

    Returns:
        The scheduled function. It has reached "blocks and threads"; "blocks and threads, one thread in parts" if some
        kernel of several iterations is executed by one thread; "one thread" if that is so for all kernels.

    Raises:
        ModelError: The function calls one of TVM's runtime, which no GPU can do.

    Example:
        >>> from tvm import te
        >>> from stormdrop.machine.gpu import GPUS
        >>> x = te.placeholder((1000,), name="x")
        >>> function = te.create_prim_func([x, te.compute((1000,), lambda i: x[i] + 1.0, name="y")])
        >>> schedule_gpu_fallback(function, GPUS["a100"]).reached
        'blocks and threads'
    """
    _check_calls(function)
    function = _with_plain_buffers(function)
    threads = min(_THREADS, device.threads_per_block)
    if has_nests(function):
        schedule = Schedule(tvm.IRModule({"main": function}))
        for step in (inline, partial(_bind, threads=threads)):
            for name in block_names(schedule):
                schedule, _ = attempt(schedule, partial(step, name=name), None)
        function = schedule.mod["main"]
    kernels = _Kernels(threads)
    body = kernels.of(function.body)
    root = SBlock([], [], [], "root", body, alloc_buffers=kernels.buffers)
    return Fallback(function.with_body(SBlockRealize([], True, root)), kernels.reached)


def _check_calls(function: tirx.PrimFunc) -> None:
    for call in _found(function.body, Call):
        if str(getattr(call.op, "name", "")).startswith("tirx.tvm_call_packed"):
            raise ModelError(f"a kernel calls {call.args[0].value}, which no GPU can do")


def _with_plain_buffers(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function whose buffers begin where their memory begins, and have a name each, by which launches know them."""
    buffers = [*function.params, *(each for block in _found(function.body, SBlock) for each in block.alloc_buffers)]
    names: set[str] = set()
    plain: dict[Any, Any] = {}
    for buffer in buffers:
        numbered = (f"{buffer.name}_{number}" for number in itertools.count(1))
        name = next(free for free in itertools.chain([str(buffer.name)], numbered) if free not in names)
        names.add(name)
        if name != str(buffer.name) or isinstance(buffer.elem_offset, Var):
            plain[buffer] = intermediate(name, buffer.shape, str(buffer.dtype), buffer.scope())
    return structural_map(function, ((Var, lambda node: plain.get(node, node)),)) if plain else function


def _bind(schedule: Schedule, name: str, threads: int) -> None:
    """Binds the spatial loops of a block to blocks and threads; a block that has none is left."""
    loops = own_loops(schedule, name)
    spatial = [loop.loop for loop in loops if not loop.reduce]
    if not spatial or len(loops) != len(schedule.get_loops(schedule.get_sblock(name))):
        return
    schedule.reorder(*spatial, *(loop.loop for loop in loops if loop.reduce))
    fused = schedule.fuse(*spatial)
    grid, thread = schedule.split(fused, [None, min(threads, int(schedule.get(fused).extent))])
    schedule.bind(grid, _GRID)
    schedule.bind(thread, _THREAD)


class _Kernels:
    """Makes kernels of statements. Those with threads already stay.

    Attributes:
        parallel: How many of the kernels have blocks and threads.
        serial: How many are executed by one thread and have more than one iteration.
        buffers: What the kernels hand on.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.parallel = self.serial = 0
        self.buffers: list[Any] = []

    @property
    def reached(self) -> str:
        """What `Fallback.reached` says."""
        if not self.serial:
            return "blocks and threads"
        return "blocks and threads, one thread in parts" if self.parallel else "one thread"

    def of(self, statement: Any) -> Any:
        """The statement as kernels, one after the other."""
        if isinstance(statement, AttrStmt) and statement.attr_key == "pragma_scope":
            return self.of(statement.body)
        if isinstance(statement, SeqStmt) and all(isinstance(each, _ALONE) for each in statement.seq):
            return SeqStmt([self.of(each) for each in statement.seq])
        if isinstance(statement, SBlockRealize) and not (statement.block.iter_vars or statement.block.match_buffers):
            self.buffers += statement.block.alloc_buffers
            return self.of(statement.block.body)
        if isinstance(statement, For) and statement.kind == ForKind.THREAD_BINDING:
            self.parallel += 1
            return statement
        if isinstance(statement, For):
            if _independent(statement):
                return self._over_threads(statement, statement.body)
            inner = statement.body
            if isinstance(inner, For) and _constant(inner) and _separate(inner):
                # Each thread does all iterations of the outer loop, in their order.
                return self._over_threads(inner, _with_body(statement, inner.body))
        self.serial += _iterates(statement)
        return _launched(_without_parallel(statement), 1, 1)

    def _over_threads(self, loop: For, body: Any) -> Any:
        """A kernel whose threads have an iteration each."""
        self.parallel += 1
        extent = int(loop.extent)
        threads = min(self._threads, extent)
        grid, thread = (tirx.Var(name, str(loop.loop_var.ty.dtype)) for name in ("block", "thread"))
        position = grid * threads + thread
        at = {loop.loop_var: loop.min + position}
        body = structural_map(_without_parallel(body), ((Var, lambda node: at.get(node, node)),))
        if extent % threads:
            body = tirx.IfThenElse(position < extent, body, None)
        return _launched(body, -(-extent // threads), threads, grid, thread)


_ALONE = (For, BufferStore, tirx.IfThenElse, SBlockRealize, AttrStmt, SeqStmt)
"""Statements that do not declare what the following ones use."""


def _launched(body: Any, blocks: int, threads: int, grid: Any = None, thread: Any = None) -> Any:
    """A statement as a kernel."""
    for variable, extent, tag in ((thread, threads, _THREAD), (grid, blocks, _GRID)):
        variable = tirx.Var(tag[0], "int32") if variable is None else variable
        count = tirx.const(extent, str(variable.ty.dtype))
        axis = IterVar(Range(0, count), tirx.Var(tag, str(variable.ty.dtype)), IterVar.ThreadIndex, tag)
        body = For(variable, tirx.const(0, str(variable.ty.dtype)), count, ForKind.THREAD_BINDING, body, axis)
    return body


def _with_body(loop: For, body: Any) -> For:
    return For(loop.loop_var, loop.min, loop.extent, ForKind.SERIAL, body, None, loop.annotations, loop.step)


def _without_parallel(statement: Any) -> Any:
    """A statement in which one thread executes each loop."""

    def visit(loop: Any) -> Any:
        return _with_body(loop, loop.body) if loop.kind in (ForKind.PARALLEL, ForKind.VECTORIZED) else loop

    return structural_map(statement, ((For, visit),))


def _constant(loop: For) -> bool:
    return loop.step is None and isinstance(loop.extent, IntImm) and int(loop.extent) > 0


def _iterates(statement: Any) -> bool:
    """Whether a statement has a loop of more than one iteration."""
    return any(not _constant(loop) or int(loop.extent) > 1 for loop in _found(statement, For))


def _found(statement: Any, kind: type) -> list[Any]:
    found: list[Any] = []
    structural_walk(statement, (kind, found.append))
    return found


def _independent(loop: For) -> bool:
    """Whether no two iterations of a loop touch the same element, unless both only read it.

    That is so if TVM says so and each element that is written depends on the iteration, not only on data: TVM also says
    it where equal indices make two iterations write to one element. It is also so if the loop writes whole tensors,
    element by element.
    """
    if not _constant(loop):
        return False
    if loop.kind == ForKind.PARALLEL:
        return all(
            any(loop.loop_var in variables_outside_loads(index) for index in store.indices)
            for store in _found(loop.body, BufferStore)
            if store.buffer.scope() == "global"
        )
    return isinstance(loop.body, BufferStore) and _separate(loop)


def _separate(loop: For) -> bool:
    """Whether the iterations of a loop touch different elements of what they write, whatever surrounds the loop.

    The position of an element in its buffer has to be n * (anything) + a constant + the number of the iteration, where
    n is at least the number of iterations.
    """
    touched: dict[Any, set[tuple[int, int]]] = {}
    for store in _found(loop.body, BufferStore):
        touched.setdefault(store.buffer, set()).add(_remainder(loop, store.buffer, store.indices))
    for load in _found(loop.body, TensorLoad):
        if load.source in touched:
            touched[load.source].add(_remainder(loop, load.source, load.indices))
    alike = all(len(remainders) == 1 for remainders in touched.values())
    return alike and all(n == 0 or n >= int(loop.extent) for remainders in touched.values() for n, _ in remainders)


def _remainder(loop: For, buffer: Any, indices: Any) -> tuple[int, int]:
    """N and the constant of a position; n is 0 if the position is the constant and the number of the iteration."""
    strides = [math.prod(map(int, buffer.shape[axis + 1 :])) for axis in range(len(indices))]
    position = sum(index * stride for index, stride in zip(indices, strides, strict=True))
    analyzer = Analyzer()
    analyzer.bind(loop.loop_var, Range.from_min_extent(loop.min, loop.extent))
    rest = analyzer.modular_set(analyzer.simplify(position - loop.loop_var))
    return int(rest.coeff), int(rest.base)
