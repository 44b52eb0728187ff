"""Tensor intrinsics of a product of matrices in TF32, of which TVM has none: `ldmatrix`, `cvt.rna`, `mma.m16n8k8`.

A fragment is 16 x 16 float32, of which each lane of a warp has 8. Lane l has of the rows and columns of an operand

    first     [row, depth]       rows l / 4 and that plus 8, depths l % 4 and that plus 4, 8 and 12
    second    [column, depth]    columns and depths as rows and depths of the first
              [depth, column]    the same elements

`ldmatrix` moves pairs of 16 bits: of the first and of a second that is [column, depth], a pair is an element. It cannot
transpose such pairs, so that lanes load the elements of a [depth, column] one by one. Elements are rounded as they are
loaded, since nothing but products reads them.
"""

from __future__ import annotations

from functools import cache

import tvm.script
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as tirx_script
from tvm.tirx import PrimFunc

from ...ir.expressions import tf32
from .matrix_product import pairs_by_lanes, words_by_lanes

_ROUND = """
__forceinline__ __device__ float stormdrop_tf32(float value) {
  unsigned int bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return *(float*)&bits;
}
"""

_HEADER = """
@T.prim_func(s_tir=True)
def main(warp_handle: T.handle, shared_handle: T.handle):
    {strides}
    shared = T.match_buffer(
        shared_handle, (16, 16), "float32", align=64, offset_factor=16, scope="{shared}"{given}
    )
    warp = T.match_buffer(warp_handle, (32, 8), "float32", align=64, offset_factor=16, scope="warp")
    with T.sblock("root"):
        T.reads(shared[0:16, 0:16])
        T.writes(warp[0:32, 0:8])
"""
_LOADED = """
        for i, j in T.grid(16, 16):
            with T.sblock("load"):
                v, w = T.axis.remap("SS", [i, j])
                T.reads(shared[v, w])
                lane, position = T.meta_var(words_by_lanes({outer}, {depth}, {second}))
                T.writes(warp[lane, position])
                warp[lane, position] = shared[v, w]
"""
_BY_LDMATRIX = """
        for lane in T.thread_binding(0, 32, "threadIdx.x"):
            for half in T.unroll(2):
                T.evaluate(T.ptx_legacy.ldmatrix(
                    False, 4, ".b16", warp.data, warp.elem_offset + 8 * lane + 4 * half, shared.access_ptr("r"),
                    {offset}, dtype="float32"
                ))
            for at in T.unroll(8):
                warp[lane, at] = T.cuda.func_call(
                    "stormdrop_tf32", warp[lane, at], source_code=ROUND, return_type="float32"
                )
"""
_ONE_BY_ONE = """
        for lane in T.thread_binding(0, 32, "threadIdx.x"):
            for at in T.unroll(8):
                warp[lane, at] = T.cuda.func_call(
                    "stormdrop_tf32", shared[at % 4 * 4 + lane % 4, at // 4 * 8 + lane // 4],
                    source_code=ROUND, return_type="float32"
                )
"""
_PRODUCT = """
@T.prim_func(s_tir=True)
def main(a: T.handle, b: T.handle, c: T.handle):
    A = T.match_buffer(a, (32, 8), "float32", align=64, offset_factor=16, scope="warp")
    B = T.match_buffer(b, (32, 8), "float32", align=64, offset_factor=16, scope="warp")
    C = T.match_buffer(c, (32, 8), "float32", align=64, offset_factor=16, scope="warp")
    with T.sblock("root"):
        T.reads(C[0:32, 0:8], A[0:32, 0:8], B[0:32, 0:8])
        T.writes(C[0:32, 0:8])
"""
_SUMMED = """
        for i, j, k in T.grid(16, 16, 16):
            with T.sblock("sum"):
                x, y, z = T.axis.remap("SSR", [i, j, k])
                lane, position = T.meta_var(pairs_by_lanes(x, y))
                lane_a, position_a = T.meta_var(words_by_lanes(x, z, False))
                lane_b, position_b = T.meta_var(words_by_lanes(y, z, True))
                T.reads(C[lane, position], A[lane_a, position_a], B[lane_b, position_b])
                T.writes(C[lane, position])
                C[lane, position] = C[lane, position] + tf32(A[lane_a, position_a]) * tf32(B[lane_b, position_b])
"""
_BY_MMA = """
        for lane in T.thread_binding(0, 32, "threadIdx.x"):
            for depth in T.unroll(2):
                for column in T.unroll(2):
                    T.evaluate(T.ptx_legacy.mma(
                        "m16n8k8", "row", "col", "tf32", "tf32", "fp32",
                        A.data, A.elem_offset + 8 * lane + 4 * depth,
                        B.data, B.elem_offset + 8 * lane + 4 * column + 2 * depth,
                        C.data, C.elem_offset + 8 * lane + 4 * column, False, dtype="float32"
                    ))
"""


@cache
def tf32_intrinsics(shared: str, transposed: bool) -> dict[str, str]:
    """The names of the intrinsics of a product in TF32, by their use: `load_a`, `load_b` and `compute`.

    Args:
        shared: The scope of shared memory that the operands are in.
        transposed: Whether the second operand is read as [column, depth].
    """
    rows = _BY_LDMATRIX.format(offset="s0 * (lane % 16) + lane // 16 * 4 + 8 * half")
    columns = _BY_LDMATRIX.format(offset="s0 * (lane % 8 + 8 * half) + lane // 8 * 4")
    outer, depth = "vw" if transposed else "wv"
    names = {"compute": "stormdrop_tf32_product"}
    for use, loaded, by_lanes in (
        ("load_a", _LOADED.format(outer="v", depth="w", second=False), rows),
        ("load_b", _LOADED.format(outer=outer, depth=depth, second=True), columns if transposed else _ONE_BY_ONE),
    ):
        names[use] = f"stormdrop_tf32_{use}_{shared}_{transposed}"
        described = _HEADER.format(shared=shared, strides="", given="") + loaded
        strides = "s0 = T.int32()\n    s1 = T.int32()"
        done = _HEADER.format(shared=shared, strides=strides, given=", strides=[s0, s1]") + by_lanes
        TensorIntrin.register(names[use], _parsed(described), _parsed(done), override=True)
    TensorIntrin.register(names["compute"], _parsed(_PRODUCT + _SUMMED), _parsed(_PRODUCT + _BY_MMA), override=True)
    return names


_NAMES = {
    "T": tirx_script,
    "tf32": tf32,
    "words_by_lanes": words_by_lanes,
    "pairs_by_lanes": pairs_by_lanes,
    "ROUND": _ROUND,
}


def _parsed(source: str) -> PrimFunc:
    return tvm.script.from_source(source, _NAMES)
