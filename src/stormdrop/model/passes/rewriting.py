"""One step that the passes over a model's Relax code share."""

from __future__ import annotations

import tvm
from tvm import relax


def rewritten(mod: tvm.IRModule, mutator: relax.PyExprMutator) -> tvm.IRModule:
    """The module with `main` as the mutator makes it; what becomes unused stays."""
    mutator.builder_.update_func(mod.get_global_var("main"), mutator.visit_expr(mod["main"]))
    return mutator.builder_.get()
