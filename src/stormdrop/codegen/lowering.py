"""How scheduled functions become machine code: TVM's passes, and two of our own.

- TVM 0.27 asks its runtime for the memory of every buffer inside of a function, accumulators too. LLVM then cannot
  know that nobody else sees them, and stores them again and again: a matmul of 64^3 takes 16% longer, convolutions 4
  to 11%. Here buffers of scope "local" are on the stack, where LLVM keeps them in registers.
- Results that are larger than the caches can go past them (`stores_knob`), by the machine's non-temporal stores: a line
  that is written whole is not read first, and pushes nothing out. A ReLU of 64 MB takes two thirds of the time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.ir import StringImm
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.s_tir.pipeline import finalize_device_passes, finalize_host_passes
from tvm.sym import Analyzer
from tvm.tirx import AttrStmt, BufferStore, Evaluate, PrimFunc, SeqStmt
from tvm.tirx.compilation_pipeline import PIPELINE_MAP

from ..ir.attributes import ANYWHERE, NON_TEMPORAL
from ..ir.expressions import transform_statement

PIPELINE = "stormdrop"
"""The name under which TVM knows these passes: `tvm.tirx.build(..., pipeline=PIPELINE)`."""

_FENCE = "llvm.x86.sse.sfence"
_QUAD = 4  # float32 values of the shortest store past the caches, and its alignment


def _pipeline() -> tuple[Any, Any, Any]:
    """TVM's own passes for scheduled functions, less those that matter to GPUs alone and those that LLVM repeats.

    That leaves the machine code as it is, and takes 4 to 11% from the time of building a candidate.
    """
    loops, calls = s_tir.transform, tirx.transform
    lower = [
        loops.CanonicalizeLoop(),
        loops.LowerInitBlock(),
        loops.PlanAndUpdateBufferAllocationLocation(),
        loops.ConvertBlocksToOpaque(),
        loops.CompactBufferAllocation(),
        loops.LowerMatchBuffer(),
        loops.StmtSimplify(),
        loops.LowerOpaqueBlock(),
        calls.FlattenBuffer(),
        calls.BF16ComputeLegalize(),
        calls.NarrowDataType(32),
        calls.VectorizeLoop(True),
        calls.StorageRewrite(),
        loops.HoistIfThenElse(),
        calls.UnrollLoop(),
        loops.RenormalizeSplitPattern(),
        calls.StmtSimplify(),
        loops.RewriteUnsafeSelect(),
        _pass(_non_temporal, "NonTemporal"),
        calls.VerifyMemory(),
        calls.AnnotateEntryFunc(),
        calls.SplitHostDevice(),
        calls.MakePackedAPI(),
        _pass(_anywhere, "Anywhere"),
        calls.BF16StorageLegalize(),
    ]
    # After StorageRewrite, which drops annotations.
    stack = _pass(lambda function: function.with_body(transform_statement(function.body, _on_stack)), "OnStack")
    sequence = tvm.ir.transform.Sequential
    return sequence(lower), lambda: sequence([stack, finalize_host_passes()]), finalize_device_passes


def _pass(change: Callable[[PrimFunc], PrimFunc], name: str) -> Any:
    return tirx.transform.prim_func_pass(lambda function, *_: change(function), opt_level=0, name=f"stormdrop.{name}")


def _anywhere(function: PrimFunc) -> PrimFunc:
    positions = {int(each) for each in function.attrs.get(ANYWHERE, [])}
    position = itertools.count()  # the body is inside of one statement for each parameter, in their order

    def visit(node: Any) -> Any:
        if isinstance(node, SeqStmt):
            return SeqStmt([visit(each) for each in node.seq])
        if not isinstance(node, AttrStmt):
            return node
        value = node.value
        if node.attr_key == "storage_alignment" and next(position) in positions:
            value = IntImm("int32", np.dtype(str(node.node.dtype)).itemsize)
        return AttrStmt(node.node, node.attr_key, value, visit(node.body))

    return function.with_body(visit(function.body)) if positions else function


def _on_stack(node: Any) -> Any:
    if isinstance(node, tirx.AllocBuffer) and node.buffer.scope() == "local":
        return tirx.AllocBuffer(node.buffer, {"disable_lower_builtin": IntImm("int32", 1)})
    return node


def _non_temporal(function: PrimFunc) -> PrimFunc:
    if NON_TEMPORAL not in function.attrs:
        return function
    parameters = set(function.params)
    stores: dict[str, str] = {}

    def stored_past(node: Any) -> Any:
        if isinstance(node, tirx.DeclBuffer) and node.data.args[0] in parameters:
            parameters.add(node.buffer)  # a view of it
        if not isinstance(node, BufferStore) or node.buffer not in parameters:
            return node
        (index,) = node.indices
        if not isinstance(index, prim.Ramp) or str(node.value.ty.dtype) != f"float32x{int(index.lanes)}":
            return node
        # The memory of a parameter is aligned to 64 bytes. LLVM splits a vector that is aligned to less than its size.
        lanes = int(index.lanes)
        multiple = Analyzer().modular_set(index.base)
        aligned = math.gcd(lanes, int(multiple.coeff), int(multiple.base))
        if int(index.stride) != 1 or aligned % _QUAD:
            return node
        name = f"stormdrop_store_{lanes}_aligned_{aligned}"
        stores[name] = f"""define linkonce_odr void @{name}(ptr %to, <{lanes} x float> %value) alwaysinline {{
            store <{lanes} x float> %value, ptr %to, align {4 * aligned}, !nontemporal !0
            ret void
        }}"""
        return Evaluate(tirx.call_extern("void", name, tirx.address_of(node.buffer[index.base]), node.value))

    # The threads of a parallel loop end with an atomic operation, which waits for such stores as a fence does.
    body = SeqStmt([transform_statement(function.body, stored_past), Evaluate(tirx.call_llvm_intrin("void", _FENCE))])
    if not stores:
        return function
    # TVM has no such stores: they come as LLVM's code, which is inlined.
    code = StringImm("\n".join([*stores.values(), "!0 = !{i32 1}"]))
    return function.with_body(AttrStmt(IntImm("int32", 0), "pragma_import_llvm", code, body))


PIPELINE_MAP[PIPELINE] = _pipeline
