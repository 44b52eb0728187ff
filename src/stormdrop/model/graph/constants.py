"""Takes the constants out of a module, so that its code and its weights can be stored apart."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from .open_blocks import ended_blocks


def without_constants(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, Any]]:
    """The module whose `main` takes its constants as further parameters, and the constants by the parameters' names.

    `Function.bind_params` puts them back.

    Args:
        mod: The module.

    Example:
        main(x): conv2d(x, <weights>)   ->   main(x, constant_0): conv2d(x, constant_0), {"constant_0": <weights>}
    """
    main = mod["main"]
    names = {parameter.name for parameter in main.params}
    lifted = _Lift(names)
    with ended_blocks(lifted.builder_):
        body = lifted.visit_expr(main.body)
    function = relax.Function([*main.params, *lifted.variables], body, main.ret_ty, main.is_pure, main.attrs, main.span)
    result = tvm.IRModule(dict(mod.functions.items()))
    result["main"] = function
    return result, lifted.values


@relax.expr_functor.mutator
class _Lift(relax.PyExprMutator):
    def __init__(self, taken: set[str]) -> None:
        super().__init__()
        self.variables: list[relax.Var] = []
        self.values: dict[str, Any] = {}
        self._taken = taken
        self._known: dict[GenericConst, relax.Var] = {}

    def visit_generic_const_(self, op: GenericConst) -> relax.Expr:
        if op in self._known:
            return self._known[op]
        name = f"constant_{len(self.variables)}"
        while name in self._taken:
            name += "_"
        variable = relax.Var(name, op.ty)
        self.variables.append(variable)
        self.values[name] = op.value
        self._known[op] = variable
        return variable
