"""TVM's tensor intrinsics for CUDA, loaded in a tenth of the time that a plain import takes.

TVM's module parses some 250 functions when it is imported. For each of them the parser calls `inspect.stack()`, which
searches all loaded modules for the source line of every frame; that takes half a minute on slow cores. The parser uses
the frames but not these lines, so the frames are handed to it without them.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from types import FrameType
from typing import Any

import tvm.script
from tvm.s_tir import TensorIntrin
from tvm.tirx import PrimFunc

from ...ir.dtypes import FLOAT16, TF32, is_integer
from .tf32 import tf32_intrinsics

_LOCK = threading.Lock()


def cuda_intrinsics() -> Any:
    """The module `tvm.s_tir.tensor_intrin.cuda`. The first call in a process takes a few seconds."""
    with _LOCK:
        stack = inspect.stack
        inspect.stack = _stack_without_source
        try:
            from tvm.s_tir.tensor_intrin import cuda
        finally:
            inspect.stack = stack
    return cuda


def mma_intrinsics(shared: str, dtype: str, transposed: bool) -> dict[str, str]:
    """The names of the intrinsics of a product of matrices by `ldmatrix` and `mma`, with sums of 32 bits, by use.

    TVM has none for bfloat16. They are those for float16 with another type in them: `ldmatrix` moves bits.

    Args:
        shared: The scope of shared memory that the operands are in.
        dtype: The type of the operands: "float16", "bfloat16", "tf32" or "int8"; "uint8" if only the first one is that,
            and the second one is int8.
        transposed: Whether the second operand is read as [column, depth].
    """
    if is_integer(dtype):
        return _of_bytes(shared, dtype, transposed)
    names = dict(cuda_intrinsics().get_mma_intrin_group(shared, "global", FLOAT16, "float32", False, transposed))
    if dtype == FLOAT16:
        return names
    if dtype == TF32:
        return names | tf32_intrinsics(shared, transposed)
    for use in ("load_a", "load_b", "compute"):
        name = names[use]
        names[use] = f"stormdrop_bfloat16_{name}"
        if TensorIntrin.get(names[use], allow_missing=True) is None:
            found = TensorIntrin.get(name)
            TensorIntrin.register(names[use], _in_bfloat16(found.desc), _in_bfloat16(found.impl))
    return names


def _of_bytes(shared: str, dtype: str, transposed: bool) -> dict[str, str]:
    """Those of a product of bytes, with sums in int32. TVM has them for other scopes, and for int8 only."""
    cuda = cuda_intrinsics()
    names = {use: f"stormdrop_{dtype}_{use}_{shared}_{transposed}" for use in ("load_a", "load_b", "compute")}
    if TensorIntrin.get(names["compute"], allow_missing=True) is None:
        found = TensorIntrin.get("mma_i8i8i32_trans_b" if transposed else "mma_i8i8i32")
        first = cuda.get_ldmatrix_intrin(32, "int8", "A", False, shared)
        first, product = [[_of_first(each, dtype) for each in pair] for pair in (first, (found.desc, found.impl))]
        TensorIntrin.register(names["load_a"], *first)
        TensorIntrin.register(names["load_b"], *cuda.get_ldmatrix_intrin(32, "int8", "B", transposed, shared))
        TensorIntrin.register(names["compute"], *product)
    return names | {"init": "mma_fill_16x16_i32"}


def _of_first(function: PrimFunc, dtype: str) -> PrimFunc:
    """The same function of int8 for a first operand of another type, which stands before the second one."""
    pattern = r'((?:A|warp|shared): T\.Buffer\(\(\d+, \d+\), |"col", |type_annotation\()"int8"'
    return tvm.script.from_source(re.sub(pattern, rf'\1"{dtype}"', function.script()))


def _in_bfloat16(function: PrimFunc) -> PrimFunc:
    """The same function for bfloat16.

    TVM prints `ldmatrix` without its type, by which it knows, as it writes CUDA, whether the instruction can transpose.
    """
    source = function.script().replace('"float16"', '"bfloat16"').replace('"fp16"', '"bf16"')
    source = re.sub(r"(ldmatrix\(.*)\)$", r'\1, dtype="uint16")', source, flags=re.MULTILINE)
    return tvm.script.from_source(source)


def _stack_without_source(context: int = 1) -> list[inspect.FrameInfo]:
    """As `inspect.stack`, but `code_context` and `index` of each frame are None."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        frames.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back
    return frames
