"""Which functions are chains: two contractions and what stands between them, row by row.

    scores[row, key] = epilogue(sum of q[row, d] k[d, key])
    weights[row, ...] = softmax(scores[row, ...])
    out[row, column] = sum of weights[row, key] v[key, column]

Every loop nest has the same leading axes, of which the last one is the rows, and reads of the nests before it only the
row that it computes. So blocks of rows can be computed one after the other, and the scores of all rows never exist at
the same time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ....errors import UnsupportedFunction
from ....ir.contractions.contraction import contiguous, is_contraction, multiplied_loads
from ....ir.expressions import variables
from ....ir.inlining import inline_well, inlines_well
from ....ir.stages import Axis, Stage, StageGraph, shape_of
from ..groups import shared_axes
from ..nests import Nest, nests_of


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
    """A function of two contractions that share their rows, see the module.

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
