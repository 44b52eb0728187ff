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


def mma_intrinsics(shared: str, dtypes: tuple[str, str], transposed: bool) -> dict[str, str]:
    """The names of the intrinsics of a product of matrices by `ldmatrix` and `mma`, with sums of 32 bits, by use.

    TVM has none for bfloat16. They are those for float16 with another type in them: `ldmatrix` moves bits.

    Args:
        shared: The scope of shared memory that the operands are in.
        dtypes: The types of both operands: "int8" or "uint8" each; or one type, "float16", "bfloat16" or "tf32".
        transposed: Whether the second operand is read as [column, depth].
    """
    dtype, _ = dtypes
    if is_integer(dtype):
        return _of_bytes(shared, dtypes, transposed)
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


def _of_bytes(shared: str, dtypes: tuple[str, str], transposed: bool) -> dict[str, str]:
    """Those of a product of bytes, with sums in int32. TVM has them for other scopes, and for int8 only."""
    cuda = cuda_intrinsics()
    given, uses = "_".join(dtypes), ("load_a", "load_b", "compute")
    names = {use: f"stormdrop_{given}_{use}_{shared}_{transposed}" for use in uses}
    if TensorIntrin.get(names["compute"], allow_missing=True) is None:
        found = TensorIntrin.get("mma_i8i8i32_trans_b" if transposed else "mma_i8i8i32")
        first, second = dtypes
        of_loads = {"load_a": ("A", False, first), "load_b": ("B", transposed, second)}
        for use, (operand, by_column, dtype) in of_loads.items():
            pair = cuda.get_ldmatrix_intrin(32, "int8", operand, by_column, shared)
            TensorIntrin.register(names[use], *(_in_bytes(each, dtype, dtype) for each in pair))
        product = (_in_bytes(each, first, second) for each in (found.desc, found.impl))
        TensorIntrin.register(names["compute"], *product)
    return names | {"init": "mma_fill_16x16_i32"}


def _in_bytes(function: PrimFunc, first: str, second: str) -> PrimFunc:
    """The same function of int8 for operands of other types; one that loads an operand knows one type."""
    source = function.script().replace('"col", "int8", "int8"', f'"col", "{first}", "{second}"')
    for operands, dtype in ((r"(?:A|warp|shared)", first), ("B", second)):
        source = re.sub(rf'\b({operands}: T\.Buffer\(\(\d+, \d+\), )"int8"', rf'\1"{dtype}"', source)
    return tvm.script.from_source(source.replace('type_annotation("int8")', f'type_annotation("{first}")'))


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
