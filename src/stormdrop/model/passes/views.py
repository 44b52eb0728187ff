"""Simplifies operators that only move data or only rename axes.

An operator that moves no data becomes a reshape, because the compiled model passes the same memory on for a reshape.

    permute_dims((1, 1, 1, 2048), [0, 3, 1, 2])  ->  reshape((1, 2048, 1, 1))
    reshape(reshape(x))                          ->  reshape(x)
    reshape(x) to its own shape                  ->  x
    mean((8, 1), axis 1)                         ->  reshape((8,)), and other reductions of axes of one element

Each reader of moved data gets a move of its own, because a move that has several readers is fused with none of them.

    t = permute_dims(x), slice(t, 0), slice(t, 1)  ->  slice(permute_dims(x), 0), slice(permute_dims(x), 1)
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..graph.expressions import operator_name
from ..graph.layers import copied
from .rewriting import rewrite_main

_MOVING = {"relax.permute_dims", "relax.strided_slice"}
_RENAMING = {"relax.reshape", "relax.expand_dims", "relax.squeeze"}
_REDUCING = {"relax.max", "relax.mean", "relax.min", "relax.prod", "relax.sum"}


def simplify_views(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the moves and reshapes of `main` simplified. Bindings that become unused stay."""
    return rewrite_main(mod, _Views(mod))


def as_reshapes(mod: tvm.IRModule) -> tvm.IRModule:
    """The module in which each squeeze, expand_dims and flatten of `main` with static sizes is a reshape.

    ConvertLayout keeps a reshape in the layout that it was written for. In a squeeze it renames the axes, and fails for
    some of them.
    """
    return rewrite_main(mod, _AsReshapes(mod))


@relax.expr_functor.mutator
class _AsReshapes(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        renames = operator_name(call) in ("relax.squeeze", "relax.expand_dims", "relax.flatten")
        if renames and static_shape(call.ty) is not None:
            return self.builder_.normalize(relax.op.reshape(call.args[0], call.ty.shape))
        return call


@relax.expr_functor.mutator
class _Views(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        name = operator_name(call)
        if name == "relax.permute_dims" and _moves_unit_axes_only(call):
            return self._reshape(call.args[0], call.ty.shape)
        if name in _REDUCING and _reduces_unit_axes_only(call):
            return self._reshape(call.args[0], call.ty.shape)
        if name == "relax.reshape" and static_shape(call.ty) is not None:
            return self._reshape(call.args[0], call.ty.shape)
        if name in _MOVING:
            return relax.Call(call.op, [self._duplicated(call.args[0]), *call.args[1:]], call.attrs)
        return call

    def _duplicated(self, source: Any) -> Any:
        """The same value, with copies of the bindings that only move data or rename axes on the way to it."""
        bound = self.lookup_binding(source) if isinstance(source, relax.Var) else None
        if not isinstance(bound, relax.Call) or operator_name(bound) not in _MOVING | _RENAMING:
            return source
        copy = relax.Call(bound.op, [self._duplicated(bound.args[0]), *bound.args[1:]], bound.attrs)
        binding = copied(source, self.builder_.normalize(copy))
        self.builder_.emit_normalized(binding)
        return binding.var

    def _reshape(self, source: Any, shape: Any) -> Any:
        bound = self.lookup_binding(source) if isinstance(source, relax.Var) else None
        if isinstance(bound, relax.Call) and operator_name(bound) == "relax.reshape":
            source = bound.args[0]
        if static_shape(source.ty) == tuple(int(extent) for extent in shape):
            return source
        return self.builder_.normalize(relax.op.reshape(source, shape))


def _moves_unit_axes_only(call: relax.Call) -> bool:
    shape = static_shape(call.args[0].ty)
    if shape is None or static_shape(call.ty) is None:
        return False
    axes = call.attrs.axes
    order = [int(axis) for axis in axes] if axes is not None else list(range(len(shape)))[::-1]
    moved = [axis for axis in order if shape[axis] != 1]
    return moved == sorted(moved)


def _reduces_unit_axes_only(call: relax.Call) -> bool:
    shape = static_shape(call.args[0].ty)
    if shape is None or call.attrs.axis is None or call.ty.dtype != call.args[0].ty.dtype:
        return False
    return all(shape[int(axis)] == 1 for axis in call.attrs.axis)


def static_shape(kind: Any) -> tuple[int, ...] | None:
    """The shape of a Relax type; None if it is no tensor, or if an extent is unknown."""
    shape = getattr(kind, "shape", None)
    if shape is None or not hasattr(shape, "values"):
        return None
    try:
        return tuple(int(extent) for extent in shape.values)
    except TypeError:
        return None  # a symbolic extent
