"""A function as a product of matrices for tensor cores: of bytes, 16 bits or TF32, in whole fragments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.s_tir import Schedule
from tvm.sym import Analyzer

from ...errors import UnsupportedFunction
from ...ir.contractions.factors import factors_of
from ...ir.dtypes import BFLOAT16, FLOAT16, TF32, is_integer
from ...ir.expressions import coefficients, rewrite_loads, substitute, tf32, variables
from ...ir.kept import kept
from ...ir.stages import Axis, Stage, StageGraph, intermediate, shape_of, variable
from ...ir.workload import Workload
from ...machine.gpu import WARP, WORD, Gpu
from ...machine.known_gpus import tensor_rate
from .contraction import FusedContraction, fused_contraction
from .zero_points import BareProduct, of_bare_bytes

SIDE = 16
"""Rows and columns of a fragment."""
MOST_WARPS = 16
"""The most warps of a block."""
MOST_FRAGMENTS = 16
"""The most fragments that a warp accumulates, each in 8 registers of a thread."""

_OTHER_REGISTERS = 40  # of a thread, besides those of sums and operands: what `ptxas` took for some kernels, and more
_VECTOR = 16  # bytes that a thread copies at a time
_BYTES = {"int8", "uint8"}
_TILES = 8, 8, 4  # fragments of a block along rows and columns, and of a step, which are enough


@dataclass(frozen=True, eq=False)
class HalfMatmul:
    """A product of matrices of float16, bfloat16, TF32 or bytes, summed up in 32 bits, in whole fragments.

    Attributes:
        fused: The function. The axes of its contraction are those of batches, the rows, the columns and the depth.
        batches: How many products there are.
        rows: The extent of the last axis but one of the output.
        columns: That of the last one.
        depth: That of the sum.
        transposed: Whether the second operand is read as [column, depth].
        dtypes: The types of both operands, which differ for bytes at most; "tf32" for float32 whose products are in
            TF32.
        vectors: The elements of each operand that are contiguous and aligned in every row, up to 16 bytes.
        written: The elements of the output that are so, up to two.
        direct: Whether the operands are inputs of the function, as they are.
        bare: The function without zero points.
    """

    fused: FusedContraction
    batches: int
    rows: int
    columns: int
    depth: int
    transposed: bool
    dtypes: tuple[str, str]
    vectors: tuple[int, int]
    written: int
    direct: bool
    bare: BareProduct

    @property
    def dtype(self) -> str:
        """The type of the first operand."""
        return self.dtypes[0]

    @property
    def element_bytes(self) -> int:
        """The bytes of an element of the operands."""
        return 4 if self.dtype == TF32 else np.dtype(self.dtype).itemsize

    @property
    def fragment_depth(self) -> int:
        """The depth of a fragment."""
        return _fragment_depth(self.dtype)

    @property
    def words(self) -> int:
        """The words of a fragment of an operand that a lane holds."""
        return SIDE * self.fragment_depth * self.element_bytes // (WARP * WORD)


@kept
def find_matmul(workload: Workload) -> HalfMatmul:
    """The matmul that a function is, or that its convolution is if a row is a pixel and the depth is a window.

    Raises:
        UnsupportedFunction: It is no matmul in half precision, in TF32 or of bytes.
    """
    bare = of_bare_bytes(workload)
    fused = fused_contraction(bare.graph)
    stage = fused.stage
    factors = factors_of(stage)
    assert factors is not None
    loads = [factor.load for factor in factors]
    dtypes = {TF32 if factor.rounded else factor.dtype for factor in factors}
    known = dtypes in ({FLOAT16}, {BFLOAT16}, {TF32}) or dtypes <= _BYTES
    if not known or str(stage.buffer.dtype) != _sums(*dtypes):
        raise UnsupportedFunction("no product of float16, bfloat16, TF32 or bytes with sums of 32 bits")
    if tuple(stage.indices) != tuple(axis.var for axis in stage.spatial):
        raise UnsupportedFunction("the sums are laid out otherwise")
    parts = _Parts.of(stage, *loads)
    first, second = (TF32 if TF32 in dtypes else str(load.source.dtype) for load in (parts.first, parts.second))
    return _matmul_of(fused, parts, (first, second), bare)


def _sums(*dtypes: str) -> str:
    """The type in which products of operands are summed up."""
    return "int32" if all(map(is_integer, dtypes)) else "float32"


def _fragment_depth(dtype: str) -> int:
    return 2 * SIDE if is_integer(dtype) else SIDE


@dataclass(frozen=True, eq=False)
class _Parts:
    """The axes of a contraction by what they are in a product of matrices, and its operands."""

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    column: Axis
    depth: tuple[Axis, ...]
    first: Any
    second: Any

    @classmethod
    def of(cls, stage: Stage, *loads: Any) -> _Parts:
        """Raises `UnsupportedFunction` if the last axis of the output is none of columns, or there are no rows."""
        reads = [set().union(*map(variables, load.indices)) for load in loads]
        *others, column = stage.spatial
        if sum(column.var in read for read in reads) != 1:
            raise UnsupportedFunction("the last axis is no axis of columns")
        second = next(position for position, read in enumerate(reads) if column.var in read)
        rows = [axis for axis in others if axis.var not in reads[second]]
        batch = [axis for axis in others if axis.var in reads[second]]
        if not rows or not all(axis.var in reads[1 - second] for axis in others):
            raise UnsupportedFunction("no product of matrices")
        return cls(tuple(batch), tuple(rows), column, stage.reductions, loads[1 - second], loads[second])

    @property
    def transposed(self) -> bool:
        return self.column.var not in variables(self.second.indices[-1])


def _matmul_of(fused: FusedContraction, parts: _Parts, dtypes: tuple[str, str], bare: BareProduct) -> HalfMatmul:
    """The matmul with one axis of rows, of columns and of depth, in whole fragments; beyond what is there, it reads 0.

    Axes of batches, such as the groups of a convolution, come first wherever they are in the output.

    Before:     t[h, w, o] += x[h + u, w + v, c] * f[u, v, c, o];  y[h, w, o] = g(t[h, w, o])
    After:      a[i, k] = x[i // W + k // (V C), i % W + k // C % V, k % C] if i and k are there else 0
                b[k, o] = f[k // (V C), k // C % V, k % C, o] if k and o are there else 0
                t[i, o] += a[i, k] * b[k, o];  y[i // W, i % W, o] = g(t[i, o]), for i and o that are there
    """
    stage = fused.stage
    extents = [math.prod(axis.extent for axis in axes) for axes in (parts.rows, (parts.column,), parts.depth)]
    sides = SIDE, SIDE, _fragment_depth(dtypes[0])
    whole = [side * _fragments(extent, side, tile) for extent, side, tile in zip(extents, sides, _TILES, strict=True)]
    along = parts.depth[-1] if parts.transposed else parts.column
    vectors = (
        _contiguous(parts.first, parts.depth[-1], fused.producers),
        _contiguous(parts.second, along, fused.producers),
    )
    batches, after = math.prod(axis.extent for axis in parts.batch), fused.epilogue or _copied(stage)
    ordered = stage.spatial == (*parts.batch, *parts.rows, parts.column)
    direct = ordered and extents == whole and not fused.producers and _reads_as_they_are(parts)
    direct = direct and not bare.transforms  # an epilogue reads the sums that lie behind the constant
    if not direct:
        fused, after = _over_fragments(fused, parts, extents, whole, vectors)
    pairs = _pairs(after, after.axes[-1])
    rows, columns, depth = whole
    return HalfMatmul(fused, batches, rows, columns, depth, parts.transposed, dtypes, vectors, pairs, direct, bare)


def _over_fragments(
    fused: FusedContraction, parts: _Parts, extents: Sequence[int], whole: Sequence[int], vectors: tuple[int, int]
) -> tuple[FusedContraction, Stage]:
    """The function with one axis of rows, of columns and of depth, and what follows its contraction."""
    stage, graph = fused.stage, fused.graph
    batch = [Axis(variable(axis.name), axis.extent) for axis in parts.batch]
    names = ("row", "column", "depth")
    axes = [Axis(variable(name), extent, name == "depth") for name, extent in zip(names, whole, strict=True)]
    former: list[Sequence[Axis]] = [parts.rows, (parts.column,), parts.depth]
    sum_dtype = str(stage.buffer.dtype)
    producers, loads = list(fused.producers), []
    for position, (load, kinds) in enumerate(
        ((parts.first, (0, 2)), (parts.second, (1, 2) if parts.transposed else (2, 1)))
    ):
        read = set().union(*map(variables, load.indices))
        outer = [(old, new) for old, new in zip(parts.batch, batch, strict=True) if old.var in read]
        own = [
            Axis(variable(axis.name), axis.extent) for axis in (*(new for _, new in outer), *(axes[k] for k in kinds))
        ]
        values = {old.var: axis.var for (old, _), axis in zip(outer, own, strict=False)}
        there = []
        for kind, axis in zip(kinds, own[len(outer) :], strict=True):
            values |= _parts_of(axis.var, former[kind])
            if extents[kind] != whole[kind]:
                there.append(within(axis.var, extents[kind], vectors[position]))
        dtype = str(load.source.dtype)
        element = load.source[tuple(substitute(index, values) for index in load.indices)]
        if there:
            element = tirx.if_then_else(tirx.all(*there), element, tirx.const(0, dtype))
        operand = intermediate(f"operand{position}", [axis.extent for axis in own], dtype)
        producers.append(Stage(operand.name, tuple(own), operand, tuple(axis.var for axis in own), element))
        loads.append(operand[tuple(axis.var for axis in (*(new for _, new in outer), *(axes[k] for k in kinds)))])
    sums = intermediate("sums", [*(axis.extent for axis in batch), *whole[:2]], sum_dtype)
    product = replace(
        stage,
        axes=(*batch, *axes),
        buffer=sums,
        indices=tuple(axis.var for axis in (*batch, *axes[:2])),
        value=prim.Mul(*(tf32(load) if dtype == "float32" else prim.Cast(sum_dtype, load) for load in loads)),
    )
    epilogue = _over_rows(fused.epilogue or _copied(stage), stage, parts, sums, extents)
    graph = StageGraph(graph.parameters, (*producers, product, epilogue))
    return replace(fused, graph=graph, stage=product, producers=tuple(producers), epilogue=epilogue), epilogue


def _over_rows(epilogue: Stage, stage: Stage, parts: _Parts, sums: Any, extents: Sequence[int]) -> Stage:
    """What follows a contraction, over batches, rows and columns.

    Raises:
        UnsupportedFunction: It reads other elements of the sums than that which it writes.
    """
    own = tuple(axis.var for axis in epilogue.axes)
    batch = [Axis(variable(axis.name), axis.extent) for axis in parts.batch]
    row, column = Axis(variable("row"), extents[0]), Axis(variable("column"), extents[1])
    element = sums[tuple(axis.var for axis in (*batch, row, column))]

    def read(load: Any) -> Any | None:
        if not load.source.same_as(stage.buffer):
            return None
        if tuple(load.indices) != own:
            raise UnsupportedFunction("what follows reads the sums in another order")
        return element

    former = dict(zip((axis.var for axis in stage.spatial), own, strict=True))
    values = {former[old.var]: new.var for old, new in zip(parts.batch, batch, strict=True)}
    values |= {former[old]: value for old, value in _parts_of(row.var, parts.rows).items()}
    values[former[parts.column.var]] = column.var
    return replace(epilogue, value=rewrite_loads(epilogue.value, read)).over([*batch, row, column], values)


def _parts_of(index: Any, axes: Sequence[Axis]) -> dict[Any, Any]:
    """The values of axes, by their variables, from the position in all of them together."""
    values, inner = {}, math.prod(axis.extent for axis in axes)
    for position, axis in enumerate(axes):
        inner //= axis.extent
        value = index if inner == 1 else index // inner
        values[axis.var] = value if position == 0 else value % axis.extent
    return values


def _reads_as_they_are(parts: _Parts) -> bool:
    """Whether the operands are read as [batch, row, depth] and as [depth, column] or [column, depth]."""
    if len(parts.rows) != 1 or len(parts.depth) != 1:
        return False
    batch = [axis.var for axis in parts.batch]
    (row,), column, (depth,) = parts.rows, parts.column.var, parts.depth
    matrix = [column, depth.var] if parts.transposed else [depth.var, column]
    return list(parts.first.indices) == [*batch, row.var, depth.var] and list(parts.second.indices) in (
        [*batch, *matrix],
        matrix,
    )


def _contiguous(load: Any, axis: Axis, producers: Sequence[Stage]) -> int:
    """The elements along an axis that a load reads as one vector wherever it begins, up to 16 bytes.

    If a producer writes what is read, then also those that this reads.
    """
    widest = _VECTOR // np.dtype(str(load.source.dtype)).itemsize
    width = math.gcd(axis.extent, shape_of(load.source)[-1], _alignment(load.indices[-1], axis), widest)
    for writer in (stage for stage in producers if stage.buffer.same_as(load.source)):
        for read in writer.loads():
            if any(writer.axes[-1].var in variables(index) for index in read.indices):
                width = math.gcd(width, _contiguous(read, writer.axes[-1], producers))
    return width


def _alignment(index: Any, axis: Axis) -> int:
    """What divides an index wherever elements along an axis begin; 1 if these are no neighbours, 0 if it is 0."""
    names = variables(index)
    factors = coefficients(index, names)
    first = Analyzer().simplify(substitute(index, dict.fromkeys(names, IntImm("int32", 0))))
    if factors is None or factors.pop(axis.var, 0) != 1 or not isinstance(first, IntImm):
        return 1
    return math.gcd(int(first), *factors.values())


def _fragments(extent: int, side: int, tile: int) -> int:
    """The fragments along an axis: as many as it needs, or up to an eighth more if these divide into better tiles."""
    needed = -(-extent // side)
    return max(range(needed, needed * 9 // 8 + 1), key=lambda count: (math.gcd(count, tile), -count))


def _pairs(epilogue: Stage, column: Axis) -> int:
    """2 if a stage can read and write two neighbouring columns as one vector; else 1."""
    accesses = [(epilogue.buffer, epilogue.indices), *((load.source, load.indices) for load in epilogue.loads())]
    even = column.extent % 2 == 0
    for buffer, (*_, last) in ((buffer, indices) for buffer, indices in accesses if indices):
        if column.var in variables(last):
            even &= _alignment(last, column) % 2 == 0 and shape_of(buffer)[-1] % 2 == 0
    return 2 if even else 1


def within(index: Any, extent: int, vector: int) -> Any:
    """Whether an index is below an extent, in a form that is the same for all elements of a vector.

    Args:
        index: The index.
        extent: The extent.
        vector: The elements of a vector, which begins at a multiple of them.
    """
    return index < extent if vector == 1 or extent % vector else index // vector < extent // vector


def _copied(stage: Stage) -> Stage:
    """A stage that writes what another one computes, element by element, to where that one writes."""
    axes = tuple(Axis(variable(axis.name), axis.extent) for axis in stage.spatial)
    indices = tuple(axis.var for axis in axes)
    return Stage("copied", axes, stage.buffer, indices, stage.buffer[indices])


Layout = Callable[[Any, Any], tuple[Any, Any]]
"""The lane of an element of a fragment, and its position in the lane's registers, by its row and column."""


def layout_of(matmul: HalfMatmul, position: int) -> Layout:
    """The layout of an operand's fragments, which are [row, depth], [column, depth] or [depth, column].

    Args:
        matmul: The matmul.
        position: 0 for the first operand, 1 for the second one.
    """
    second, by_depth = position == 1, position == 1 and not matmul.transposed
    if matmul.dtype == TF32:
        return lambda i, j: words_by_lanes(*((j, i) if by_depth else (i, j)), second)
    if matmul.element_bytes == 2:
        return pairs_by_lanes
    return (lambda i, j: (i % 16 // 4 + j % 8 * 4, j // 8 * 8 + i // 16 * 4 + i % 4)) if by_depth else _bytes_by_lanes


def pairs_by_lanes(i: Any, j: Any) -> tuple[Any, Any]:
    """The layout of sums, and of operands of 16 bits.

    Lane l has rows l / 4 and l / 4 + 8 of a fragment, and of its columns two neighbours in each half.

    Args:
        i: The row.
        j: The column.
    """
    return i % 8 * 4 + j % 8 // 2, j // 8 * 4 + i // 8 * 2 + j % 2


def _bytes_by_lanes(i: Any, j: Any) -> tuple[Any, Any]:
    return i % 8 * 4 + j % 16 // 4, j // 16 * 8 + i // 8 * 4 + j % 4


def words_by_lanes(outer: Any, depth: Any, second: bool) -> tuple[Any, Any]:
    """Where an element of an operand of TF32 is in a fragment: the lane, and the position in its registers.

    Args:
        outer: Its row in the first operand, its column in the second one.
        depth: Its depth.
        second: Whether it is of the second operand.
    """
    position = outer // 8 * 4 + depth // 4 if second else depth // 8 * 4 + depth % 8 // 4 * 2 + outer // 8
    return outer % 8 * 4 + depth % 4, position


@dataclass(frozen=True)
class WarpLoops:
    """The loops of a tiled matmul that others are computed in, the outermost first.

    Attributes:
        blocks: The loop over blocks.
        warps: That over the warps of a block.
        steps: That over the steps of the depth.
        fragments: That over the fragments of a step.
        product: The outermost loop of a product of two fragments.
    """

    blocks: Any
    warps: Any
    steps: Any
    fragments: Any
    product: Any


def speedup_of_tensor_cores(matmul: HalfMatmul, target: Gpu) -> float:
    """How much faster tensor cores multiply the factors of a matmul than the lanes of a GPU multiply float32."""
    return tensor_rate(target.name, target.arch) * 2 / matmul.element_bytes / (2 * target.lanes)


def thread_registers(rows: Sequence[Any], columns: Sequence[Any], words: int = 4) -> Any:
    """An estimate of the registers of a thread.

    Args:
        rows: The factors of rows: blocks, warps of a block, fragments of a warp, each an integer or shape (n,).
        columns: The same of columns.
        words: Those of a fragment of an operand that a lane holds.
    """
    return 8 * rows[2] * columns[2] + words * (rows[2] + columns[2]) + _OTHER_REGISTERS


def tile_in_warps(
    schedule: Schedule, block: Any, config: Mapping[str, Any], depth_of_fragment: int = SIDE
) -> WarpLoops:
    """Tiles the products in blocks, warps, steps and fragments, and binds the first two.

    Args:
        schedule: The schedule.
        block: The block of the products.
        config: `rows` and `columns` have three factors (blocks, warps, fragments), `steps` two (steps, fragments).
            Blocks go through so many rows of them as `panel` says, column by column; by default through one.
        depth_of_fragment: The depth of a fragment.
    """
    *batch, row, column, depth = schedule.get_loops(block)
    i0, i1, i2, i3 = schedule.split(row, [*config["rows"], SIDE])
    j0, j1, j2, j3 = schedule.split(column, [*config["columns"], SIDE])
    k0, k1, k2 = schedule.split(depth, [*config["steps"], depth_of_fragment])
    panels, i0 = schedule.split(i0, [None, config.get("panel", 1)])
    schedule.reorder(*batch, panels, j0, i0, i1, j1, k0, k1, i2, j2, i3, j3, k2)
    blocks, warps = schedule.fuse(*batch, panels, j0, i0), schedule.fuse(i1, j1)
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(warps, "threadIdx.y")
    return WarpLoops(blocks, warps, k0, k1, i3)


def share_among_threads(schedule: Schedule, nest: Any, outside: int, warps: int, vector: int) -> None:
    """Divides the loops of a nest, after the `outside` outermost, among all threads of a block, vector by vector.

    Args:
        schedule: The schedule.
        nest: The block whose loops are divided.
        outside: How many of its loops stay as they are.
        warps: The warps of a block, along threadIdx.y.
        vector: The elements that a thread moves at a time.
    """
    fused = schedule.fuse(*schedule.get_loops(nest)[outside:])
    _, warp, lane, elements = schedule.split(fused, [None, warps, WARP, vector])
    schedule.bind(warp, "threadIdx.y")
    schedule.bind(lane, "threadIdx.x")
    schedule.vectorize(elements)


def split_into_fragments(schedule: Schedule, nest: Any, sides: Sequence[int] = (SIDE, SIDE)) -> Any:
    """Tiles the last two loops of a nest in fragments; returns the outer loop inside of a fragment.

    Args:
        schedule: The schedule.
        nest: The block.
        sides: The rows and columns of a fragment.
    """
    (i0, i1), (j0, j1) = (
        schedule.split(loop, [None, side]) for loop, side in zip(schedule.get_loops(nest)[-2:], sides, strict=True)
    )
    schedule.reorder(i0, j0, i1, j1)
    return i1
