"""How the passes over a model's Relax code replace its function `main`."""

from __future__ import annotations

import tvm
from tvm import relax


def rewrite_main(mod: tvm.IRModule, mutator: relax.PyExprMutator) -> tvm.IRModule:
    """The module with `main` as the mutator rewrites it. Bindings and functions that become unused stay.

    Args:
        mod: The module that the mutator was made for.
        mutator: Visits the expressions of `main`.
    """
    mutator.builder_.update_func(mod.get_global_var("main"), mutator.visit_expr(mod["main"]))
    return mutator.builder_.get()
