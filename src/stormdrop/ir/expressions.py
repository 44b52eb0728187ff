"""Expressions of TensorIR: reading them, rewriting them, and the coefficients of affine indices.

Our own recursion stays where `tvm_ffi` and `tvm.sym` are slower or not right. On the expressions of a conv2d
(2026-11-22, CPU: Cascade Lake, 2 cores):

    loads_in        theirs: structural_walk takes 0.13 ms, our walk 0.44 ms
    variables       ours: 1 us for an index, structural_walk 17 us, because it also enters types and shapes
    transform       ours: 0.5 ms, structural_mutate 1.5 ms
    substitute      ours: 0.9 ms, structural_map 0.45 ms, but it turns Ctrl-C in a callback into a RuntimeError
    coefficients    ours: 0.07 ms for all indices, detect_linear_equation 0.5 ms
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Call, Range, TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx import AttrStmt, For, IfThenElse, SeqStmt
from tvm_ffi import structural_walk

from ..errors import UnsupportedFunction
from .dtypes import TF32

Expr = Any


def children(node: Expr) -> list[Expr]:
    """The operands of an expression, for a load its indices.

    Raises:
        UnsupportedFunction: The expression is of a kind that stages do not hold.
    """
    operands = _OPERANDS.get(type(node))
    if operands is None:
        operands = _OPERANDS[type(node)] = _operands_of(type(node))
    return operands(node)


def _operands_of(kind: type) -> Callable[[Expr], list[Expr]]:
    """What gives the operands of expressions of a class: the classes of TVM are asked once for each, not each node."""
    if issubclass(kind, Var | IntImm | FloatImm) or kind.__name__ in {"StringImm", "GenericConst"}:
        return lambda _: []
    if issubclass(kind, prim.Cast):
        return lambda node: [node.value]
    if issubclass(kind, prim.Select):
        return lambda node: [node.condition, node.true_value, node.false_value]
    if issubclass(kind, TensorLoad):
        return lambda node: list(node.indices)
    if issubclass(kind, Call):
        return lambda node: list(node.args)
    if issubclass(kind, prim.Not | prim.BitwiseNot):
        return lambda node: [node.a]
    if issubclass(kind, prim.BinaryOpExpr | prim.CmpExpr | prim.LogicalExpr):
        return lambda node: [node.a, node.b]
    raise UnsupportedFunction(f"expression of kind {kind.__name__}")


_OPERANDS: dict[type, Callable[[Expr], list[Expr]]] = {}


def intrinsic(node: Expr) -> str:
    """The intrinsic that an expression calls, such as "exp" for `tirx.exp(x)`; empty if it calls none."""
    return node.op.name.split(".")[-1] if isinstance(node, Call) else ""


def tf32(value: Expr) -> Expr:
    """A float32 rounded to the nearest number with 10 bits in its mantissa, ties away from 0; NaN stays NaN."""
    return tirx.call_pure_extern("float32", TF32, value)


def is_tf32(node: Expr) -> bool:
    """Whether an expression is what `tf32` returns."""
    return intrinsic(node) == "call_pure_extern" and str(node.args[0].value) == TF32


def is_selection(node: Expr) -> bool:
    """Whether an expression chooses between two values: a `Select`, or a call of `if_then_else`."""
    return isinstance(node, prim.Select) or intrinsic(node) == "if_then_else"


def rebuild(node: Expr, operands: list[Expr]) -> Expr:
    """The same expression over other operands, in the order of `children`."""
    if isinstance(node, prim.Cast):
        return prim.Cast(node.ty, operands[0])
    if isinstance(node, TensorLoad):
        return node.source[tuple(operands)]
    if isinstance(node, Call):
        return Call(node.op, operands, attrs=node.attrs, ty_args=list(node.ty_args), ret_ty=node.ty)
    return type(node)(*operands)


def walk(node: Expr) -> Iterator[Expr]:
    """Every sub-expression, parents first.

    Raises:
        UnsupportedFunction: A sub-expression is of a kind that stages do not hold.
    """
    yield node
    for child in children(node):
        yield from walk(child)


def variables(node: Expr) -> set[Any]:
    """The index variables in an expression, without the buffers that it loads from."""
    return {item for item in walk(node) if isinstance(item, Var)}


def variables_outside_loads(node: Expr) -> set[Any]:
    """The variables that a value uses as numbers, not as an index of a load."""
    if isinstance(node, TensorLoad):
        return set()
    if isinstance(node, Var):
        return {node}
    return set().union(*(variables_outside_loads(child) for child in children(node)))


def loads_in(node: Expr) -> list[Any]:
    """Every load in an expression, in order of appearance."""
    loads: list[Any] = []
    structural_walk(node, (TensorLoad, loads.append), order="pre")
    return loads


def transform(node: Expr, visit: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuilds an expression from the root down.

    Args:
        node: The expression.
        visit: Is called with each sub-expression, parents first. If it returns an expression, this stands for the
            sub-expression and all below it; if it returns None, the operands are visited.

    Returns:
        The new expression; `node` itself if nothing changed.

    Raises:
        UnsupportedFunction: A visited sub-expression is of a kind that stages do not hold.
    """
    replacement = visit(node)
    if replacement is not None:
        return replacement
    operands = children(node)
    if not operands:
        return node
    changed = [transform(operand, visit) for operand in operands]
    if all(new is old for new, old in zip(changed, operands, strict=True)):
        return node
    return rebuild(node, changed)


def substitute(node: Expr, mapping: Mapping[Any, Expr]) -> Expr:
    """Replaces variables by expressions, all at once: {i: j, j: i} swaps them.

    An expression of another width becomes one of the variable's: an index that depends on data, or on a position that
    is computed in floats, may have 64 bits, and TVM takes no operands of different types.
    """
    typed = {variable: as_type(value, str(variable.ty.dtype)) for variable, value in mapping.items()}
    return transform(node, lambda item: typed.get(item) if isinstance(item, Var) else None)


def as_type(node: Expr, dtype: str) -> Expr:
    """An expression of integers as one of another type; `node` itself if it has this type."""
    if str(node.ty.dtype) == dtype:
        return node
    return IntImm(dtype, int(node)) if isinstance(node, IntImm) else prim.Cast(dtype, node)


def rewrite_loads(node: Expr, replacement: Callable[[Any], Expr | None]) -> Expr:
    """Replaces loads, after the loads in their own indices.

    Args:
        node: The expression.
        replacement: Is called with each load. It returns the expression to put in its place, or None to keep it.

    Returns:
        The new expression; `node` itself if nothing changed.
    """

    def visit(item: Expr) -> Expr | None:
        if not isinstance(item, TensorLoad):
            return None
        indices = [transform(index, visit) for index in item.indices]
        unchanged = all(new is old for new, old in zip(indices, item.indices, strict=True))
        load = item if unchanged else item.source[tuple(indices)]
        new = replacement(load)
        return load if new is None else new

    return transform(node, visit)


def simplified(node: Expr, extents: Mapping[Any, int] | None = None) -> Expr:
    """The expression with the indices of its loads simplified (`i + 0` becomes `i`).

    Args:
        node: The expression.
        extents: Of variables: each is at least 0 and less than its extent. With them `i % 8` may become `i`.
    """
    analyzer = Analyzer()
    for name, extent in (extents or {}).items():
        dtype = str(name.ty.dtype)  # a model's indices may have 64 bits
        analyzer.bind(name, Range(IntImm(dtype, 0), IntImm(dtype, extent)))
    return rewrite_loads(node, lambda load: load.source[tuple(analyzer.simplify(index) for index in load.indices)])


def coefficients(node: Expr, over: set[Any]) -> dict[Any, int] | None:
    """The integer coefficients of an affine expression.

    `4 * i + j + 1` over {i, j} gives {i: 4, j: 1}.

    Args:
        node: An expression of integers.
        over: The variables whose coefficients are wanted; all others count as constants.

    Returns:
        The coefficient of each variable that appears; None if the expression is not affine in `over`, or a
        coefficient is not a number.
    """
    if isinstance(node, IntImm):
        return {}
    if isinstance(node, Var):
        return {node: 1} if node in over else {}
    if isinstance(node, prim.Add | prim.Sub):
        left, right = coefficients(node.a, over), coefficients(node.b, over)
        if left is None or right is None:
            return None
        sign = 1 if isinstance(node, prim.Add) else -1
        merged = dict(left)
        for variable, factor in right.items():
            merged[variable] = merged.get(variable, 0) + sign * factor
        return merged
    if isinstance(node, prim.Mul):
        for constant, other in ((node.a, node.b), (node.b, node.a)):
            if isinstance(constant, IntImm):
                inner = coefficients(other, over)
                return None if inner is None else {key: int(constant) * factor for key, factor in inner.items()}
    return None if variables(node) & over else {}


def transform_statement(node: Any, visit: Callable[[Any], Any], visit_loop: Callable[[Any], Any] | None = None) -> Any:
    """Rebuilds a statement from its leaves up.

    Args:
        node: The statement.
        visit: Is called with each statement that holds no other (stores, allocations, bindings), and returns the
            statement to put in its place.
        visit_loop: Is called with each loop after its body was rebuilt, and returns the statement to put in its place.
            By default loops stay.
    """

    def rebuilt(body: Any) -> Any:
        return None if body is None else transform_statement(body, visit, visit_loop)

    if isinstance(node, SeqStmt):
        return SeqStmt([rebuilt(statement) for statement in node.seq])
    if isinstance(node, AttrStmt):
        return AttrStmt(node.node, node.attr_key, node.value, rebuilt(node.body))
    if isinstance(node, IfThenElse):
        return IfThenElse(node.condition, rebuilt(node.then_case), rebuilt(node.else_case))
    if isinstance(node, SBlockRealize):
        return SBlockRealize(node.iter_values, node.predicate, rebuilt(node.block))
    if isinstance(node, For):
        header = (node.loop_var, node.min, node.extent, node.kind)
        loop = For(*header, rebuilt(node.body), node.thread_binding, node.annotations, node.step)
        return loop if visit_loop is None else visit_loop(loop)
    if isinstance(node, SBlock):
        header = (node.iter_vars, node.reads, node.writes, node.name_hint)
        body, init = rebuilt(node.body), rebuilt(node.init)
        return SBlock(*header, body, init, node.alloc_buffers, node.match_buffers, node.annotations)
    return visit(node)


def tile_start(tile: Expr, size: int, extent: int, tiles: int) -> Expr:
    """The position at which a tile of an axis begins.

    The last tiles overlap those before them if tiles do not divide the extent: none reaches beyond the axis.

    Args:
        tile: The number of the tile, from 0.
        size: Positions in a tile, at most `extent`.
        extent: Positions on the axis.
        tiles: The number of tiles, enough to cover the axis.
    """
    start = tile * size
    return start if tiles * size == extent else prim.Min(start, IntImm("int32", extent - size))


def raveled(indices: Sequence[Expr], extents: Sequence[int]) -> Expr:
    """The position in the one loop that replaces nested loops, as `numpy.ravel_multi_index` does.

    Args:
        indices: The indices of the nested loops, the outermost first.
        extents: Their extents.
    """
    position: Expr = IntImm("int32", 0)
    for index, extent in zip(indices, extents, strict=True):
        position = position * extent + index
    return position


def unraveled(position: Expr, extents: Sequence[int]) -> list[Expr]:
    """The indices of nested loops at a position in the one loop that replaces them, as `numpy.unravel_index` does.

    Args:
        position: An index into the one loop.
        extents: The extents of the nested loops, the outermost first.
    """
    indices: list[Expr] = []
    for extent in reversed(extents[1:]):
        indices.insert(0, prim.FloorMod(position, IntImm("int32", extent)))
        position = prim.FloorDiv(position, IntImm("int32", extent))
    return [position, *indices]
