"""TensorIR functions as lists of stages: the form in which functions are read, rewritten and evaluated.

TVM's operator library, `te.create_prim_func` and Relax's fusion all write functions as a sequence of loop nests,
each around one block whose iterators are its loops:

    for i, j, k in T.grid(17, 64, 32):
        with T.sblock("C"):
            ...
            C[i, j] = C[i, j] + A[i, k] * B[k, j]

`StageGraph.parse` reads each nest as a `Stage` (axes, the element written, the value, how a reduction combines),
`StageGraph.function` writes them back. Sketches rewrite stages (inline, tile, pack) where the rewrite is a plain
substitution of indices, and schedule the result with TVM's primitives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tvm
from tvm.ir import Range, TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import AttrStmt, BufferRegion, BufferStore, For, ForKind, IterVar, PrimFunc, SeqStmt, decl_buffer

from ..errors import UnsupportedFunction
from .dtypes import limits
from .expressions import Expr, loads_in, rewrite_loads, substitute, walk

Buffer = Any

_COMBINERS = {prim.Add: "sum", prim.Max: "max", prim.Min: "min", prim.Mul: "product"}


@dataclass(frozen=True, eq=False)
class Axis:
    """One iterator of a stage: its variable and its extent; `reduce` says whether the stage combines over it."""

    var: Any
    extent: int
    reduce: bool = False

    @property
    def name(self) -> str:
        return str(self.var.name)


@dataclass(frozen=True, eq=False)
class Stage:
    """One loop nest: `buffer[indices] = value` over all axes, combined over those that reduce.

    Attributes:
        name: The name of the block.
        axes: The iterators, the outermost first.
        buffer: The buffer that is written.
        indices: The element that is written, in terms of the axes.
        value: The value that is stored; for a reduction the term that is combined.
        combine: "sum", "max", "min" or "product" for a reduction, else None.
        identity: The value that a reduction starts from, else None.
    """

    name: str
    axes: tuple[Axis, ...]
    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    combine: str | None = None
    identity: Expr | None = None

    @property
    def spatial(self) -> tuple[Axis, ...]:
        """The axes of which each position has its own element."""
        return tuple(axis for axis in self.axes if not axis.reduce)

    @property
    def reductions(self) -> tuple[Axis, ...]:
        """The axes that the stage combines over."""
        return tuple(axis for axis in self.axes if axis.reduce)

    def loads(self) -> tuple[Any, ...]:
        """Every load in the value, in order of appearance."""
        return self._loads

    def reads(self, buffer: Buffer) -> bool:
        """Whether the value loads from a buffer."""
        return buffer in self._sources

    @cached_property
    def _loads(self) -> tuple[Any, ...]:
        return tuple(loads_in(self.value))

    @cached_property
    def _sources(self) -> frozenset[Buffer]:
        return frozenset(load.source for load in self.loads())

    def first_loads(self) -> list[Any]:
        """Every load in the value that a reduction starts from."""
        return [] if self.identity is None else loads_in(self.identity)

    def over(self, axes: Sequence[Axis], values: Mapping[Any, Expr]) -> Stage:
        """The stage over other axes.

        Args:
            axes: The axes.
            values: The variables of the former axes in terms of those of the new ones.

        Returns:
            The stage with these variables in the place of the former ones.
        """
        indices = tuple(substitute(index, values) for index in self.indices)
        identity = None if self.identity is None else substitute(self.identity, values)
        return replace(self, axes=tuple(axes), indices=indices, value=substitute(self.value, values), identity=identity)

    def statement(
        self, around: Sequence[Expr] = (), kinds: Mapping[Any, Any] | None = None, predicate: Expr | bool = True
    ) -> Any:
        """The loop nest as TensorIR.

        Args:
            around: The values of the first axes, from loops outside the nest. Each other axis gets a loop.
            kinds: The `ForKind` of loops, by the variables of their axes; serial by default.
            predicate: Whether the element is stored, in terms of the loops outside.
        """
        target = self.buffer[self.indices] if self.indices else self.buffer[()]
        value = self.value if self.combine is None else combined(self.combine, target, self.value)
        init = None if self.identity is None else BufferStore(self.buffer, self.identity, list(self.indices))
        block = SBlock(
            iter_vars=[
                IterVar(Range(0, axis.extent), axis.var, IterVar.CommReduce if axis.reduce else IterVar.DataPar)
                for axis in self.axes
            ],
            reads=[_element(load.source, load.indices) for load in (*self.loads(), *self.first_loads())],
            writes=[_element(self.buffer, self.indices)],
            name_hint=self.name,
            body=BufferStore(self.buffer, value, list(self.indices)),
            init=init,
        )
        looped = self.axes[len(around) :]
        loop_variables = [Var(axis.name, axis.var.ty) for axis in looped]
        body: Any = SBlockRealize([*around, *loop_variables], predicate, block)
        for loop_variable, axis in zip(reversed(loop_variables), reversed(looped), strict=True):
            kind = (kinds or {}).get(axis.var, ForKind.SERIAL)
            body = For(loop_variable, 0, axis.extent, kind, body)
        return body


@dataclass(frozen=True, eq=False)
class StageGraph:
    """A function as its parameters (buffers, inputs first) and its stages in order of execution."""

    parameters: tuple[Buffer, ...]
    stages: tuple[Stage, ...]

    @classmethod
    def parse(cls, function: PrimFunc, gathers: bool = False) -> StageGraph:
        """Reads a function, without the stages that make no element and that nobody reads.

        Args:
            function: The function.
            gathers: Whether an element that is read may depend on data, as `table[words[i], j]`. Such stages can be
                evaluated, but no sketch schedules them.

        Raises:
            UnsupportedFunction: The function is not a sequence of loop nests, each around one plain block.
        """
        body = function.body
        if not isinstance(body, SBlockRealize) or body.block.iter_vars:
            raise UnsupportedFunction("the body is not one root block")
        for parameter in function.params:
            if not hasattr(parameter.ty, "shape"):
                raise UnsupportedFunction(f"parameter {parameter.name} is no tensor")
        root = body.block
        nests = list(root.body) if isinstance(root.body, SeqStmt) else [root.body]
        stages = [_parse_nest(nest, gathers) for nest in nests]
        written = [stage.buffer for stage in stages]
        if len(set(written)) != len(written):
            raise UnsupportedFunction("a buffer is written by more than one block")
        if any(0 in shape_of(buffer) for buffer in written):
            needed = {*function.params, *loads_of(stages)}
            stages = [stage for stage in stages if stage.buffer in needed or 0 not in shape_of(stage.buffer)]
        return cls(tuple(function.params), tuple(stages))

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The parameters that a stage writes, in the order of the parameters."""
        written = {stage.buffer for stage in self.stages}
        return tuple(buffer for buffer in self.parameters if buffer in written)

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The parameters that no stage writes, in the order of the parameters."""
        written = {stage.buffer for stage in self.stages}
        return tuple(buffer for buffer in self.parameters if buffer not in written)

    def writer(self, buffer: Buffer) -> Stage | None:
        """The stage that writes a buffer; None for an input."""
        return next((stage for stage in self.stages if stage.buffer.same_as(buffer)), None)

    def readers(self, buffer: Buffer) -> list[Stage]:
        """The stages that read a buffer."""
        return [stage for stage in self.stages if stage.reads(buffer)]

    def inlined(self, keep: Callable[[Stage], bool]) -> StageGraph:
        """Substitutes each stage into its readers, unless it reduces or writes a parameter.

        Before:     B[i] = A[i] + 1;  C[i] = max(B[i], 0)
        After:      C[i] = max(A[i] + 1, 0)

        Args:
            keep: Is called with each stage that could be substituted, and returns whether it has to stay.
        """
        graph = self
        for stage in self.stages:
            current = graph.writer(stage.buffer)
            if current is None or current.combine is not None or current.buffer in graph.parameters or keep(current):
                continue
            if not _writes_axes(current):
                continue
            graph = graph.inline(current)
        return graph

    def inline(self, stage: Stage) -> StageGraph:
        """Substitutes one elementwise stage into all its readers."""

        def inlined_value(load: Any) -> Expr | None:
            if not load.source.same_as(stage.buffer):
                return None
            mapping = {axis.var: index for axis, index in _bound_axes(stage, load.indices)}
            return substitute(stage.value, mapping)

        others = [other for other in self.stages if other is not stage]
        stages = (
            replace(other, value=rewrite_loads(other.value, inlined_value)) if other.reads(stage.buffer) else other
            for other in others
        )
        return StageGraph(self.parameters, tuple(stages))

    def mapped(self, change: Callable[[Stage], Stage]) -> StageGraph:
        """The graph with `change(stage)` in place of each stage, which must write the same buffer."""
        return StageGraph(self.parameters, tuple(change(stage) for stage in self.stages))

    def function(self) -> PrimFunc:
        """The stages as a TensorIR function named "main"."""
        return assemble(self.parameters, self.stages)


def assemble(
    parameters: Sequence[Buffer],
    stages: Sequence[Stage],
    statements: Sequence[Any] | None = None,
    allocated: Sequence[Buffer] = (),
) -> PrimFunc:
    """A function named "main".

    Args:
        parameters: The buffers that are its parameters, inputs first.
        stages: The stages that it computes. The buffers that they write are allocated, unless they are parameters.
        statements: Its statements; by default the plain loop nests of the stages.
        allocated: Further buffers to allocate.
    """
    intermediates = list(allocated)
    for stage in stages:
        if stage.buffer not in parameters and stage.buffer not in intermediates:
            intermediates.append(stage.buffer)
    if statements is None:
        steps = [stage.statement() for stage in stages]
    else:
        # Tiles that overlap read the same elements again. Outside of such a scope TVM may write results over them.
        steps = [
            AttrStmt(IntImm("int32", 0), "extern_scope", IntImm("int32", 1), statement) for statement in statements
        ]
    return function_of(parameters, steps, intermediates)


def function_of(parameters: Sequence[Buffer], statements: Sequence[Any], allocated: Sequence[Buffer]) -> PrimFunc:
    """A function named "main" of these statements.

    Args:
        parameters: The buffers that are its parameters, inputs first.
        statements: Its statements, in order.
        allocated: The other buffers that they write.
    """
    body = statements[0] if len(statements) == 1 else SeqStmt(list(statements))
    root = SBlock([], [], [], "root", body, alloc_buffers=list(allocated))
    attrs = {"global_symbol": "main", "s_tir": True, "tirx.noalias": True}
    realized = SBlockRealize([], True, root)
    return PrimFunc(list(parameters), realized, attrs=tvm.ir.make_node("ir.DictAttrs", **attrs))


def loads_of(*stages: Sequence[Stage]) -> set[Buffer]:
    """The buffers that the stages of some sequences read."""
    return {load.source for group in stages for stage in group for load in stage.loads()}


def intermediate(name: str, shape: Sequence[int], dtype: str, scope: str = "global") -> Buffer:
    """A new buffer for a stage to write."""
    return decl_buffer([int(extent) for extent in shape], dtype, name, scope=scope, layout=None)


def loop(extent: int, body: Callable[[Expr], Any], kind: Any = ForKind.SERIAL) -> Any:
    """A loop over a statement that is made of the loop's index."""
    index = variable("i")
    return For(index, 0, extent, kind, body(index))


def sequence(statements: Sequence[Any]) -> Any:
    """One statement of several."""
    return statements[0] if len(statements) == 1 else SeqStmt(list(statements))


def variable(name: str) -> Any:
    """A new index variable."""
    return Var(name, "int32")


def shape_of(buffer: Buffer) -> tuple[int, ...]:
    """The static shape of a buffer.

    Raises:
        UnsupportedFunction: The shape is symbolic.
    """
    shape = list(buffer.shape)
    if not all(isinstance(extent, IntImm) for extent in shape):
        raise UnsupportedFunction(f"buffer {buffer.name} has a symbolic shape {shape}")
    return tuple(int(extent) for extent in shape)


def _element(buffer: Buffer, indices: Sequence[Expr]) -> Any:
    return BufferRegion(buffer, [Range.from_min_extent(index, 1) for index in indices])


def combined(combine: str, target: Expr, term: Expr) -> Expr:
    """What a reduction makes of the value that it has so far and of a term."""
    kinds = {name: kind for kind, name in _COMBINERS.items()}
    return kinds[combine](target, term)


def _parse_nest(nest: Any, gathers: bool) -> Stage:
    """Reads loops around one block; raises `UnsupportedFunction` if the block is not plain."""
    loops: dict[Any, int] = {}
    while isinstance(nest, For):
        if nest.kind != ForKind.SERIAL or not isinstance(nest.extent, IntImm) or int(nest.min) != 0:
            raise UnsupportedFunction("a loop is not a plain serial loop from 0 with a constant extent")
        loops[nest.loop_var] = int(nest.extent)
        nest = nest.body
    if not isinstance(nest, SBlockRealize):
        raise UnsupportedFunction("a loop nest holds something other than one block")
    block = nest.block
    if not (isinstance(nest.predicate, IntImm) and int(nest.predicate) == 1):
        raise UnsupportedFunction(f"block {block.name_hint} has a predicate")
    if block.alloc_buffers or block.match_buffers or not isinstance(block.body, BufferStore):
        raise UnsupportedFunction(f"block {block.name_hint} is more than one store")
    axes: list[Axis] = []
    used: set[Any] = set()
    for iterator, value in zip(block.iter_vars, nest.iter_values, strict=True):
        extent = int(iterator.dom.extent)
        bound = isinstance(value, Var) and loops.get(value) == extent and value not in used
        if not bound and not (isinstance(value, IntImm) and extent == 1):
            raise UnsupportedFunction(f"block {block.name_hint} does not bind its iterators to its loops one to one")
        if iterator.iter_type not in (IterVar.DataPar, IterVar.CommReduce):
            raise UnsupportedFunction(f"block {block.name_hint} has an ordered or opaque iterator")
        used.add(value)
        axes.append(Axis(iterator.var, extent, iterator.iter_type == IterVar.CommReduce))
    store = block.body
    shape_of(store.buffer)
    stage = Stage(str(block.name_hint), tuple(axes), store.buffer, tuple(store.indices), store.value)
    nodes = (node for load in stage.loads() for index in load.indices for node in walk(index))
    if not gathers and any(isinstance(node, TensorLoad) for node in nodes):
        raise UnsupportedFunction(f"block {stage.name} reads at an index that depends on data")
    if not stage.reductions:
        if any(load.source.same_as(stage.buffer) for load in stage.loads()):
            raise UnsupportedFunction(f"block {stage.name} reads the buffer that it writes")
        return stage
    return _as_reduction(stage, block.init)


def _as_reduction(stage: Stage, init: Any) -> Stage:
    """The stage `C = C + term` as a reduction of its term."""
    kind = _COMBINERS.get(type(stage.value))
    if kind is None or not isinstance(init, BufferStore):
        raise UnsupportedFunction(f"block {stage.name} reduces by something other than sum, product, max or min")

    def is_self(node: Expr) -> bool:
        return isinstance(node, TensorLoad) and bool(node.source.same_as(stage.buffer))

    left, right = stage.value.a, stage.value.b
    if is_self(left) == is_self(right):
        raise UnsupportedFunction(f"block {stage.name} does not accumulate into its own element")
    if not _is_neutral(kind, init.value):
        raise UnsupportedFunction(f"block {stage.name} does not start from the neutral element of a {kind}")
    term = right if is_self(left) else left
    if any(is_self(node) for node in walk(term)):
        raise UnsupportedFunction(f"block {stage.name} reads the buffer that it writes")
    return replace(stage, value=term, combine=kind, identity=init.value)


def _is_neutral(combine: str, value: Expr) -> bool:
    if not isinstance(value, IntImm | FloatImm):
        return False
    number, dtype = value.value, str(value.ty.dtype)
    if combine in {"sum", "product"}:
        return bool(number == (0 if combine == "sum" else 1))
    return bool(number <= limits(dtype).min if combine == "max" else number >= limits(dtype).max)


def _writes_axes(stage: Stage) -> bool:
    """Whether each index of the element written is another axis, or a constant (for an axis of extent 1)."""
    written = [index for index in stage.indices if isinstance(index, Var)]
    others = [index for index in stage.indices if not isinstance(index, Var)]
    return len(set(written)) == len(written) and all(isinstance(index, IntImm) for index in others)


def _bound_axes(stage: Stage, indices: Sequence[Expr]) -> Iterator[tuple[Axis, Expr]]:
    """The positions of a stage's axes at which it writes the element with these indices."""
    by_var = {axis.var: axis for axis in stage.axes}
    written = set()
    for variable, index in zip(stage.indices, indices, strict=True):
        if variable in by_var:
            written.add(variable)
            yield by_var[variable], index
    for axis in stage.axes:
        if axis.var not in written:
            yield axis, IntImm("int32", 0)
