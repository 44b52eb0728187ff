"""Whether a kernel flushes denormals: numbers too small for the normal format, on which an operation takes 100 cycles.

The mode belongs to a thread, in a control register: MXCSR on x86, FPCR on ARM. Each kernel sets it when it begins and
restores it when it ends, in the calling thread and in every thread of a parallel loop. So the mode is the same
wherever the kernel runs: in a worker that times it, in a host application, and in a C++ program without Python. A
kernel that keeps denormals sets its mode, too, because the threads of TVM's pool have that of the thread and of the
moment in which they began.

    stores                  old = stormdrop_set_denormals()
    parallel for:           stores
        stores       ->     in each thread:
                                old = stormdrop_set_denormals()
                                its share of the parallel for:
                                    stores
                                stormdrop_restore_denormals(old)
                            stormdrop_restore_denormals(old)

"""

from __future__ import annotations

import platform
from typing import Any

from tvm import tirx
from tvm.ir import StringImm
from tvm.ir.prim.expr import IntImm
from tvm.tirx import AttrStmt, Bind, Evaluate, For, PrimFunc, SeqStmt
from tvm_ffi import structural_map

from ..machine.cpu import KEEP_DENORMALS

_SET, _RESTORE = "stormdrop_set_denormals", "stormdrop_restore_denormals"

# TVM has neither of the two registers. Therefore these are functions in LLVM's language, which LLVM inlines.
_X86 = f"""
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define linkonce_odr i64 @{_SET}() alwaysinline {{
    %slot = alloca i32
    call void @llvm.x86.sse.stmxcsr(ptr %slot)
    %old = load i32, ptr %slot
    %new = CHANGE i32 %old, BITS
    store i32 %new, ptr %slot
    call void @llvm.x86.sse.ldmxcsr(ptr %slot)
    %word = zext i32 %old to i64
    ret i64 %word
}}
define linkonce_odr void @{_RESTORE}(i64 %word) alwaysinline {{
    %slot = alloca i32
    %old = trunc i64 %word to i32
    store i32 %old, ptr %slot
    call void @llvm.x86.sse.ldmxcsr(ptr %slot)
    ret void
}}
"""
_ARM = f"""
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define linkonce_odr i64 @{_SET}() alwaysinline {{
    %old = call i64 @llvm.aarch64.get.fpcr()
    %new = CHANGE i64 %old, BITS
    call void @llvm.aarch64.set.fpcr(i64 %new)
    ret i64 %old
}}
define linkonce_odr void @{_RESTORE}(i64 %old) alwaysinline {{
    call void @llvm.aarch64.set.fpcr(i64 %old)
    ret void
}}
"""
_PROCESSORS = {
    "x86_64": (_X86, 1 << 15 | 1 << 6),  # results become zero (FTZ), operands count as zero (DAZ)
    "aarch64": (_ARM, 1 << 24),  # both (FZ)
}


def with_mode_for_denormals(function: PrimFunc) -> PrimFunc:
    """Lets a lowered function flush denormals, or keep them if its target has the key `KEEP_DENORMALS`.

    Args:
        function: A function whose loops are lowered and whose attribute `target` is bound.

    Returns:
        The function. It is unchanged for processors other than x86-64 and 64-bit ARM.
    """
    target = function.attrs["target"]
    triple = str(target.attrs.get("mtriple", "")) or platform.machine()
    processor = _PROCESSORS.get(triple.split("-")[0].lower().replace("arm64", "aarch64"))
    if processor is None:
        return function
    code, bits = processor
    change = ("and", ~bits) if KEEP_DENORMALS in target.keys else ("or", bits)
    code = code.replace("CHANGE", change[0]).replace("BITS", str(change[1]))

    def in_each_thread(loop: For) -> Any:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        # TVM lets each thread execute the body of this statement, and its share of the loop in it.
        return AttrStmt(IntImm("int32", 0), "pragma_parallel_launch_point", IntImm("int32", 1), _in_mode(loop))

    body = _in_mode(structural_map(function.body, ((For, in_each_thread),)))
    return function.with_body(AttrStmt(IntImm("int32", 0), "pragma_import_llvm", StringImm(code), body))


def _in_mode(body: Any) -> SeqStmt:
    old = tirx.Var("denormals", "int64")
    restore = Evaluate(tirx.call_extern("void", _RESTORE, old))
    return SeqStmt([Bind(old, tirx.call_extern("int64", _SET)), body, restore])
