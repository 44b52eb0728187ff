"""Products of bytes less their zero points, as products of numbers that a kernel stages or multiplies as they are.

    sum (a - y)(b - z) = sum a b - z sum a - y sum b + n y z                over n terms

`staged_less_zero_points` has lanes subtract a zero point once, from what they stage, and widens both factors for that.
Tensor cores multiply bytes. So `of_bare_bytes` subtracts from the sums what the right side says. The sums of a constant
factor are packed behind its elements when a model is compiled. Those of another one are kernels, which run before. In
32 bits all of it wraps around alike, so that it is exact wherever the left side is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc, SeqStmt

from ...errors import UnsupportedFunction
from ...ir.contractions.factors import Factor, factors_of
from ...ir.dtypes import is_integer
from ...ir.expressions import Expr, raveled, substitute, unraveled, variables
from ...ir.kept import kept
from ...ir.stages import Axis, Stage, StageGraph, function_of, intermediate, shape_of, variable
from ...ir.workload import Workload

_WIDE = "int16"  # holds a byte less a byte
_SUMS = "int32"
_DIGITS = 4  # bytes of a sum


def product_of_integers(stage: Stage) -> tuple[Factor, Factor] | None:
    """The factors of a sum of products of which at least one is less a zero point; None if a stage is none."""
    factors = factors_of(stage)
    if factors is None or not stage.spatial or any(factor.decoders for factor in factors):
        return None
    integers = str(stage.buffer.dtype) == _SUMS and all(is_integer(factor.dtype) for factor in factors)
    return factors if integers and any(factor.zero_point for factor in factors) else None


def staged_less_zero_points(graph: StageGraph, stage: Stage) -> tuple[StageGraph, Stage]:
    """The function with factors that are widened and less their zero points before they are multiplied.

    Before:     y[i, j] += (int32(x[i, k]) - 3) * int32(w[k, j])
    After:      a[i, k] = int16(x[i, k]) - 3;  b[k, j] = int16(w[k, j]);  y[i, j] += int32(a[i, k]) * int32(b[k, j])

    Args:
        graph: The function.
        stage: One of its stages, which sums products of integers.

    Returns:
        The function, and the stage in it.
    """
    factors = product_of_integers(stage)
    if factors is None:
        return graph, stage
    dtype = _WIDE if all(factor.is_byte for factor in factors) else _SUMS
    producers, operands = [], []
    for position, factor in enumerate(factors):
        source = factor.load.source
        wide = intermediate(f"wide{position}", shape_of(source), dtype)
        axes = tuple(Axis(variable("at"), extent) for extent in shape_of(source))
        element = tuple(axis.var for axis in axes)
        value: Expr = prim.Cast(dtype, source[element]) if factor.dtype != dtype else source[element]
        if factor.zero_point:
            value = value - IntImm(dtype, factor.zero_point)
        producers.append(Stage(wide.name, axes, wide, element, value))
        operand = wide[tuple(factor.load.indices)]
        operands.append(operand if dtype == _SUMS else prim.Cast(_SUMS, operand))
    position, product = graph.stages.index(stage), replace(stage, value=prim.Mul(*operands))
    stages = (*graph.stages[:position], *producers, product, *graph.stages[position + 1 :])
    return StageGraph(graph.parameters, stages), product


@dataclass(frozen=True, eq=False)
class BareProduct:
    """A function whose contraction multiplies bytes as they are.

    Attributes:
        graph: The function. Sums that other kernels compute are parameters of it, behind its own ones.
        before: The stages that compute these sums, each a kernel.
        transforms: What packs constant inputs with their sums, as `Variant` has it.
    """

    graph: StageGraph
    before: tuple[Stage, ...] = ()
    transforms: Mapping[int, PrimFunc] = field(default_factory=dict)

    def with_sums(self, main: PrimFunc, schedule: Callable[[Schedule, Stage], None]) -> PrimFunc:
        """The whole function: kernels that sum up, and after them the others.

        Args:
            main: What `graph` computes, scheduled.
            schedule: Schedules a stage of `before`, the only one of a function.
        """
        if not self.before:
            return main
        roots, computed = [], [stage.buffer for stage in self.before]
        for stage in self.before:
            inputs = dict.fromkeys(load.source for load in stage.loads())
            alone = Schedule(StageGraph((*inputs, stage.buffer), (stage,)).function(), debug_mask=0)
            schedule(alone, stage)
            roots.append(alone.mod["main"].body.block)
        roots.append(main.body.block)
        statements = [each for root in roots for each in (root.body if isinstance(root.body, SeqStmt) else [root.body])]
        own = [buffer for buffer in main.params if buffer not in computed]
        return function_of(own, statements, [*computed, *(each for root in roots for each in root.alloc_buffers)])


@kept
def of_bare_bytes(workload: Workload) -> BareProduct:
    """A function without zero points in its product of bytes. One without them stays as it is.

    Before:     y[i, j] = f(sum over k of (int32(x[i, k]) - 3) * int32(w[k, j]))
    After:      s[j] = sum over k of int32(w[k, j])
                y[i, j] = f(sum over k of int32(x[i, k]) * int32(w[k, j]) - 3 * s[j])

    Raises:
        UnsupportedFunction: A factor is no byte; or what is summed up depends on more than inputs.
    """
    graph = workload.graph
    found = [(stage, factors) for stage in graph.stages if (factors := product_of_integers(stage))]
    if len(found) != 1:
        return BareProduct(graph)
    ((stage, factors),) = found
    if not all(factor.is_byte for factor in factors):
        raise UnsupportedFunction("a factor is no byte")
    terms = math.prod(axis.extent for axis in stage.reductions)
    correction: Expr = IntImm(_SUMS, _wrapped(terms * math.prod(factor.zero_point for factor in factors)))
    loads, before = [], []
    packed: dict[int, _Packed] = {}
    for position, (factor, other) in enumerate(zip(factors, reversed(factors), strict=True)):
        load, parameter = factor.load, graph.parameters.index
        if other.zero_point:
            sums = _sums_of(stage, load, position)
            if not sums.axes or all(axis.reduce for axis in sums.axes):
                raise UnsupportedFunction("the sums of a factor are one number")
            times = math.prod(axis.extent for axis in stage.reductions if axis.var not in _used(load))
            constant = load.source in graph.parameters and parameter(load.source) in workload.constants
            if constant and len(graph.readers(load.source)) == 1:
                holder = packed[parameter(load.source)] = _Packed(
                    load.source, sums, _wrapped(-other.zero_point * times)
                )
                correction, load = correction + holder.sum(_columns(stage, load)), holder.element(load)
            else:
                before.append(_of_parameters(graph, stage, sums))
                correction = correction - sums.buffer[_columns(stage, load)] * _wrapped(other.zero_point * times)
        loads.append(load)
    products = intermediate("products", [axis.extent for axis in stage.spatial], _SUMS)
    own = tuple(axis.var for axis in stage.spatial)
    value = prim.Mul(*(prim.Cast(_SUMS, load) for load in loads))
    bare = replace(stage, name="products", buffer=products, indices=own, value=value)
    axes = [Axis(variable(axis.name), axis.extent) for axis in stage.spatial]
    corrected = Stage(stage.name, stage.spatial, stage.buffer, stage.indices, products[own] + correction)
    corrected = corrected.over(axes, {old: axis.var for old, axis in zip(own, axes, strict=True)})
    at = graph.stages.index(stage)
    parameters = [packed[n].buffer if n in packed else buffer for n, buffer in enumerate(graph.parameters)]
    parameters += [sums.buffer for sums in before]
    stages = (*graph.stages[:at], bare, corrected, *graph.stages[at + 1 :])
    transforms = {position: holder.function() for position, holder in packed.items()}
    return BareProduct(StageGraph(tuple(parameters), stages), tuple(before), transforms)


def _used(load: Any) -> set[Any]:
    """The variables that say which element is loaded."""
    return set().union(*map(variables, load.indices))


def _columns(stage: Stage, load: Any) -> tuple[Any, ...]:
    """The variables of the axes of the results that a load depends on."""
    return tuple(axis.var for axis in stage.spatial if axis.var in _used(load))


def _sums_of(stage: Stage, load: Any, position: int) -> Stage:
    """A stage that sums up what a product loads, for each position on the axes of the results that this depends on."""
    used = _used(load)
    axes = [axis for axis in stage.axes if axis.var in used]
    own = {axis.var: Axis(variable(axis.name), axis.extent, axis.reduce) for axis in axes}
    kept_axes = [axis for axis in own.values() if not axis.reduce]
    buffer = intermediate(f"totals{position}", [axis.extent for axis in kept_axes], _SUMS)
    value = prim.Cast(_SUMS, substitute(load, {old: axis.var for old, axis in own.items()}))
    element = tuple(axis.var for axis in kept_axes)
    return Stage(buffer.name, tuple(own.values()), buffer, element, value, "sum", IntImm(_SUMS, 0))


def _of_parameters(graph: StageGraph, stage: Stage, sums: Stage) -> Stage:
    """Sums that read parameters only: what was computed element by element before is computed by them."""
    earlier = graph.stages[: graph.stages.index(stage)]
    needed = [writer for writer in earlier if writer.combine is None]
    alone = StageGraph((*graph.parameters, sums.buffer), (*needed, sums)).inlined(lambda _: False).stages[-1]
    if any(load.source not in graph.parameters for load in alone.loads()):
        raise UnsupportedFunction("what is summed up is more than elementwise")
    return alone


class _Packed:
    """A constant factor with its sums behind it: as rows of bytes, of which the last ones hold four bytes of each sum.

    The sums are multiplied before they are packed. TVM would multiply each of their bytes, which may leave 32 bits.

    Args:
        source: The constant.
        sums: The stage that sums it up.
        times: What the sums are multiplied by.
    """

    def __init__(self, source: Any, sums: Stage, times: int) -> None:
        self._source, self._sums, self._times = source, sums, times
        *self._leading, self._last = shape_of(source) if len(shape_of(source)) > 1 else (1, *shape_of(source))
        self._rows = math.prod(self._leading)
        self._digits = _DIGITS * math.prod(shape_of(sums.buffer))
        rows = self._rows + -(-self._digits // self._last)
        self.buffer = intermediate("with_sums", [rows, self._last], str(source.dtype))

    def element(self, load: Any) -> Expr:
        """What stands in place of a load of the constant."""
        *leading, last = load.indices
        row = raveled(leading, self._leading) if leading else IntImm("int32", 0)
        return self.buffer[row, last]

    def sum(self, at: Sequence[Expr]) -> Expr:
        """One of the multiplied sums, as its four bytes say.

        Args:
            at: Its position in what holds the sums.
        """
        first = raveled(at, shape_of(self._sums.buffer)) * _DIGITS
        total: Expr = IntImm(_SUMS, 0)
        for digit in range(_DIGITS):
            row, column = unraveled(first + digit, (1, self._last))
            byte = prim.BitwiseAnd(prim.Cast(_SUMS, self.buffer[row + self._rows, column]), IntImm(_SUMS, 255))
            total = total + (byte << IntImm(_SUMS, 8 * digit))
        return total

    def function(self) -> PrimFunc:
        """What packs the constant."""
        rows, last = shape_of(self.buffer)
        row, column = Axis(variable("row"), rows), Axis(variable("column"), last)
        leading = unraveled(prim.Min(row.var, IntImm("int32", self._rows - 1)), self._leading)
        element = self._source[(*leading, column.var)[-len(shape_of(self._source)) :]]
        behind = (row.var - self._rows) * last + column.var
        digit = prim.Max(prim.Min(behind, IntImm("int32", self._digits - 1)), IntImm("int32", 0))
        number, place = unraveled(digit, (1, _DIGITS))
        total = self._sums.buffer[tuple(unraveled(number, shape_of(self._sums.buffer)))]
        byte = prim.BitwiseAnd((total * self._times) >> (place * 8), IntImm(_SUMS, 255))
        value = tirx.if_then_else(row.var < self._rows, element, prim.Cast(str(self._source.dtype), byte))
        pack = Stage("with_sums", (row, column), self.buffer, (row.var, column.var), value)
        return StageGraph((self._source, self.buffer), (self._sums, pack)).function()


def _wrapped(number: int) -> int:
    """A number as 32 bits hold it: sums wrap around there, too."""
    return (number + 2**31) % 2**32 - 2**31
