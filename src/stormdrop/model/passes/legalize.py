"""Makes TensorIR functions of operators, once for all calls that are alike.

A model calls the same operator with the same shapes again and again. TVM's pass builds a function for each call and
finds out afterwards that it has it already. That takes a few milliseconds a call, seconds for a large model.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.ir import GenericConst

from ..graph.expressions import bindings_of, calls_kernel
from .rewriting import constant

_SMALL = 16
"""The most elements that a constant may have to become a part of the function."""

Rule = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _round(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Rounds halves to even numbers, as ONNX, torch and NumPy do. TVM's own rule rounds them away from zero."""

    def rounded(x: Any) -> Any:
        return te.compute(x.shape, lambda *i: tirx.nearbyint(x(*i)), name="round_to_even")

    return builder.call_te(rounded, call.args[0], primfunc_name_hint="round_to_even")


def _bounded(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A bound becomes a number in the function, which TVM's rule does for those without axes only.

    `expand_constants` gives each bound as many axes as its tensor has. A kernel that knows its bounds rounds to bytes
    in fewer instructions (`ir.elementary`).
    """
    x, bound = call.args
    if (
        isinstance(bound, GenericConst)
        and 0 < len(bound.value.shape) <= x.ty.ndim
        and math.prod(bound.value.shape) == 1
    ):
        call = builder.normalize(relax.Call(call.op, [x, constant(bound.value.numpy().reshape(()))]))
    return call.op.get_attr("FLegalize")(builder, call)


_OWN_RULES: dict[str, Rule] = {"relax.maximum": _bounded, "relax.minimum": _bounded, "relax.round": _round}
"""Rules in place of TVM's, by operators."""


def legalize(mod: tvm.IRModule) -> tvm.IRModule:
    """The module whose `main` calls TensorIR functions in place of operators.

    The result is that of TVM's own pass, except for the operators that `_OWN_RULES` names.
    """
    rules: dict[str, Rule] = {}
    failures: list[Exception] = []
    for binding in bindings_of(mod["main"]):
        operator = getattr(binding.value, "op", None)
        if isinstance(operator, tvm.ir.Op) and operator.name not in rules:
            rule = _OWN_RULES.get(operator.name) or operator.get_attr("FLegalize")
            if rule is not None:
                rules[operator.name] = functools.partial(_unless_failed, failures, functools.partial(_once, rule, {}))
    result = relax.transform.LegalizeOps(rules)(mod)
    if failures:
        raise failures[0]
    return result


def _unless_failed(failures: list[Exception], rule: Rule, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """What a rule makes of a call; the call itself once a rule has failed.

    An exception would leave TVM's pass with blocks that are not ended, as `graph/open_blocks` says.
    """
    if not failures:
        try:
            return rule(builder, call)
        except Exception as error:  # noqa: BLE001  rules raise anything; `legalize` raises it when the pass has ended
            failures.append(error)
    return call


@dataclass(frozen=True)
class _Known:
    """A call of a TensorIR function that stands for an operator.

    Attributes:
        function: The function's variable.
        positions: Which of the operator's tensors it takes.
        results: The types of its results.
    """

    function: Any
    positions: Sequence[int]
    results: Sequence[Any]


def _once(
    rule: Rule, known: dict[tvm_ffi.StructuralKey, _Known], builder: relax.BlockBuilder, call: relax.Call
) -> relax.Expr:
    """What the rule makes of a call; if the call is like an earlier one, the same with the arguments of this call."""
    tensors = _tensors(call)
    key = _key(call, tensors)
    if key in known:
        like = known[key]
        arguments = relax.Tuple([tensors[position] for position in like.positions])
        return relax.call_tir(like.function, arguments, list(like.results))
    result = rule(builder, call)
    if calls_kernel(result):
        taken = [_position(argument, tensors) for argument in result.args[1].fields]
        positions = [position for position in taken if position is not None]
        consumed = [tensor for position, tensor in enumerate(tensors) if position not in positions]
        if len(positions) == len(taken) and all(_is_small_constant(tensor) for tensor in consumed):
            (types,) = result.ty_args
            results = list(types.fields) if isinstance(types, relax.TupleType) else [types]
            known[key] = _Known(result.args[0], positions, results)
    return result


def _key(call: relax.Call, tensors: Sequence[Any]) -> tvm_ffi.StructuralKey:
    """What the function of a call depends on: not on which tensors it takes, but on their types, and which are one."""
    parts = (argument.fields if isinstance(argument, relax.Tuple) else [argument] for argument in call.args)
    # For example the bounds of a slice, which are tuples of numbers.
    others = [field for part in parts for field in part if not isinstance(field, relax.Var | GenericConst)]
    nested = [len(argument.fields) if isinstance(argument, relax.Tuple) else -1 for argument in call.args]
    kinds = [tensor if _is_small_constant(tensor) else tensor.ty for tensor in tensors]
    same = [_position(tensor, tensors) for tensor in tensors]
    return tvm_ffi.StructuralKey([call.attrs, call.ty, others, nested, kinds, same])


def _tensors(call: relax.Call) -> list[Any]:
    """The arguments of a call that are tensors, or tuples of tensors behind a variable; tuples are taken apart."""
    fields = (argument.fields if isinstance(argument, relax.Tuple) else [argument] for argument in call.args)
    return [field for part in fields for field in part if isinstance(field, relax.Var | GenericConst)]


def _position(tensor: Any, tensors: Sequence[Any]) -> int | None:
    """The first position of this very tensor."""
    return next((position for position, other in enumerate(tensors) if tensor.same_as(other)), None)


def _is_small_constant(tensor: Any) -> bool:
    return isinstance(tensor, GenericConst) and math.prod(tensor.value.shape) <= _SMALL
