"""Attention as one kernel: two contractions with a softmax between them, in blocks of rows.

    for heads and blocks of rows, in parallel:
        for tiles of keys and rows:                 scores[row, key] = epilogue(sum of q[row, d] k[d, key])
        for row in the block:                       scores[row, ...] = softmax(scores[row, ...])
        for tiles of columns and rows:              out[row, column] = sum of scores[row, key] v[key, column]

The scores of a block are written, made a softmax and read again while they lie in a cache. Apart from that they would
be written to memory and read from it three times each. `chain` says which functions are such.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ....errors import UnsupportedFunction
from ....ir.elementary import expand_for_cpu
from ....ir.kept import kept
from ....ir.stages import assemble
from ....ir.workload import Workload
from ....machine.cpu import Cpu
from ....space import Categorical, Constraint, Knob, Ordinal, Space
from ...contract import Variant
from ..cheapest_origin import with_cheapest_origin
from ..contractions.contraction_shape import fits_registers
from ..contractions.register_blocked import UNROLLS, column_tiles
from . import cost_model
from .chain import Chain, Product, find_chain
from .loops import BlockSizes, RowBlocks

_MOST_ROWS = 14  # of a tile
_BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
_VECTORS = (1, 2, 3, 4)  # of a tile's columns
_SOFTMAX_VECTORS = (1, 2, 4)
_WASTE = 1.16  # blocks may compute up to this many times the rows
_SHARE = 0.75  # of a second cache that the scores of a block may take
_USUAL_L2 = 512 << 10  # bytes of a second cache of which nothing is known


@dataclass(frozen=True)
class Attention:
    """A sketch for functions of two contractions that share rows, see the module."""

    name: ClassVar[str] = "attention"
    max_error: ClassVar[float] = 0.0

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        """The tilings whose scores fit a second cache; None for another function.

        The knobs:

        - `rows`: rows of a tile of registers
        - `block`: tiles of rows of a task
        - `keys`, `columns`: columns of a tile of scores, and of the result
        - `unroll`, `unroll_keys`: steps of their sums that are unrolled
        - `vectors`: vectors of a step of the softmax
        - `pack_keys`, `pack_values`: whether a stage lays these out anew
        """
        return _space(workload, target)

    def estimate(self, workload: Workload, target: Cpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The expected cycles of n configurations."""
        return cost_model.cycles(_chain(workload), knobs, target)

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        chain = _chain(workload)
        sizes = BlockSizes(**config)
        statements, stages = RowBlocks(chain, sizes, target).statements()
        main = assemble(chain.parameters, stages, statements)
        return Variant(expand_for_cpu(main, target.keep_denormals))


@kept
def _chain(workload: Workload) -> Chain:
    return find_chain(workload.graph)


@kept
def _space(workload: Workload, target: Cpu) -> Space | None:
    try:
        chain = _chain(workload)
    except UnsupportedFunction:
        return None
    scores, values = chain.scores, chain.values
    most = max(_SHARE * (target.l2 or _USUAL_L2), 4.0 * scores.column.extent)

    def fits_block(rows: int, block: int) -> bool:
        height = rows * block
        few = height <= chain.rows and -(-chain.rows // height) * height <= _WASTE * chain.rows
        return few and 4 * height * scores.column.extent <= most

    tiles: list[Knob] = [
        Ordinal("rows", range(1, min(chain.rows, target.registers - 2, _MOST_ROWS) + 1)),
        Ordinal("block", _BLOCKS),
        Ordinal("keys", column_tiles(scores.column.extent, target.lanes, _VECTORS)),
        Ordinal("columns", column_tiles(values.column.extent, target.lanes, _VECTORS)),
    ]
    unrolls = [Ordinal("unroll", _factors(scores)), Ordinal("unroll_keys", _factors(values))]
    others: list[Knob] = [
        Ordinal("vectors", _SOFTMAX_VECTORS),
        Categorical("pack_keys", [1] if scores.must_pack else [0, 1]),
        Categorical("pack_values", [1] if values.must_pack else [0, 1]),
    ]
    registers = f"accumulators, a row of columns and one more fit {target.registers} registers of {target.lanes}"
    constraints = [
        Constraint(("rows", "block"), fits_block, f"the scores of a block take {most:.0f} bytes at most"),
        *(
            Constraint(("rows", name), lambda rows, size: bool(fits_registers(rows, size, target)), registers)
            for name in ("keys", "columns")
        ),
    ]
    # Unrolling is never expected to be worse, so that it need not be compared.
    unrolled = {knob.name: np.asarray(knob.values[-1]) for knob in unrolls}
    space = with_cheapest_origin(
        Space(Attention.name, [*tiles, *others], constraints),
        lambda columns: cost_model.cycles(chain, {**columns, **unrolled}, target),
    )
    origin = space.config(space.origin) | {knob.name: knob.values[-1] for knob in unrolls}
    return Space(Attention.name, [*tiles, *unrolls, *others], constraints, origin=origin)


def _factors(product: Product) -> list[int]:
    """How many steps of the innermost sum may be unrolled: none, or about as many as an unrolled loop gains from."""
    factors = [factor for factor in UNROLLS if product.reductions[-1].extent % factor == 0]
    return sorted({1, *factors[-2:]})
