"""Expressions of TensorIR: taking them apart, rewriting them, reading affine indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tvm.ir import Call, TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx import AttrStmt, For, IfThenElse, SeqStmt

from ..errors import UnsupportedFunction

Expr = Any


def children(node: Expr) -> list[Expr]:
    """The operands of an expression. Raises `UnsupportedFunction` for a kind that stages do not hold."""
    if isinstance(node, Var | IntImm | FloatImm):
        return []
    if isinstance(node, prim.Cast):
        return [node.value]
    if isinstance(node, prim.Select):
        return [node.condition, node.true_value, node.false_value]
    if isinstance(node, TensorLoad):
        return list(node.indices)
    if isinstance(node, Call):
        return list(node.args)
    if isinstance(node, prim.Not | prim.BitwiseNot):
        return [node.a]
    if isinstance(node, prim.BinaryOpExpr | prim.CmpExpr | prim.LogicalExpr):
        return [node.a, node.b]
    if type(node).__name__ in {"StringImm", "GenericConst"}:
        return []
    raise UnsupportedFunction(f"expression of kind {type(node).__name__}")


def walk(node: Expr) -> Iterator[Expr]:
    """Every sub-expression, parents first."""
    yield node
    for child in children(node):
        yield from walk(child)


def rebuild(node: Expr, operands: list[Expr]) -> Expr:
    """The same expression over other operands."""
    if isinstance(node, prim.Cast):
        return prim.Cast(node.ty, operands[0])
    if isinstance(node, TensorLoad):
        return node.source[tuple(operands)]
    if isinstance(node, Call):
        return Call(node.op, operands, attrs=node.attrs, ty_args=list(node.ty_args), ret_ty=node.ty)
    return type(node)(*operands)


def tile_start(tile: Expr, size: int, extent: int, tiles: int) -> Expr:
    """Where a tile of an axis begins: the last ones overlap those before them where tiles do not divide the extent."""
    start = tile * size
    return start if tiles * size == extent else prim.Min(start, IntImm("int32", extent - size))


def unraveled(position: Expr, extents: Sequence[int]) -> list[Expr]:
    """Where each of some nested loops is, the outermost first, when they are walked as one."""
    places: list[Expr] = []
    for extent in reversed(extents[1:]):
        places.insert(0, prim.FloorMod(position, IntImm("int32", extent)))
        position = prim.FloorDiv(position, IntImm("int32", extent))
    return [position, *places]


def transform(node: Expr, visit: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuilds an expression; where `visit` returns an expression it stands for the node and all below it."""
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


def transform_statement(node: Any, visit: Callable[[Any], Any], visit_loop: Callable[[Any], Any] | None = None) -> Any:
    """Rebuilds a statement with `visit` of what holds no other statement: stores, allocations, bindings.

    `visit_loop` is called with each loop, its body rebuilt.
    """

    def inside(body: Any) -> Any:
        return None if body is None else transform_statement(body, visit, visit_loop)

    if isinstance(node, SeqStmt):
        return SeqStmt([inside(each) for each in node.seq])
    if isinstance(node, AttrStmt):
        return AttrStmt(node.node, node.attr_key, node.value, inside(node.body))
    if isinstance(node, IfThenElse):
        return IfThenElse(node.condition, inside(node.then_case), inside(node.else_case))
    if isinstance(node, SBlockRealize):
        return SBlockRealize(node.iter_values, node.predicate, inside(node.block))
    if isinstance(node, For):
        loop = (node.loop_var, node.min, node.extent, node.kind, inside(node.body))
        rebuilt = For(*loop, node.thread_binding, node.annotations, node.step)
        return rebuilt if visit_loop is None else visit_loop(rebuilt)
    if isinstance(node, SBlock):
        outside = (node.iter_vars, node.reads, node.writes, node.name_hint, inside(node.body), inside(node.init))
        return SBlock(*outside, node.alloc_buffers, node.match_buffers, node.annotations)
    return visit(node)


def substitute(node: Expr, mapping: Mapping[Any, Expr]) -> Expr:
    """Replaces variables by expressions."""
    return transform(node, lambda item: mapping.get(item) if isinstance(item, Var) else None)


def simplified(node: Expr) -> Expr:
    """The expression with the indices of its loads simplified (`i + 0` becomes `i`)."""
    analyzer = Analyzer()

    def visit(item: Expr) -> Expr | None:
        if not isinstance(item, TensorLoad):
            return None
        return item.source[tuple(analyzer.simplify(index) for index in item.indices)]

    return transform(node, visit)


def rewrite_loads(node: Expr, replaced: Callable[[Any], Expr | None]) -> Expr:
    """Replaces loads (after their own indices were rewritten) where `replaced` returns an expression."""

    def visit(item: Expr) -> Expr | None:
        if not isinstance(item, TensorLoad):
            return None
        indices = [transform(index, visit) for index in item.indices]
        unchanged = all(new is old for new, old in zip(indices, item.indices, strict=True))
        load = item if unchanged else item.source[tuple(indices)]
        replacement = replaced(load)
        return load if replacement is None else replacement

    return transform(node, visit)


def variables(node: Expr) -> set[Any]:
    """The index variables in an expression, without the buffers that it loads from."""
    return {item for item in walk(node) if isinstance(item, Var)}


def coefficients(node: Expr, over: set[Any]) -> dict[Any, int] | None:
    """The integer coefficients of an affine expression in the given variables; None where it is not affine.

    `4 * i + j + 1` over {i, j} gives {i: 4, j: 1}.
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
        for key, factor in right.items():
            merged[key] = merged.get(key, 0) + sign * factor
        return merged
    if isinstance(node, prim.Mul):
        for factor, other in ((node.a, node.b), (node.b, node.a)):
            if isinstance(factor, IntImm):
                inner = coefficients(other, over)
                return None if inner is None else {key: int(factor) * value for key, value in inner.items()}
    return None if variables(node) & over else {}
