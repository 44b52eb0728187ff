"""Gathers that stay inside their tensor, whatever index a user's data holds.

The importer's `take` reads where an index says: one that is out of bounds ends the process. ONNX leaves open what such
an index gives; here it gives the nearest element.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from .rewriting import rewritten


def clip_indices(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the indices of every `take` of `main` bounded."""
    return rewritten(mod, _Clip(mod))


@relax.expr_functor.mutator
class _Clip(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.take" or call.attrs.mode != "fast":
            return call
        return self.builder_.normalize(relax.op.take(*call.args, axis=call.attrs.axis, mode="clip"))
