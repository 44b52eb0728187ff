"""The loops of a chain in one configuration; `sketch` draws them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tvm.tirx import For, ForKind

from ....ir.expressions import Expr, rewrite_loads, substitute, variables
from ....ir.stages import Axis, Stage, intermediate, sequence, shape_of, variable
from ....machine.cpu import Cpu
from ..contractions.tiled_contraction import tiled_axis
from ..groups import Row, with_rows
from ..loops import ROW, Loops, LoopSizes, NestLoops, default_loops, vector_axes
from ..nest_rewrites import fuse_contiguous_axes, unravel_axes, vectorize_reduction
from ..nests import Nest
from .chain import Chain, Product


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
