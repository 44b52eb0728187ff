"""Renames functions of a module, and joins modules whose functions of one name are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from .open_blocks import ended_blocks


def joined(parts: Sequence[tuple[tvm.IRModule, Mapping[str, str]]]) -> tvm.IRModule:
    """One module with the functions of several ones.

    Args:
        parts: The modules, each with new names by the old ones, of its functions and of the external functions that
            it calls. Functions of different modules that have one name in the end are equal: the first of them is
            taken.
    """
    variables: dict[str, Any] = {}
    functions: dict[Any, Any] = {}
    for mod, names in parts:
        for variable, function in mod.functions.items():
            name = names.get(variable.name_hint, variable.name_hint)
            if name not in variables:
                variables[name] = tvm.ir.GlobalVar(name)
                relax.expr._update_type(variables[name], variable.ty)  # the mutator asks for it
                functions[variables[name]] = (mod, names, variable, function)
    result = tvm.IRModule()
    for variable, (mod, names, old, function) in functions.items():
        name = variable.name_hint
        if isinstance(function, relax.Function):
            renamed = _Renamed(mod, names, variables)
            with ended_blocks(renamed.builder_):
                function = renamed.visit_expr(function)
        if function.attrs and "global_symbol" in function.attrs and old.name_hint != name:
            function = function.with_attr("global_symbol", name)
        result[variable] = function
    return result


@relax.expr_functor.mutator
class _Renamed(relax.PyExprMutator):
    """Replaces the variables of functions, and external functions that have another name."""

    def __init__(self, mod: tvm.IRModule, names: Mapping[str, str], variables: Mapping[str, Any]) -> None:
        super().__init__(mod)
        self._names, self._variables = names, variables

    def visit_global_var_(self, variable: tvm.ir.GlobalVar) -> Any:
        return self._variables[self._names.get(variable.name_hint, variable.name_hint)]

    def visit_extern_func_(self, function: relax.ExternFunc) -> Any:
        name = self._names.get(function.global_symbol)
        return function if name is None else relax.ExternFunc(name)
