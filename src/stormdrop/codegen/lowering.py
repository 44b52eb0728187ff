"""How scheduled functions become machine code: TVM's passes, and eight of our own.

- Local buffers on the stack. TVM 0.27 asks its runtime for the memory of every buffer inside of a function, also of
  accumulators. Then LLVM cannot know that nothing else reads them, and stores them again and again: a matmul of 64^3
  takes 16% longer, convolutions take 4 to 11% longer. Here buffers of scope "local" are on the stack, and LLVM takes
  them from there into registers.
- Unrolled lanes. TVM makes a loop over the lanes of a vector whose lanes take different branches of a condition. LLVM
  22 makes vectors of such a loop again for Zen 4 and 5, and reads `x[lane % 8]` as if the modulo were not there. Here
  these loops are unrolled, so that each index is a number.
- Non-temporal stores. Results that are larger than the caches can be stored past them (`stores_knob`). Then a line that
  is written as a whole is not read first, and no other data leaves the caches for it. A ReLU of 64 MB takes two thirds
  of the time that it takes with ordinary stores.
- NaN passes through maxima and minima. TVM makes `a > b ? a : b` of max(a, b), which is b if one of them is NaN. If
  one is a number, as in a ReLU and in a clip, it comes first: `0 > x ? 0 : x`. On x86 that is the same instruction:
  maximum and minimum return their second operand if one of them is NaN. On ARM it is a comparison and a mask, because
  ARM's one instruction for it turns NaN into the bound. If both may be NaN, as in a pooling or a reduction,
  `a == a ? max(a, b) : a` is NaN wherever it stands, for a comparison more.
- Unaligned parameters. TVM assumes that the memory of every parameter begins at a multiple of 64 bytes. Parameters that
  the attribute `UNALIGNED` names may begin at any element.
- Denormals: kernels flush them, or keep them if the target says so; see `denormals`.
- bfloat16 as its bits; see `bfloat16`.
- Dot products of bytes, int16 and bfloat16 by the machine's instructions for them; see `dot_products`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.ir import Call, StringImm
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.s_tir.pipeline import finalize_device_passes, finalize_host_passes
from tvm.sym import Analyzer
from tvm.tirx import AttrStmt, BufferStore, Evaluate, For, ForKind, IfThenElse, PrimFunc, SeqStmt
from tvm.tirx.compilation_pipeline import PIPELINE_MAP
from tvm_ffi import structural_map, structural_walk

from ..ir.attributes import NON_TEMPORAL, UNALIGNED
from ..ir.expressions import intrinsic, transform_statement
from .bfloat16 import with_bits, with_rounding
from .denormals import with_mode_for_denormals
from .dot_products import with_dot_products

PIPELINE = "stormdrop"
"""The name under which TVM knows these passes: `tvm.tirx.build(..., pipeline=PIPELINE)`."""

_FENCE = "llvm.x86.sse.sfence"
_LANE = ".s"  # ends the names of the loops that TVM makes of vectors that it cannot vectorise
_SHORTEST_STORE = 4  # float32 values of the shortest non-temporal store; it has to be aligned to as many


def _pipeline() -> tuple[Any, Any, Any]:
    """TVM's own passes for scheduled functions without those that matter to GPUs only and those that LLVM repeats.

    Leaving them out does not change the machine code, and takes 4 to 11% from the time of building a candidate.
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
        function_pass(with_bits, "BFloat16"),
        calls.NarrowDataType(32),
        calls.VectorizeLoop(True),
        function_pass(_with_unrolled_lanes, "UnrolledLanes"),
        function_pass(with_dot_products, "DotProducts"),
        function_pass(with_rounding, "Rounding"),
        calls.StorageRewrite(),
        loops.HoistIfThenElse(),
        calls.UnrollLoop(),
        loops.RenormalizeSplitPattern(),
        calls.StmtSimplify(),
        loops.RewriteUnsafeSelect(),
        function_pass(_with_nan_in_extrema, "NanInExtrema"),
        function_pass(_with_non_temporal_stores, "NonTemporal"),
        function_pass(with_mode_for_denormals, "Denormals"),
        calls.VerifyMemory(),
        calls.AnnotateEntryFunc(),
        calls.SplitHostDevice(),
        calls.MakePackedAPI(),
        function_pass(_with_unaligned_parameters, "Anywhere"),
        calls.BF16StorageLegalize(),
    ]
    # This has to run after StorageRewrite, which drops annotations.
    on_stack = function_pass(_with_local_buffers_on_stack, "OnStack")
    sequence = tvm.ir.transform.Sequential
    return sequence(lower), lambda: sequence([on_stack, finalize_host_passes()]), finalize_device_passes


def function_pass(change: Callable[[PrimFunc], PrimFunc], name: str) -> Any:
    """A pass of TVM that changes each function of a module.

    Args:
        change: Makes the new function.
        name: What TVM calls the pass, after "stormdrop.".
    """
    return tirx.transform.prim_func_pass(lambda function, *_: change(function), opt_level=0, name=f"stormdrop.{name}")


def _with_local_buffers_on_stack(function: PrimFunc) -> PrimFunc:
    def on_stack(node: Any) -> Any:
        if node.buffer.scope() == "local":
            return tirx.AllocBuffer(node.buffer, {"disable_lower_builtin": IntImm("int32", 1)})
        return node

    return function.with_body(structural_map(function.body, ((tirx.AllocBuffer, on_stack),)))


def _with_unrolled_lanes(function: PrimFunc) -> PrimFunc:
    loops: list[Any] = []
    structural_walk(function.body, (For, loops.append))
    if not any(loop.loop_var.name.endswith(_LANE) for loop in loops):
        return function

    def unrolled(loop: Any) -> Any:
        if loop.loop_var.name.endswith(_LANE) and isinstance(loop.extent, IntImm) and _chooses(loop.body):
            return For(loop.loop_var, loop.min, loop.extent, ForKind.UNROLLED, loop.body)
        return loop

    return function.with_body(transform_statement(function.body, lambda node: node, unrolled))


def _chooses(statement: Any) -> bool:
    calls: list[Any] = []
    branches: list[Any] = []
    structural_walk(statement, ((Call, calls.append), (IfThenElse, branches.append)))
    return bool(branches) or any(intrinsic(call) == "if_then_else" for call in calls)


def _with_nan_in_extrema(function: PrimFunc) -> PrimFunc:
    def passed_on(node: Any) -> Any:
        if _is_number(node.a) or not str(node.ty.dtype).startswith("float"):
            return node
        if _is_number(node.b):
            return type(node)(node.b, node.a)
        return prim.Select(prim.EQ(node.a, node.a), node, node.a)  # LLVM gets an ordered comparison for NE, too

    return function.with_body(structural_map(function.body, ((prim.Max, passed_on), (prim.Min, passed_on))))


def _is_number(value: Any) -> bool:
    return isinstance(value.value if isinstance(value, prim.Broadcast) else value, FloatImm)


def _with_unaligned_parameters(function: PrimFunc) -> PrimFunc:
    positions = {int(position) for position in function.attrs.get(UNALIGNED, [])}
    if not positions:
        return function
    position = itertools.count()  # the body is inside of one statement for each parameter, in their order

    def visit(node: Any) -> Any:
        if isinstance(node, SeqStmt):
            return SeqStmt([visit(statement) for statement in node.seq])
        if not isinstance(node, AttrStmt):
            return node
        value = node.value
        if node.attr_key == "storage_alignment" and next(position) in positions:
            value = IntImm("int32", np.dtype(str(node.node.dtype)).itemsize)
        return AttrStmt(node.node, node.attr_key, value, visit(node.body))

    return function.with_body(visit(function.body))


def _with_non_temporal_stores(function: PrimFunc) -> PrimFunc:
    if NON_TEMPORAL not in function.attrs:
        return function
    parameters = set(function.params)
    definitions: dict[str, str] = {}

    def visit(node: Any) -> Any:
        if isinstance(node, tirx.DeclBuffer) and node.data.args[0] in parameters:
            parameters.add(node.buffer)  # a view of the parameter
        if not isinstance(node, BufferStore) or node.buffer not in parameters:
            return node
        (index,) = node.indices
        if not isinstance(index, prim.Ramp) or str(node.value.ty.dtype) != f"float32x{int(index.lanes)}":
            return node
        # The memory of a parameter is aligned to 64 bytes. LLVM splits a vector that is aligned to less than its size.
        lanes = int(index.lanes)
        multiple = Analyzer().modular_set(index.base)
        aligned = math.gcd(lanes, int(multiple.coeff), int(multiple.base))
        if int(index.stride) != 1 or aligned % _SHORTEST_STORE:
            return node
        name = f"stormdrop_store_{lanes}_aligned_{aligned}"
        definitions[name] = f"""define linkonce_odr void @{name}(ptr %to, <{lanes} x float> %value) alwaysinline {{
            store <{lanes} x float> %value, ptr %to, align {4 * aligned}, !nontemporal !0
            ret void
        }}"""
        return Evaluate(tirx.call_extern("void", name, tirx.address_of(node.buffer[index.base]), node.value))

    # The threads of a parallel loop end with an atomic operation, which waits for such stores as a fence does.
    body = SeqStmt([transform_statement(function.body, visit), Evaluate(tirx.call_llvm_intrin("void", _FENCE))])
    if not definitions:
        return function
    # TVM has no such stores. Therefore they are functions in LLVM's language, which LLVM inlines.
    code = StringImm("\n".join([*definitions.values(), "!0 = !{i32 1}"]))
    return function.with_body(AttrStmt(IntImm("int32", 0), "pragma_import_llvm", code, body))


PIPELINE_MAP[PIPELINE] = _pipeline
