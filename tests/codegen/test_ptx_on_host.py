"""Tensor cores and asynchronous copies of CUDA source on this machine's cores; faults in it that have to be found."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import te, tirx
from tvm.s_tir.tensor_intrin import cuda as layouts
from tvm.testing.tir import mma_schedule

from stand_ins.cuda_on_host import SANITIZERS, UNWRITTEN, execute_source_on_host
from stand_ins.inline_ptx import without_asm
from stand_ins.opencl_execution import Execution
from stormdrop.codegen.gpu_lowering import KernelLaunch
from stormdrop.errors import MeasureError
from stormdrop.machine.gpu import GPUS

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on the PATH"),
]

Array = NDArray[Any]
Place = Callable[[int, int, int], tuple[int, int]]

M, N, K = 32, 32, 192
ROWS = 24  # of M, in the kernel that the faults are put into: the others are padding
CALL = "tvm_builtin_ptx_cp_async_{}();"
COPY = "ptx_cp_async_legacy_pred_cg_16_2_2(padded_shared_ptr, ((((((k_0_0 + 2) % 3)"
WAIT, COMMIT = CALL.format("wait_group_async_wait_group_2"), CALL.format("commit_group_async_commit_group")


@cache
def pipelined() -> str:
    return pipelined_source("float16", "float32", rows=ROWS)


def multiply(
    source: str,
    sanitizer: str,
    dtype: str = "float16",
    out: str = "float32",
    transposed: bool = False,
    rows: int = ROWS,
) -> tuple[bool | str, int]:
    """Whether the product is right, or what was complained of; and the conflicts of banks."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((rows, K), (K, N)))
    expected = np.zeros((M, N))
    expected[:rows] = a.astype("f8") @ b.astype("f8")
    inputs, outputs = {"A": a, "B": b.T if transposed else b}, {"C": np.full((M, N), UNWRITTEN, out)}
    launch = KernelLaunch("main_kernel", ("A", "B", "C"), (1, 1, 1), (32, 2, 1))
    (execution,) = execute_source_on_host(source, [launch], inputs, outputs, (sanitizer,))
    if execution.complaints:
        return ", ".join(execution.complaints), 0
    assert not execution.error
    return np.array_equal(execution.outputs[0], expected), execution.bank_conflicts


@pytest.mark.parametrize(
    ("dtype", "out", "transposed", "rows"),
    [
        ("float16", "float32", False, ROWS),
        ("float16", "float32", True, M),
        ("float16", "float16", False, M),
        ("int8", "int32", False, M),
        ("int8", "int32", True, M),
    ],
)
def test_pipelined_products(dtype: str, out: str, transposed: bool, rows: int) -> None:
    source = pipelined_source(dtype, out, transposed, rows)
    for sanitizer in SANITIZERS:
        assert multiply(source, sanitizer, dtype, out, transposed, rows) == (True, 0)


def test_conflicts_of_banks_without_padding() -> None:
    """Rows of 64 bytes: four of the eight rows of a matrix lie in the same banks."""
    matrices = 2 * K // 16 * (4 + 8)  # of two warps, for A and B
    assert multiply(pipelined().replace("* 40", "* 32").replace("* 320", "* 256"), "") == (True, 3 * matrices)


@pytest.mark.parametrize(
    ("sanitizer", "old", "new", "found"),
    [
        pytest.param("", WAIT, "", False, id="no wait"),
        pytest.param("", "wait_group 2;", "wait_group 3;", False, id="a wait for one group too few"),
        pytest.param("", COMMIT, "", "host fault: copies that nobody waits for", id="no commit"),
        pytest.param("thread", f"{WAIT}\n    __syncthreads();", WAIT, "data race", id="no barrier before reads"),
        pytest.param("thread", f"__syncthreads();\n    {COPY}", COPY, "data race", id="no barrier after reads"),
        pytest.param("", "{%4, %5, %6, %7}", "{%4, %6, %5, %7}", False, id="swapped registers of mma"),
        pytest.param("", "{%0, %1, %2, %3}, [%4]", "{%0, %2, %1, %3}, [%4]", False, id="swapped registers of ldmatrix"),
        pytest.param("", ".x4.trans", ".x4", False, id="not transposed"),
        pytest.param(
            "", "* 40", "* 36", "host fault: an address in shared memory is not aligned", id="padding of 8 bytes"
        ),
        pytest.param(
            "address", '"r"(predicate)', '"r"(1)', "heap-buffer-overflow on address", id="a predicate left out"
        ),
        pytest.param(
            "",
            '{\n    __asm__ __volatile__(\n      "mma',
            'if (threadIdx.x != 5) {\n    __asm__ __volatile__(\n      "mma',
            "host fault: not all lanes of a warp come",
            id="a lane that does not come",
        ),
    ],
)
def test_faults_are_found(sanitizer: str, old: str, new: str, found: bool | str) -> None:
    assert old in pipelined()
    faulty = pipelined().replace(old, new)
    assert multiply(faulty, sanitizer)[0] == found


FRAGMENTS: dict[tuple[int, int], tuple[Place, Place]] = {
    (16, 16): (
        lambda g, t, i: (g + 8 * (2 <= i < 4 or i >= 6), 2 * t + i % 2 + 8 * (i >= 4)),
        lambda g, t, i: (2 * t + i % 2 + 8 * (i >= 2), g),
    ),
    (16, 8): (lambda g, t, i: (g + 8 * (i >= 2), 2 * t + i % 2), lambda g, t, i: (2 * t + i, g)),
    (32, 8): (lambda g, t, i: (g + 8 * (i in (1, 3)), t + 4 * (i >= 2)), lambda g, t, i: (t + 4 * i, g)),
    (32, 4): (lambda g, t, i: (g + 8 * i, t), lambda g, t, i: (t, g)),
    (8, 32): (
        lambda g, t, i: (g + 8 * (4 <= i < 8 or i >= 12), 4 * t + i % 4 + 16 * (i >= 8)),
        lambda g, t, i: (4 * t + i % 4 + 16 * (i >= 4), g),
    ),
    (8, 16): (lambda g, t, i: (g + 8 * (i >= 4), 4 * t + i % 4), lambda g, t, i: (4 * t + i, g)),
}
"""By the bits of an element and k: where element i of the lane 4 * g + t is in A and in B, as "PTX ISA" says."""

DTYPES = {"f16": "float16", "bf16": "bfloat16", "tf32": "float32", "s8": "int8", "u8": "uint8"}


def held(matrix: Array, place: Place) -> Array:
    """The registers of all lanes, for the elements that each lane holds of a matrix."""
    count = matrix.size // 32
    rows = [[matrix[place(lane // 4, lane % 4, i)] for i in range(count)] for lane in range(32)]
    return np.array(rows, matrix.dtype).view(np.uint32)


def one_warp(statements: str, inputs: dict[str, Array], size: int, sanitizer: str = "", lanes: int = 32) -> Execution:
    """What one warp writes to the words `out`, `size` of them."""
    parameters = ", ".join(f"unsigned* {name}" for name in (*inputs, "out"))
    source = f'extern "C" __global__ void one_warp({parameters}) {{ int lane = threadIdx.x; {statements} }}'
    launch = KernelLaunch("one_warp", (*inputs, "out"), (1, 1, 1), (lanes, 1, 1))
    outputs = {"out": np.full(size, UNWRITTEN, np.uint32)}
    (execution,) = execute_source_on_host(source, [launch], inputs, outputs, (sanitizer,))
    return execution


def registers(constraint: str, name: str, count: int) -> str:
    kind = "float" if constraint.endswith("f") else "unsigned"
    return ", ".join(f'"{constraint}"((({kind} *)({name} + lane * {count}))[{i}])' for i in range(count))


@pytest.mark.parametrize(
    ("k", "dtype", "out"),
    [
        *[(16, "f16", "f32"), (16, "f16", "f16"), (16, "bf16", "f32"), (8, "f16", "f32"), (8, "f16", "f16")],
        *[(8, "bf16", "f32"), (8, "tf32", "f32"), (4, "tf32", "f32"), (32, "s8", "s32"), (16, "s8", "s32")],
        (32, "u8", "s32"),
    ],
)
def test_lanes_hold_what_the_instruction_set_says(k: int, dtype: str, out: str) -> None:
    rng, least = np.random.default_rng(k), 0 if dtype == "u8" else -4
    a, b = (rng.integers(least, 5, shape).astype(DTYPES[dtype]) for shape in ((16, k), (k, 8)))
    c = rng.integers(-9, 9, (16, 8)).astype({"f32": "float32", "f16": "float16", "s32": "int32"}[out])
    expected = a.astype("f8") @ b.astype("f8") + c
    of_a, of_b = FRAGMENTS[8 * a.itemsize, k]
    of_c = lambda g, t, i: (g + 8 * (i >= 2), 2 * t + i % 2)  # noqa: E731
    words = {"a": held(a, of_a), "b": held(b, of_b), "c": held(c, of_c)}
    if dtype == "tf32":
        words["a"] |= 0x1FFF  # the instruction ignores these bits
    counts = [words[name].shape[1] for name in "cabc"]
    ends = np.cumsum(counts)
    groups = ["{" + ", ".join(f"%{end - n + i}" for i in range(n)) + "}" for n, end in zip(counts, ends, strict=True)]
    letter = "f" if out == "f32" else "r"
    given = ", ".join(
        registers(*each) for each in (("r", "a", counts[1]), ("r", "b", counts[2]), (letter, "c", counts[3]))
    )
    execution = one_warp(
        f'asm("mma.sync.aligned.m16n8k{k}.row.col.{out}.{dtype}.{dtype}.{out}"\n "{", ".join(groups)};\\n"\n'
        f": {registers('=' + letter, 'out', counts[0])}\n : {given});",
        words,
        words["c"].size,
    )
    assert not execution.error
    np.testing.assert_array_equal(execution.outputs[0].reshape(32, -1), held(expected.astype(c.dtype), of_c))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_of_which_each_lane_gets_a_pair(count: int, transposed: bool) -> None:
    matrices = np.arange(count * 64, dtype=np.uint16).reshape(count, 8, 8)
    targets = ", ".join(f"%{m}" for m in range(count))
    execution = one_warp(
        f"__shared__ alignas(16) unsigned rows[{count * 32}];"
        f"for (int i = lane; i < {count * 32}; i += 32) rows[i] = in[i]; __syncthreads();"
        f"unsigned address = __cvta_generic_to_shared(rows + lane % {8 * count} * 4);\n"
        f'asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{".trans" * transposed}.shared.b16"'
        f' "{{{targets}}}, [%{count}];"'
        f': {registers("=r", "out", count)} : "r"(address));',
        {"in": matrices.reshape(-1).view(np.uint32)},
        32 * count,
        "thread",
    )
    seen = matrices.swapaxes(1, 2) if transposed else matrices
    expected = seen.reshape(count, 32, 2).swapaxes(0, 1)  # lane l: row l // 4, columns 2 * (l % 4) and the next
    assert not execution.complaints
    np.testing.assert_array_equal(execution.outputs[0], np.ascontiguousarray(expected).reshape(-1).view(np.uint32))


COPY_8 = """
__shared__ alignas(16) unsigned words[80];
unsigned to = __cvta_generic_to_shared(words + 2 * lane);
asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" :: "r"(to), "l"(in + 2 * lane), "n"(8), "r"(4));
asm volatile("cp.async.wait_all;" ::: "memory");
out[2 * lane] = words[2 * lane]; out[2 * lane + 1] = words[2 * lane + 1];
"""


def test_a_copy_fills_with_zeros_and_lands_if_all_are_waited_for() -> None:
    """Nothing commits the copies to a group, so that only `wait_all` waits for them."""
    words = np.arange(64, dtype=np.uint32)
    execution = one_warp(COPY_8, {"in": words}, 64)
    np.testing.assert_array_equal(execution.outputs[0], np.where(np.arange(64) % 2 == 0, words, 0))
    execution = one_warp(COPY_8.replace("cp.async.wait_all", "cp.async.wait_group 0"), {"in": words}, 64)
    assert execution.complaints == ("host fault: copies that nobody waits for",)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("words + 2", "words + 1 + 2", "an address in shared memory is not aligned"),
        ("(in + 2 * lane)", "(in + 1)", "an address in global memory is not aligned"),
        ("shared(words", "shared(in", "an address is not in shared memory"),
        ('"r"(4)', '"r"(9)', "cp.async reads more than it writes"),
    ],
)
def test_wrong_copies_are_found(old: str, new: str, found: str) -> None:
    assert old in COPY_8
    execution = one_warp(COPY_8.replace(old, new), {"in": np.zeros(66, np.uint32)}, 64)
    assert execution.complaints == (f"host fault: {found}",)


@pytest.mark.parametrize(("size", "store"), [(4, ".u32 [%0], {%4}"), (8, ".v2.u32 [%0], {%4, %4}")])
def test_a_copy_with_a_predicate(size: int, store: str) -> None:
    words = np.arange(1, 65, dtype=np.uint32)
    execution = one_warp(
        "__shared__ alignas(16) unsigned words[64]; words[2 * lane + 1] = 9;"
        "unsigned to = __cvta_generic_to_shared(words + 2 * lane);\n"
        f"""asm volatile("{{\\n" " .reg .pred p;\\n" " setp.eq.u32 p, %3, 1;\\n"
        " @p cp.async.ca.shared.global [%0], [%1], %2;\\n" " @!p st.shared{store};\\n" "}}\\n"
        :: "r"(to), "l"(in + 2 * lane), "n"({size}), "r"(lane % 2), "r"(0));"""
        '\nasm volatile("cp.async.wait_all;" ::);'
        "out[2 * lane] = words[2 * lane]; out[2 * lane + 1] = words[2 * lane + 1];",
        {"in": words},
        64,
    )
    expected = np.where(np.arange(64) // 2 % 2 == 1, words, 0)
    if size == 4:
        expected[1::2] = 9
    assert not execution.complaints
    np.testing.assert_array_equal(execution.outputs[0], expected)


def test_a_warp_that_is_not_whole_is_found() -> None:
    statement = 'asm("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(out[lane]) : "r"(to));'
    to = "__shared__ alignas(16) unsigned words[128]; unsigned to = __cvta_generic_to_shared(words + 4 * lane);"
    execution = one_warp(f"{to}\n{statement}", {}, 16, lanes=16)
    assert execution.complaints == ("host fault: a warp has less than 32 lanes",)


def test_the_lanes_of_a_warp_are_not_ordered_by_ldmatrix() -> None:
    """A lane reads what others have copied, with no barrier in between."""
    execution = one_warp(
        "__shared__ alignas(16) unsigned words[128]; unsigned got[1];"
        "unsigned address = __cvta_generic_to_shared(words + 4 * lane);\n"
        'asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" :: "r"(address), "l"(in + 4 * lane), "n"(16));\n'
        'asm volatile("cp.async.wait_all;" ::);\n'
        'asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(got[0]) : "r"(address));\n'
        "out[lane] = got[0];",
        {"in": np.zeros(128, np.uint32)},
        32,
        "thread",
    )
    assert execution.complaints == ("data race",)


NUMBERS = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-11, 1 + 2**-11 - 2**-23, 1e-40, 3.4e38, np.inf, np.nan], "f4")
PAIR = 'unsigned r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(x), "f"(2.5f)); out[lane] = r;'
TF32 = 'unsigned r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); out[lane] = r;'


@pytest.mark.parametrize(
    ("statement", "right"),
    [
        (PAIR, True),
        (PAIR.replace('"f"(x), "f"(2.5f)', '"f"(2.5f), "f"(x)'), False),
        (TF32, True),
        (TF32.replace("= r;", "= in[lane];"), False),
    ],
    ids=["bfloat16", "swapped", "tf32", "not rounded"],
)
def test_roundings(statement: str, right: bool) -> None:
    words = np.resize(NUMBERS, 32).view(np.uint32)
    execution = one_warp(f"float x = ((float*)in)[lane]; {statement}", {"in": words}, 32)
    (found,) = execution.outputs
    if "bf16x2" in statement:
        expected = words.view("f4").astype("bfloat16").astype("f4")
        right_half = np.all(found & 0xFFFF == np.float32(2.5).view(np.uint32) >> 16)
        assert right == (right_half and np.array_equal((found & 0xFFFF0000).view("f4"), expected, equal_nan=True))
    else:
        away = (words + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)  # ties go away from 0
        expected = np.where(np.isnan(words.view("f4")), np.nan, away.view("f4")).astype("f4")
        assert right == np.array_equal(found.view("f4"), expected, equal_nan=True)


def test_powers_of_2() -> None:
    numbers = np.resize(np.array([0, 1, -0.5, 3.25, -126, -126.5, 127.5, 200, -np.inf, np.nan], "f4"), 32)
    statement = (
        'float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(((float*)in)[lane])); ((float*)out)[lane] = r;'
    )
    execution = one_warp(statement, {"in": numbers.view(np.uint32)}, 32)
    with np.errstate(over="ignore"):
        expected = np.where(numbers < -126, 0, np.exp2(numbers.astype("f8"))).astype("f4")
    np.testing.assert_allclose(execution.outputs[0].view("f4"), expected, rtol=2**-22)


DOT = 'asm("dp4a.{} %0, %1, %2, %3;" : "=r"(out[lane]) : "r"(a[lane]), "r"(b[lane]), "r"(lane - 16));'


@pytest.mark.parametrize(
    ("statement", "first", "second"),
    [
        ("out[lane] = __dp4a((int)a[lane], (int)b[lane], lane - 16);", np.int8, np.int8),
        (DOT.format("s32.s32"), np.int8, np.int8),
        (DOT.format("u32.s32"), np.uint8, np.int8),
        (DOT.format("s32.u32"), np.int8, np.uint8),
    ],
    ids=["function", "signed", "unsigned_by_signed", "signed_by_unsigned"],
)
def test_products_of_bytes(statement: str, first: type, second: type) -> None:
    rng = np.random.default_rng(0)
    drawn = [rng.integers(-128, 128, (32, 4)).astype(np.int8) for _ in "ab"]
    a: Any = drawn[0].view(first)
    b: Any = drawn[1].view(second)
    words = {"a": a.reshape(-1).view(np.uint32), "b": b.reshape(-1).view(np.uint32)}
    execution = one_warp(statement, words, 32)
    expected = (a.astype("i4") * b.astype("i4")).sum(1) + np.arange(32) - 16
    np.testing.assert_array_equal(execution.outputs[0].view(np.int32), expected)


@pytest.mark.parametrize("ptx", ["wgmma.fence.sync.aligned;", "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0};"])
def test_unknown_instructions_are_named(ptx: str) -> None:
    with pytest.raises(MeasureError, match=re.escape(ptx)):
        without_asm(f'asm volatile("{ptx}" : "=d"(x));')


def pipelined_source(dtype: str, out: str, transposed: bool = False, rows: int = M) -> str:
    """What TVM makes of a matrix product: three stages of asynchronous copies, `ldmatrix`, and `mma` by two warps.

    The rows of A from `rows` on are padding.
    """
    short, inner = dtype == "float16", 16 if dtype == "float16" else 32
    a, b = te.placeholder((rows, K), dtype, name="A"), te.placeholder((N, K) if transposed else (K, N), dtype, name="B")
    or_zero = lambda i, k: te.if_then_else(i < rows, a[i, k], tirx.const(0, dtype))  # noqa: E731
    padded = te.compute((M, K), or_zero, name="padded") if rows < M else a
    k = te.reduce_axis((0, K), name="k")
    product = lambda i, j: padded[i, k].astype(out) * b[(j, k) if transposed else (k, j)].astype(out)  # noqa: E731
    c = te.compute((M, N), lambda i, j: te.sum(product(i, j), k), name="C")
    named = layouts.get_mma_intrin_group("shared", "global", dtype, out, False, transposed, False)
    by_16 = lambda i, j: (i // 16, j // 16, *layouts.shared_16x16_to_ldmatrix_32x8_layout(i % 16, j % 16))  # noqa: E731
    of_a = lambda i, j: (i // 16, j // 32, *layouts.shared_16x32_to_ldmatrix_32x16_layout(i % 16, j % 32))  # noqa: E731
    of_b = lambda i, j: (i // 32, j // 16, *layouts.shared_32x16_to_ldmatrix_32x16_layout(i % 32, j % 16))  # noqa: E731
    schedule = mma_schedule(
        te.create_prim_func([a, b, c]),
        inner,
        dtype,
        transposed,
        [1, 1, 2, 1, 1],
        [1, 1, 1, 1, 2],
        [K // inner, 1, 1],
        by_16 if short else of_a,
        by_16 if short else of_a if transposed else of_b,
        by_16,
        *(named[part] for part in ("load_a", "load_b", "compute", "init", "store")),
    )
    if rows < M:
        schedule.compute_inline("padded")
    loop = schedule.get_loops(schedule.get_sblock("C_o_update"))[3]
    schedule.annotate(loop, "software_pipeline_stage", [0, 0, 2])
    schedule.annotate(loop, "software_pipeline_order", [0, 1, 2])
    schedule.annotate(loop, "software_pipeline_async_stages", [0])
    with tvm.transform.PassContext(config={"tirx.use_async_copy": True}):
        built = tvm.compile(schedule.mod, target=GPUS["a100"].tvm())
    (kernels,) = [module for module in built.mod.imports if module.kind == "cuda"]
    return str(kernels.inspect_source("cuda"))
