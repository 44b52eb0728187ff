"""Makes gathers read inside their tensor for every index.

The importer's `take` does not check an index, so one that is out of bounds ends the process. ONNX does not define the
result for such an index; here it is the nearest element.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..graph.expressions import operator_name
from .rewriting import rewrite_main


def clip_indices(mod: tvm.IRModule) -> tvm.IRModule:
    """The module in which every `take` of `main` clips its indices to the tensor."""
    return rewrite_main(mod, _Clip(mod))


@relax.expr_functor.mutator
class _Clip(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        if operator_name(call) != "relax.take" or call.attrs.mode != "fast":
            return call
        return self.builder_.normalize(relax.op.take(*call.args, axis=call.attrs.axis, mode="clip"))
