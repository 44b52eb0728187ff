"""Two contractions and what stands between them, over blocks of rows that stay in a cache: attention.

    for heads and blocks of rows, in parallel:
        for tiles of keys and rows:                 scores[row, key] = epilogue(sum of q[row, d] k[d, key])
        for row in the block:                       scores[row, ...] = softmax(scores[row, ...])
        for tiles of columns and rows:              out[row, column] = sum of scores[row, key] v[key, column]

The scores of all rows never exist at the same time. The function must be such a chain: every loop nest of it has the
same leading axes, of which the last one is the rows, and reads of the nests before it only the row that it computes.

`RowBlocks` reads this off a function and makes the loops; `attention` holds the knobs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tvm.tirx import For, ForKind

from ...errors import UnsupportedFunction
from ...ir.contractions.contraction import contiguous, inline_well, inlines_well, is_contraction, multiplied_loads
from ...ir.expressions import Expr, rewrite_loads, substitute, variables
from ...ir.stages import Axis, Stage, StageGraph, intermediate, shape_of, variable
from ...machine.cpu import Cpu
from .contractions.tiled_contraction import tiled_axis
from .groups import Row, shared_axes, with_rows
from .loops import ROW, Loops, LoopSizes, NestLoops, default_loops, sequence, vector_axes
from .nest_rewrites import fuse_contiguous_axes, unravel_axes, vectorize_reduction
from .nests import Nest, nests_of


@dataclass(frozen=True, eq=False)
class Product:
    """One of the two contractions of a chain.

    Attributes:
        nest: Its loop nest, with the epilogue.
        column: The axis that is vectorised.
        operand: The factor that depends on the column: keys or values.
        factors: Both factors.
    """

    nest: Nest
    column: Axis
    operand: Any
    factors: tuple[Any, Any]

    @property
    def must_pack(self) -> bool:
        """Whether the operand has to be laid out anew, because its columns are not contiguous."""
        return not contiguous(self.operand, self.column.var)

    @property
    def reductions(self) -> tuple[Axis, ...]:
        """What it sums over."""
        return self.nest.terms[0].axes

    @property
    def steps(self) -> int:
        """The products of one sum."""
        return math.prod(axis.extent for axis in self.reductions)


@dataclass(frozen=True, eq=False)
class Chain:
    """A function of two contractions, see the module.

    Attributes:
        parameters: The parameters of the function.
        nests: All loop nests; the products are the first and the last one.
        shared: How many leading axes they have in common. The last one of these is the rows.
        scores: The contraction that makes the scores.
        values: The contraction that reads them.
    """

    parameters: tuple[Any, ...]
    nests: tuple[Nest, ...]
    shared: int
    scores: Product
    values: Product

    @property
    def rows(self) -> int:
        """The number of rows of each head."""
        return self.scores.nest.store.axes[self.shared - 1].extent

    @property
    def heads(self) -> int:
        """How many times there are so many rows."""
        return math.prod(axis.extent for axis in self.scores.nest.store.axes[: self.shared - 1])


def find_chain(graph: StageGraph) -> Chain:
    """Reads a chain off a function.

    Args:
        graph: The function.

    Raises:
        UnsupportedFunction: The function is no such chain.
    """
    products = [stage.buffer for stage in graph.stages if is_contraction(stage)]
    if len(products) != 2:
        raise UnsupportedFunction(f"the function has {len(products)} contractions, not two")

    def wants(current: StageGraph, stage: Stage) -> bool:
        readers = current.readers(stage.buffer)
        follows = any(load.source in products for load in stage.loads())
        feeds = any(reader.combine is not None for reader in readers)
        return not feeds and not (follows and len(readers) > 1) and inlines_well(current, stage)

    inlined = inline_well(graph, wants)
    nests = tuple(nests_of(inlined))
    shared = shared_axes(nests, 1) if len(nests) > 2 else 0
    if shared == 0 or any(str(nest.store.buffer.dtype) != "float32" for nest in nests):
        raise UnsupportedFunction("its nests do not share rows of float32")
    first, last = (_product(nest, shared) for nest in (nests[0], nests[-1]))
    made = {nest.store.buffer for nest in nests}
    if any(load.source in made for load in nests[0].reads()):
        raise UnsupportedFunction("what its first contraction reads is computed here")
    scores, weights = nests[0].store.buffer, nests[-2].store.buffer
    if last.operand.source in made or {load.source for load in nests[-1].reads()} & made != {weights}:
        raise UnsupportedFunction("its second contraction does not multiply weights by an input, and nothing else")
    if shape_of(weights)[shared:] != shape_of(scores)[shared:] or scores in {load.source for load in nests[-2].reads()}:
        raise UnsupportedFunction("the weights cannot take the place of the scores")
    if any(nest.store.buffer in graph.parameters for nest in nests[:-1]):
        raise UnsupportedFunction("the scores are an output, too")
    return Chain(inlined.parameters, nests, shared, first, last)


def _product(nest: Nest, shared: int) -> Product:
    """A nest as a product whose rows are the last shared axis. Raises `UnsupportedFunction` if it is none."""
    loads = None if nest.reduction is None else multiplied_loads(nest.reduction)
    free = [axis for axis in nest.store.axes[shared:] if axis.extent > 1] or list(nest.store.axes[shared:])
    if loads is None or len(free) != 1:
        raise UnsupportedFunction("it does not begin and end with a product of matrices")
    row, column = nest.store.axes[shared - 1], free[0]
    used = [variables(load) for load in loads]
    operands = [load for load, own in zip(loads, used, strict=True) if column.var in own and row.var not in own]
    others = [load for load, own in zip(loads, used, strict=True) if row.var in own and column.var not in own]
    if len(operands) != 1 or len(others) != 1:
        raise UnsupportedFunction("its products are not of rows and columns")
    return Product(nest, column, operands[0], loads)


@dataclass(frozen=True)
class BlockSizes:
    """How a chain is divided.

    Args:
        rows: The rows of a tile of registers.
        block: The tiles of rows of a task.
        keys: The keys of a tile of scores.
        columns: The columns of a tile of the result.
        unroll: The steps of the sums of scores that are unrolled.
        unroll_keys: The steps of the sums of the result that are unrolled.
        vectors: The vectors of a step between the products, at most.
        pack_keys: Whether a stage lays the keys out anew, so that those of a tile are contiguous.
        pack_values: The same for the values.
    """

    rows: int
    block: int
    keys: int
    columns: int
    unroll: int
    unroll_keys: int
    vectors: int
    pack_keys: bool
    pack_values: bool


class RowBlocks:
    """The loops of a chain.

    Args:
        chain: The function.
        sizes: How it is divided.
        target: The machine to schedule for.
    """

    def __init__(self, chain: Chain, sizes: BlockSizes, target: Cpu) -> None:
        self._chain, self._sizes, self._target = chain, sizes, target
        self._shared, self._height = chain.shared, sizes.rows * sizes.block
        self._buffers = self._kept_in_cache()

    def statements(self) -> tuple[list[Any], list[Stage]]:
        """The statements in their order, and the stages that they hold."""
        chain, sizes, target, shared = self._chain, self._sizes, self._target, self._shared
        of_keys = Panels.of(chain.scores, shared, sizes.keys) if sizes.pack_keys else None
        of_values = Panels.of(chain.values, shared, sizes.columns) if sizes.pack_values else None
        packing = [panels.stage for panels in (of_keys, of_values) if panels is not None]
        kept = {*chain.parameters, *(stage.buffer for stage in packing)}
        before: list[Any] = []
        stages: list[Stage] = []
        for stage in packing:  # each in a loop of its own, which has more parts than the heads that both share
            statements, written = default_loops([stage], kept, target)
            before, stages = before + statements, stages + written
        scores = self._tiles(chain.scores, sizes.keys, sizes.unroll, of_keys)
        values = self._tiles(chain.values, sizes.columns, sizes.unroll_keys, of_values)
        between, plain = [], LoopSizes(target.lanes, sizes.vectors)
        for nest in chain.nests[1:-1]:
            of_row = fuse_contiguous_axes(self._in_blocks(nest), shared + 1, keep_store_axes=False)
            of_row = vectorize_reduction(of_row, shared + 1, plain.lanes, plain.vectors)
            between.append(NestLoops(of_row, plain, shared + 1))
        task, row = variable("task"), variable("row")
        axes = scores.outer[:shared]
        position = list(unravel_axes(axes, task).values())
        rows = For(row, 0, self._height, ForKind.SERIAL, sequence([nest.body([*position, row]) for nest in between]))
        body = sequence([scores.body(position), rows, values.body(position)])
        loop = For(task, 0, math.prod(axis.extent for axis in axes), ForKind.PARALLEL, body)
        return [*before, loop], [*stages, *(stage for nest in (scores, *between, values) for stage in nest.stages)]

    def _tiles(self, product: Product, columns: int, unroll: int, panels: Panels | None) -> ProductLoops:
        nest = self._in_blocks(product.nest)
        return ProductLoops(nest, self._shared, (self._sizes.rows, columns), unroll, self._target.lanes, panels)

    def _kept_in_cache(self) -> dict[Any, Row]:
        """What holds a block of rows, or one row, in place of each intermediate buffer.

        The weights of a block take the place of its scores.
        """
        first, *between, last = self._chain.nests
        of_block = {load.source for load in last.reads()} | {first.store.buffer}
        size = math.prod(shape_of(first.store.buffer)[self._shared :])
        scores = Row(intermediate("scores", [self._height * size], "float32"), self._shared, size)
        buffers: dict[Any, Row] = {}
        for nest in (first, *between):
            buffer = nest.store.buffer
            if buffer in of_block:
                buffers[buffer] = scores
            else:
                row = intermediate(str(buffer.name), [math.prod(shape_of(buffer)[self._shared :])], "float32")
                buffers[buffer] = Row(row, self._shared)
        return buffers

    def _in_blocks(self, nest: Nest) -> Nest:
        """The nest over blocks of rows, and the rows of a block, in place of the rows."""
        axes, shared = nest.store.axes, self._shared
        leading, row, rest = axes[: shared - 1], axes[shared - 1], axes[shared:]
        block = tiled_axis("block", row.extent, self._height)
        moved = with_rows(nest, {buffer: held.at(block.inner.var) for buffer, held in self._buffers.items()})
        moved = moved.substituted({row.var: block.position})
        return replace(moved, store=replace(moved.store, axes=(*leading, *block.tiles, block.inner, *rest)))


@dataclass(frozen=True, eq=False)
class Panels:
    """The operand of a product, laid out so that the columns of a tile are contiguous.

    Attributes:
        stage: What lays it out as [heads..., tile, reductions..., column].
        source: The buffer that it reads.
        heads, reductions: The variables of the product's axes.
    """

    stage: Stage
    source: Any
    heads: tuple[Any, ...]
    reductions: tuple[Any, ...]

    @classmethod
    def of(cls, product: Product, shared: int, columns: int) -> Panels:
        """The panels of a product with `shared` leading axes, for tiles of some columns."""
        load, used = product.operand, variables(product.operand)
        heads = [axis for axis in product.nest.store.axes[: shared - 1] if axis.var in used]
        column = tiled_axis("pack_column", product.column.extent, columns)
        renamed = {axis.var: Axis(variable(f"pack_{axis.name}"), axis.extent) for axis in (*heads, *product.reductions)}
        new_heads = [renamed[axis.var] for axis in heads]
        new_reductions = [renamed[axis.var] for axis in product.reductions]
        axes = (*new_heads, *column.tiles, *new_reductions, column.inner)
        position = {old: axis.var for old, axis in renamed.items()} | {product.column.var: column.position}
        name = product.nest.store.name
        buffer = intermediate(f"packed_{name}", [axis.extent for axis in axes], str(load.source.dtype))
        indices = tuple(axis.var for axis in axes)
        stage = Stage(f"pack_{name}", axes, buffer, indices, substitute(load, position))
        names = tuple(axis.var for axis in heads), tuple(axis.var for axis in product.reductions)
        return cls(stage, load.source, *names)

    def read(self, value: Expr, tile: Expr, column: Expr) -> Expr:
        """A value of the product that reads a column of a tile from here."""
        indices = (*self.heads, tile, *self.reductions, column)
        element = self.stage.buffer[indices]
        return rewrite_loads(value, lambda load: element if load.source.same_as(self.source) else None)


class ProductLoops(Loops):
    """The loops of a product: tiles of registers, along the columns and then along the rows of a block.

    Args:
        nest: The product, over shared axes, the rows of a block, and columns.
        shared: How many axes get their positions from loops outside.
        tile: The rows of a tile, which divide those of a block, and its columns.
        unroll: The steps of the innermost reduction that are unrolled.
        lanes: The elements of a vector.
        panels: The operand that depends on the columns, if it is laid out anew.
    """

    def __init__(
        self, nest: Nest, shared: int, tile: tuple[int, int], unroll: int, lanes: int, panels: Panels | None
    ) -> None:
        rows, columns = tile
        store, reduction, (term,) = nest.store, nest.reduction, nest.terms
        assert reduction is not None
        row, *free = store.axes[shared:]
        column = max(free, key=lambda axis: axis.extent)
        units = [axis for axis in free if axis is not column]
        in_rows, in_columns = tiled_axis("row", row.extent, rows), tiled_axis("column", column.extent, columns)
        outer = (*store.axes[:shared], *units, *in_columns.tiles, *in_rows.tiles)
        tile_row, (inner, element) = Axis(variable(ROW), rows), vector_axes(columns, lanes)
        *around, last = term.axes
        step, within = Axis(variable("step"), last.extent // unroll, True), Axis(variable("within"), unroll, True)
        position = {
            row.var: substitute(in_rows.position, {in_rows.inner.var: tile_row.var}),
            column.var: substitute(in_columns.position, {in_columns.inner.var: element}),
            last.var: step.var * unroll + within.var,
        }
        name, at, inside = reduction.name, (tile_row.var, element), (tile_row, *inner)
        registers = intermediate(f"{name}_registers", [rows, columns], str(reduction.buffer.dtype), "local")
        steps = (*outer, *around, step, within, *inside)
        value = term.value if panels is None else panels.read(term.value, in_columns.tiles[0].var, element)
        value = substitute(value, position)
        indices = tuple(substitute(index, position) for index in store.indices)
        result = substitute(nest.with_result(registers[at]), position)
        stages = [
            Stage(f"{name}_init", (*outer, *inside), registers, at, reduction.identity),
            Stage(f"{name}_update", steps, registers, at, value, reduction.combine),
            replace(store, axes=(*outer, *inside), indices=indices, value=result),
        ]
        super().__init__(outer, stages, unroll)
