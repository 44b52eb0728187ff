"""The sketch `gpu_winograd_m`: convolutions of stride 1 by Winograd's minimal filtering, in three kernels.

    V[position, tile, channel] = B^T d B                    a thread has a tile of one channel
    M[position, tile, column] += V * U                      products of matrices, tiled as those of `gpu_contraction`
    output = epilogue(A^T M A)                              a thread has a tile of one output channel

Outputs are computed in tiles of m x m from tiles of alpha x alpha inputs; `winograd.transforms` has the formulas. A
3 x 3 convolution takes 4 times fewer products with m = 4, and 2.25 times fewer with m = 2. What it takes in exchange is
memory: V has alpha^2 / m^2 times the elements of the input, M as many times those of the output, and each is written
once and read once. U, the transformed weights, is computed ahead of time.

If m does not divide an extent, the last tiles overlap those before them, and store only what no tile before them does.
Tiles are filled up to a number that has more divisors; what is filled up computes the last tile again, for nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import tirx
from tvm.ir import Range
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.tirx import BufferRegion, BufferStore, For, ForKind, IterVar, PrimFunc

from ...errors import UnsupportedFunction
from ...ir.contractions.contraction import contiguous
from ...ir.expressions import Expr, loads_in, substitute
from ...ir.kept import kept
from ...ir.stages import Stage, StageGraph, function_of, intermediate, loop, sequence, shape_of, variable
from ...ir.workload import Workload
from ...machine.gpu import Gpu
from ...space import Ordinal, Space
from ..contract import Variant
from ..winograd.convolution import Convolution, find_convolution
from ..winograd.tiles import TilePosition, constant_stage, named_axes
from ..winograd.transforms import POINTS, Filter, matrices, rows_of_input, rows_of_output
from .features import analytic_features
from .limits import (
    DEFAULT_UNROLL,
    default_in_parts,
    pipeline_constraint,
    tiling_constraints,
    tiling_knobs,
    widest_fetches,
)
from .tiled_loops import STAGES, schedule_tiles
from .tiling import ContractionAxes, Operand, Tilings
from .times.tilings import expected_seconds
from .times.waves import LAUNCH

Rows = Callable[[Filter, Sequence[Expr]], list[Expr]]
"""`rows_of_input` or `rows_of_output`."""

_MOST_POSITIONS = 36  # of a tile; a thread has them in registers
_THREADS = (64, 128, 256)
_MOST_BYTES = 1 << 30  # of what kernels hand on, which also keeps indices within 32 bits
_FLOAT = 4  # bytes
_MORE_TILES = 1.15  # times as many, so that they have more divisors
_SMOOTH = 2**12 * 3**4 * 5**3 * 7**3  # what divides it has small factors only


@dataclass(frozen=True)
class GpuWinograd:
    """The sketch that this module describes.

    Args:
        m: The outputs of a tile along each axis that has a window: 2 or 4.
        max_error: The bound on max|difference| / max|reference| of what it computes.
    """

    m: int
    max_error: float = 1e-4

    @property
    def name(self) -> str:
        """`gpu_winograd_2` or `gpu_winograd_4`."""
        return f"gpu_winograd_{self.m}"

    def speedup_bound(self, workload: Workload, target: Gpu) -> float:
        """See `Bounded`: a transformed convolution has at most this many times fewer operations than the plain sum."""
        return 4.0

    def space(self, workload: Workload, target: Gpu) -> Space | None:
        """The tilings of the products; None for a function that is no such convolution.

        The knobs are those of `GpuContraction` for the products, without parts; their axes are positions, tiles,
        columns and, summed over, channels. And there are the threads of a block of both transforms.
        """
        return _space(workload, self, target)

    def features(self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The seven of `analytic_features` of the products, shape (n, 7), of n configurations."""
        tilings = Tilings.of(_Kernels(_convolution(workload, self.m), self.m).axes, knobs)
        return analytic_features(tilings, target, stages=knobs["stages"])

    def estimate(self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The expected seconds of n configurations: of the products, and of both transforms at the bandwidth."""
        kernels = _Kernels(_convolution(workload, self.m), self.m)
        fetch = knobs["fetch0"], knobs["fetch1"]
        products = expected_seconds(
            Tilings.of(kernels.axes, knobs), target, fetch, knobs["unroll"], stages=knobs["stages"]
        )
        handed_on = sum(math.prod(shape_of(buffer)) for buffer in (kernels.v, kernels.m))
        moved = _FLOAT * handed_on * (1 + 1 / kernels.grown)  # by the transforms
        return products + 2 * LAUNCH + moved / target.bandwidth

    def apply(self, workload: Workload, target: Gpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        return _Kernels(_convolution(workload, self.m), self.m).variant(config, target)


def _convolution(workload: Workload, m: int) -> Convolution:
    """The convolution of a workload.

    Raises:
        UnsupportedFunction: There is none with contiguous channels, in float32, whose tiles fit a thread.
    """
    conv = find_convolution(workload)
    contraction = conv.contraction
    factors = (contraction.data_factor, contraction.column_factor)
    if any(factor.dtype != "float32" or factor.rounded or factor.decoders for factor in factors) or contraction.after:
        raise UnsupportedFunction("not a convolution in float32 with one result")
    if not contiguous(contraction.other, conv.channel.var) or not contiguous(
        contraction.epilogue.buffer[contraction.epilogue.indices], conv.column.var
    ):
        raise UnsupportedFunction("channels are not contiguous")
    filters = conv.filters(m)
    if any(axis.extent < tile.m for (axis, _), tile in zip(conv.image, filters, strict=True)):
        raise UnsupportedFunction("the image is smaller than a tile")
    if any(tile.alpha not in POINTS for tile in filters) or math.prod(tile.alpha for tile in filters) > _MOST_POSITIONS:
        raise UnsupportedFunction("a tile does not fit the registers of a thread")
    positions = math.prod(tile.alpha for tile in filters)
    handed_on = positions * _filled_up(conv.tiles(m)) * (conv.channel.extent + conv.column.extent)
    if _FLOAT * handed_on > _MOST_BYTES:
        raise UnsupportedFunction(f"the transformed data takes more than {_MOST_BYTES} bytes")
    return conv


@kept
def _space(workload: Workload, sketch: GpuWinograd, target: Gpu) -> Space | None:
    try:
        axes = _Kernels(_convolution(workload, sketch.m), sketch.m).axes
    except UnsupportedFunction:
        return None
    found = default_in_parts(axes, target, (1,), STAGES if target.asynchronous_copies else STAGES[:1])
    if found is None:
        return None
    tiling, more = found
    knobs = [*tiling_knobs(axes), Ordinal("stages", STAGES), Ordinal("threads", _THREADS)]
    fetches = {f"fetch{position}": width for position, width in enumerate(widest_fetches(axes, tiling))}
    origin = {**tiling, **fetches, "unroll": DEFAULT_UNROLL, "stages": more["stages"], "threads": 128}
    constraints = [*tiling_constraints(axes, target), pipeline_constraint(axes, target, split=False)]
    return Space(sketch.name, knobs, constraints, origin)


class _Kernels:
    """One convolution by filters of m outputs: its kernels, and the transform of its weights.

    Args:
        conv: The convolution.
        m: The outputs of a tile along each axis that has a window.

    Raises:
        UnsupportedFunction: What comes before the convolution or after it is more than elementwise.
    """

    def __init__(self, conv: Convolution, m: int) -> None:
        self.conv, self.outputs = conv, m
        self.down, self.across = conv.filters(m)
        self.tiles = conv.tiles(m)
        positions, channels, columns = self.down.alpha * self.across.alpha, conv.channel.extent, conv.column.extent
        tiles = _filled_up(self.tiles)
        self.v = intermediate("V", [positions, tiles, channels], "float32")
        self.u = intermediate("U", [positions, channels, columns], "float32")
        self.m = intermediate("M", [positions, tiles, columns], "float32")
        self.epilogue = _alone(conv, conv.contraction.epilogue)

    @property
    def grown(self) -> float:
        """Elements of V for each element of the image."""
        return self.down.alpha * self.across.alpha / (self.down.m * self.across.m)

    @cached_property
    def axes(self) -> ContractionAxes:
        """The axes of the products."""
        positions, tiles, channels = shape_of(self.v)
        columns = self.conv.column.extent
        p, t, o, c = ((name, 1) for name in ("space0", "space1", "space2", "reduce0"))
        operands = Operand(((p,), (t,), (c,)), shape_of(self.v)), Operand(((p,), (c,), (o,)), shape_of(self.u))
        spatial = ("space0", positions), ("space1", tiles), ("space2", columns)
        return ContractionAxes(spatial, (("reduce0", channels),), operands)

    def variant(self, config: Mapping[str, Any], target: Gpu) -> Variant:
        """The schedule at a configuration."""
        conv = self.conv
        positions, tiles, columns = shape_of(self.m)
        p, t, o, c = named_axes(p=positions, t=tiles, o=columns, c=-conv.channel.extent)
        indices = (p.var, t.var, o.var)
        value = self.v[p.var, t.var, c.var] * self.u[p.var, c.var, o.var]
        products = Stage("products", (p, t, o, c), self.m, indices, value, "sum", tirx.const(0.0, "float32"))
        parameters = [
            self.u if buffer.same_as(conv.weight.source) else buffer for buffer in conv.contraction.graph.parameters
        ]
        statements = [self._input(), products.statement(), self._output()]
        main = function_of(parameters, statements, [self.v, self.m])
        schedule = Schedule(tvm.IRModule({"main": main}), debug_mask=0)
        self._schedule_products(schedule, config, target)
        for name in ("input", "output"):
            loops = schedule.split(schedule.fuse(*schedule.get_loops(name)), [None, config["threads"]])
            for bound, axis in zip(loops, ("blockIdx.x", "threadIdx.x"), strict=True):
                schedule.bind(bound, axis)
        return Variant(schedule.mod["main"], {conv.constant: self._weight_transform()})

    def _schedule_products(self, schedule: Schedule, config: Mapping[str, Any], target: Gpu) -> None:
        block = schedule.get_sblock("products")
        sums = schedule.cache_write(block, 0, "local")
        names = (name for name, _ in (*self.axes.spatial, *self.axes.reductions))
        loops = dict(zip(names, schedule.get_loops(block), strict=True))
        beside = target.asynchronous_copies
        schedule_tiles(schedule, block, sums, loops, self.axes, config, config, asynchronous=beside)

    def _input(self) -> Any:
        """V = B^T d B, columns first."""
        conv, (_, tiles, channels) = self.conv, shape_of(self.v)
        down, across, ((_, ry), (_, rx)) = self.down, self.across, conv.image
        fetched, half = self._registers(down.alpha)
        image = Stage("image", (), intermediate("image", [1], "float32"), (IntImm("int32", 0),), conv.data)
        data = _alone(conv, image).value

        def body(number: Expr, channel: Expr) -> list[Any]:
            tile = TilePosition(conv, self.outputs, prim.Min(number, IntImm("int32", self.tiles - 1)))

            def column(index: Expr) -> Any:
                window = {rx.var: index, conv.channel.var: channel}
                places = [{**tile.corner, **window, ry.var: IntImm("int32", row)} for row in range(down.alpha)]
                return self._transformed(
                    [substitute(data, place) for place in places], fetched, rows_of_input, half, index
                )

            def row(index: Expr) -> Any:
                values = rows_of_input(across, [half[index, column] for column in range(across.alpha)])
                position = index * across.alpha
                return sequence(
                    [
                        BufferStore(self.v, value, [position + place, number, channel])
                        for place, value in enumerate(values)
                    ]
                )

            return [
                *tile.bindings,
                loop(across.alpha, column, ForKind.UNROLLED),
                loop(down.alpha, row, ForKind.UNROLLED),
            ]

        return self._nest("input", (tiles, channels), body, self.v, [data], fetched, half)

    def _output(self) -> Any:
        """A^T M A of a tile, columns first, and the epilogue."""
        conv, down, across = self.conv, self.down, self.across
        fetched, half = self._registers(down.m)
        results = intermediate("results", [down.m, across.m], "float32", "local")

        def body(number: Expr, output_channel: Expr) -> list[Any]:
            tile = TilePosition(conv, self.outputs, number)

            def column(index: Expr) -> Any:
                places = [(row * across.alpha + index, number, output_channel) for row in range(down.alpha)]
                return self._transformed([self.m[place] for place in places], fetched, rows_of_output, half, index)

            def row(index: Expr) -> Any:
                values = rows_of_output(across, [half[index, column] for column in range(across.alpha)])
                sums = [BufferStore(results, value, [index, place]) for place, value in enumerate(values)]

                def output(place: Expr) -> Any:
                    stored = tile.store(self.epilogue, index, place, output_channel, results[index, place])
                    return tile.unless_done_before(index, place, stored)

                return sequence([*sums, _unrolled(across.m, output)])

            return [*tile.bindings, _unrolled(across.alpha, column), _unrolled(down.m, row)]

        written, value = self.epilogue.buffer, self.epilogue.value
        return self._nest("output", (self.tiles, conv.column.extent), body, written, [value], fetched, half, results)

    def _registers(self, rows: int) -> tuple[Any, Any]:
        """Of a thread: a column of a tile, and all columns after the transform along them."""
        shapes = {"column": [self.down.alpha], "half": [rows, self.across.alpha]}
        fetched, half = (intermediate(name, shape, "float32", "local") for name, shape in shapes.items())
        return fetched, half

    def _transformed(self, values: Sequence[Expr], fetched: Any, rows: Rows, half: Any, column: Expr) -> Any:
        """Fetches a column of a tile, each element once, and transforms it."""
        fetches = [BufferStore(fetched, value, [place]) for place, value in enumerate(values)]
        transformed = rows(self.down, [fetched[place] for place in range(len(values))])
        return sequence([*fetches, *(BufferStore(half, value, [row, column]) for row, value in enumerate(transformed))])

    def _nest(
        self,
        name: str,
        extents: Sequence[int],
        body: Callable[[Expr, Expr], list[Any]],
        written: Any,
        values: Sequence[Expr],
        *local: Any,
    ) -> Any:
        """Loops over tiles and channels around a block that writes some elements of a buffer."""
        outer = named_axes(t=extents[0], o=extents[1])
        loops = [variable(axis.name) for axis in outer]
        summed = self.conv.contraction.stage.buffer
        sources = {
            self.m if load.source.same_as(summed) else load.source for value in values for load in loads_in(value)
        }
        block = SBlock(
            [IterVar(Range(0, axis.extent), axis.var, IterVar.DataPar) for axis in outer],
            [_whole(source) for source in sources],
            [_whole(written)],
            name,
            sequence(body(*(axis.var for axis in outer))),
            alloc_buffers=list(local),
        )
        statement: Any = SBlockRealize(loops, True, block)
        for index, extent in zip(reversed(loops), reversed(extents), strict=True):
            statement = For(index, 0, extent, ForKind.SERIAL, statement)
        return statement

    def _weight_transform(self) -> PrimFunc:
        """From the weights to U = G g G^T, rows first."""
        conv, down, across = self.conv, self.down, self.across
        (_, ry), (_, rx) = conv.image
        _, channels, columns = shape_of(self.u)
        g_down, g_across = (
            constant_stage(name, matrices(tile).weight, "float32")
            for name, tile in (("G_down", down), ("G_across", across))
        )
        half = intermediate("half", [down.alpha, across.r, channels, columns], "float32")
        zero = tirx.const(0.0, "float32")
        e, x, c, o, r = named_axes(e=down.alpha, x=across.r, c=channels, o=columns, r=-down.r)
        taps = {ry.var: r.var, rx.var: x.var, conv.channel.var: c.var, conv.column.var: o.var}
        value = g_down.buffer[e.var, r.var] * substitute(conv.weight, taps)
        rows = Stage("rows", (e, x, c, o, r), half, (e.var, x.var, c.var, o.var), value, "sum", zero)
        e, v, c, o, r = named_axes(e=down.alpha, v=across.alpha, c=channels, o=columns, r=-across.r)
        value = g_across.buffer[v.var, r.var] * half[e.var, r.var, c.var, o.var]
        place = (e.var * across.alpha + v.var, c.var, o.var)
        transformed = Stage("columns", (e, v, c, o, r), self.u, place, value, "sum", zero)
        return StageGraph((conv.weight.source, self.u), (g_down, g_across, rows, transformed)).function()


def _filled_up(tiles: int) -> int:
    """The least number, of those a little larger, whose divisors make the best tiles."""
    several = range(tiles, int(tiles * _MORE_TILES) + 1)
    return max(several, key=lambda count: (math.gcd(count, 8), _SMOOTH % (count // math.gcd(count, 8)) == 0, -count))


def _alone(conv: Convolution, stage: Stage) -> Stage:
    """A stage that computes itself what stages before the convolution make for it.

    Raises:
        UnsupportedFunction: One of them is more than elementwise.
    """
    summed = conv.contraction.stage.buffer
    graph = StageGraph((stage.buffer,), (*conv.before, stage)).inlined(lambda _: False)
    alone = graph.stages[-1]
    known = (*conv.contraction.graph.parameters, summed)
    if any(load.source not in known for load in alone.loads()):
        raise UnsupportedFunction("what comes before the convolution is more than elementwise")
    return alone


def _unrolled(extent: int, body: Callable[[Expr], Any]) -> Any:
    return loop(extent, body, ForKind.UNROLLED)


def _whole(buffer: Any) -> Any:
    return BufferRegion(buffer, [Range(0, extent) for extent in shape_of(buffer)])
