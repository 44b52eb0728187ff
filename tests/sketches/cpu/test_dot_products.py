"""Contractions by dot products of bytes, int16 and bfloat16: their instructions, and that all points are exact."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tvm import te

from stand_ins.assembly import assembly
from stormdrop import operators
from stormdrop.codegen.compile import TunedKernel
from stormdrop.ir.error_bounds import rounding_bounds, varied_inputs
from stormdrop.ir.reference import evaluate
from stormdrop.ir.stages import StageGraph
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.measure.worker.output_check import excess
from stormdrop.sketches.cpu.contractions.dot_products import DotProducts
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.sketches.cpu.contractions.wide_bytes import multiplied
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing.sketches import covering_points, run_all

SKETCH = RegisterBlocked()
TARGET = Cpu.detect()


def known(name: str, *features: str) -> Cpu:
    """A CPU by name, with the extensions of some units."""
    target = parse_machine(name)
    assert isinstance(target, Cpu)
    return replace(target, features=features)


VNNI, AVX_VNNI = known("cpu/x86-64-v4", "avx512vnni"), known("cpu/x86-64-v3", "avxvnni")
AVX2, AVX512 = known("cpu/x86-64-v3", "avx2"), known("cpu/x86-64-v4", "avx2", "avx512bw")
BF16, ARM_BF16 = known("cpu/x86-64-v4", "avx512bf16"), known("cpu/neoverse-n2", "bf16")
DOTPROD, I8MM = known("cpu/cortex-a76", "dotprod"), known("cpu/neoverse-n2", "dotprod", "i8mm")


def product(
    data: str,
    columns: str,
    zero_points: tuple[int, int] = (0, 0),
    sizes: tuple[int, int, int] = (5, 20, 9),
    constants: tuple[int, ...] = (1,),
) -> Workload:
    """A matrix of bytes times another one, each less its zero point."""
    m, n, k = sizes
    a, b = te.placeholder((m, k), data, name="a"), te.placeholder((k, n), columns, name="b")
    r = te.reduce_axis((0, k), name="r")

    def element(i: Any, j: Any) -> Any:
        left, right = a[i, r].astype("int32"), b[r, j].astype("int32")
        return te.sum((left - zero_points[0]) * (right - zero_points[1]), axis=r)

    function = te.create_prim_func([a, b, te.compute((m, n), element, name="c")])
    return Workload.create(f"{data} x {columns} {zero_points} {sizes}", function, constants)


def dots_of(workload: Workload, target: Cpu) -> DotProducts | None:
    _, dots = multiplied(workload.contraction, target)
    return dots


@pytest.mark.parametrize(
    ("types", "zero_points", "target", "expected"),
    [
        (("uint8", "int8"), (0, 0), VNNI, ("vpdpbusd", True, False, 0)),
        (("uint8", "int8"), (3, 0), VNNI, ("vpdpbusd", True, False, 3)),
        (("int8", "int8"), (3, 0), VNNI, ("vpdpbusd", True, True, 131)),
        (("int8", "uint8"), (-3, 0), VNNI, ("vpdpbusd", False, False, -3)),
        (("uint8", "uint8"), (0, 128), VNNI, ("vpdpbusd", True, False, 0)),
        (("uint8", "uint8"), (9, 0), VNNI, ("vpdpbusd", False, True, -119)),
        (("uint8", "int8"), (0, 0), AVX_VNNI, ("vpdpbusd", True, False, 0)),
        (("int8", "int8"), (0, 0), DOTPROD, ("sdot", True, False, 0)),
        (("uint8", "uint8"), (4, 0), DOTPROD, ("udot", True, False, 4)),
        (("uint8", "int8"), (0, 0), DOTPROD, ("sdot", True, True, -128)),
        (("uint8", "int8"), (0, 0), I8MM, ("usdot", True, False, 0)),
        (("uint8", "int8"), (3, 1), AVX2, ("pmadd", True, False, 0)),
        (("int8", "uint8"), (-128, 255), AVX512, ("pmadd", True, False, 0)),
        (
            ("uint8", "int8"),
            (0, 0),
            replace(VNNI, features=("avx2", "avx512bw", "avx512vnni")),
            ("vpdp", True, False, 0),
        ),
        (
            ("uint8", "int8"),
            (0, 1),
            replace(VNNI, features=("avx2", "avx512bw", "avx512vnni")),
            ("pmadd", True, False, 0),
        ),
    ],
)
def test_signs_and_zero_points_find_their_instruction(
    types: tuple[str, str], zero_points: tuple[int, int], target: Cpu, expected: tuple[str, bool, bool, int]
) -> None:
    dots = dots_of(product(*types, zero_points), target)
    assert dots is not None
    assert expected[0] in dots.instruction
    assert (dots.data_first, dots.flipped, dots.zero_point) == expected[1:]


@pytest.mark.parametrize(
    ("workload", "target"),
    [
        (operators.dense(4, 32, 16), VNNI),  # floats
        (operators.dense(4, 32, 16, dtype="uint8"), known("cpu/x86-64-v4")),  # no unit
        (operators.dense(4, 32, 16, dtype="uint8"), known("cpu/x86-64-v3", "avx512vnni")),  # of another vector length
        (operators.dense(4, 3, 16, dtype="uint8"), VNNI),  # fewer columns than the shortest vector has lanes
        (operators.dense(4, 32, 33100, dtype="uint8"), VNNI),  # the sums may overflow
        (product("uint8", "int8", (0, 1)), VNNI),  # -128 - 1 is no byte
        (product("uint8", "int8", (256, 0)), AVX2),  # products of 18 bits
        (product("uint8", "int8", (0, -129)), AVX2),
        (operators.dense(4, 32, 33100, dtype="uint8"), AVX2),
        (operators.dense(4, 32, 16, dtype="bfloat16"), VNNI),
        (operators.dense(4, 32, 16, dtype="uint8"), BF16),
        (operators.dense(4, 32, 16, dtype="bfloat16"), known("cpu/x86-64-v4", "amx-bf16", "avx512bf16")),
        (operators.depthwise_conv2d(1, 9, 9, 32, 3, 3), VNNI),
    ],
    ids=[
        *("floats", "no unit", "shorter vectors", "few columns", "overflow", "zero point"),
        *("zero point of the data beyond bytes", "of the columns beyond bytes", "overflow of pairs"),
        *("bfloat16 without its unit", "bytes without theirs", "a slow unit beside tiles", "depthwise"),
    ],
)
def test_other_functions_have_none(workload: Workload, target: Cpu) -> None:
    assert dots_of(workload, target) is None


@pytest.mark.parametrize("target", [AVX2, VNNI, known("cpu/x86-64-v3")], ids=["avx2", "avx512_vnni", "no unit"])
@pytest.mark.parametrize(("types", "sums"), [(("int8", "int8"), "int8"), (("uint8", "int8"), "int16")])
def test_bytes_with_other_sums_are_scheduled_without_them(types: tuple[str, str], sums: str, target: Cpu) -> None:
    a, b = te.placeholder((5, 9), types[0], name="a"), te.placeholder((9, 20), types[1], name="b")
    r = te.reduce_axis((0, 9), name="r")
    c = te.compute((5, 20), lambda i, j: te.sum(a[i, r].astype(sums) * b[r, j].astype(sums), axis=r), name="c")
    workload = Workload.create("product", te.create_prim_func([a, b, c]), (1,))
    assert dots_of(workload, target) is None
    space = SKETCH.space(workload, target)
    assert space is not None
    assert "pmadd" not in SKETCH.apply(workload, target, space.config(space.origin)).main.script()


def exact(
    workload: Workload, inputs: Sequence[NDArray[Any]], configs: Sequence[dict[str, Any]], target: Cpu = TARGET
) -> None:
    """Compiles schedules and compares every element of their outputs."""
    (expected,) = workload.reference(list(inputs))
    variants = [SKETCH.apply(workload, target, config) for config in configs]
    for config, (found,) in zip(configs, run_all(variants, workload, target, list(inputs)), strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=str(config))


def exact_at_origin(workload: Workload, cases: Sequence[Sequence[NDArray[Any]]], target: Cpu = TARGET) -> None:
    """Compiles the default schedule and compares every element of its output for each of some inputs."""
    kernel = TunedKernel(workload, target, SKETCH.apply(workload, target, points(workload, target=target)[0]))
    for inputs in cases:
        (expected,) = workload.reference(list(inputs))
        np.testing.assert_array_equal(kernel(*inputs), expected)


def points(workload: Workload, together: int = 1, target: Cpu = TARGET) -> list[dict[str, Any]]:
    """The origin, and points that together have every level, or every pair of levels, of the knobs."""
    space = SKETCH.space(workload, target)
    assert space is not None
    return [space.config(point) for point in covering_points(space, together)]


needs_unit = pytest.mark.skipif(
    dots_of(operators.dense(4, 32, 16, dtype="uint8"), TARGET) is None,
    reason="this machine has no unit for dot products of bytes",
)

WIDE = [
    operators.dense(37, 49, 65, bias=1, act="relu", dtype="uint8", zero_point=5),
    operators.conv2d(1, 9, 11, 20, 40, 3, 3, pad=1, bias=1, dtype="int8", zero_point=-7),
    operators.conv2d(1, 9, 7, 12, 24, 3, 3, pad=1, dtype="int8"),  # the padding is flipped with the data
    operators.batch_matmul(2, 13, 35, 33, dtype="int8"),
]


@needs_unit
@pytest.mark.compiles
@pytest.mark.parametrize("workload", WIDE, ids=lambda workload: workload.name)
def test_every_pair_of_levels_is_exact(workload: Workload) -> None:
    assert dots_of(workload, TARGET) is not None
    exact(workload, workload.random_inputs(3), points(workload, together=2))


@pytest.mark.compiles
@pytest.mark.parametrize("k", [1, 31, 33, 65])
@pytest.mark.parametrize("n", [1, 17])
def test_awkward_sizes_are_exact(n: int, k: int) -> None:
    for dtype, zero_point in (("uint8", 0), ("uint8", 255), ("int8", 0), ("int8", -128)):
        workload = operators.dense(7, n, k, dtype=dtype, zero_point=zero_point)
        exact(workload, workload.random_inputs(1), points(workload)[-1:])


PAIRS = replace(TARGET, features=tuple(name for name in ("avx2", "avx512bw") if name in TARGET.features))
"""This machine without its instructions for bytes."""

needs_pairs = pytest.mark.skipif(not PAIRS.features, reason="this machine has no unit for pairs of int16")


@needs_pairs
@pytest.mark.compiles
@pytest.mark.parametrize(
    "workload",
    [*WIDE, operators.conv2d(1, 7, 9, 8, 32, 3, 3, pad=1, groups=2, dtype="uint8", zero_point=9)],
    ids=lambda workload: workload.name,
)
def test_pairs_are_exact(workload: Workload) -> None:
    assert dots_of(workload, PAIRS) is not None
    exact(workload, workload.random_inputs(3), points(workload, target=PAIRS), PAIRS)


@needs_pairs
@pytest.mark.compiles
@pytest.mark.parametrize("zero_points", [(255, -128), (0, 127), (3, 1)])
@pytest.mark.parametrize("constants", [(1,), ()], ids=["constant", "varying"])
def test_pairs_are_exact_at_the_extremes(zero_points: tuple[int, int], constants: tuple[int, ...]) -> None:
    workload = product("uint8", "int8", zero_points, (6, 32, 67), constants)
    ends = itertools.product((0, 255), (-128, 127))
    cases = [[np.full((6, 67), left, "uint8"), np.full((67, 32), right, "int8")] for left, right in ends]
    exact_at_origin(workload, cases, PAIRS)


@needs_unit
@pytest.mark.compiles
@pytest.mark.parametrize("types", [("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8"), ("int8", "int8")])
def test_extreme_values_do_not_saturate(types: tuple[str, str]) -> None:
    """All products have the largest magnitude that there is, so that an instruction with sums of 16 bits would clip."""
    workload = product(*types, (0, 0), (6, 32, 66))
    ends = itertools.product(*((np.iinfo(dtype).min, np.iinfo(dtype).max) for dtype in types))
    cases = [[np.full((6, 66), left, types[0]), np.full((66, 32), right, types[1])] for left, right in ends]
    exact_at_origin(workload, cases)


@needs_unit
@pytest.mark.compiles
@pytest.mark.parametrize(
    ("types", "zero_points"),
    [(("uint8", "uint8"), (17, 128)), (("int8", "int8"), (-9, 0)), (("int8", "uint8"), (5, 0))],
)
@pytest.mark.parametrize("constants", [(1,), ()], ids=["constant", "varying"])
def test_zero_points_of_both_operands_are_exact(
    types: tuple[str, str], zero_points: tuple[int, int], constants: tuple[int, ...]
) -> None:
    workload = product(*types, zero_points, (9, 33, 31), constants)
    assert dots_of(workload, TARGET) is not None
    exact(workload, workload.random_inputs(2), points(workload))


@needs_unit
@pytest.mark.compiles
@pytest.mark.parametrize("act", ["none", "relu"])
def test_requantised_sums_round_halves_to_even_and_clip(act: str) -> None:
    workload = operators.dense(64, 32, 8, bias=1, act=act, dtype="uint8", requantize=1)
    rng = np.random.default_rng(0)
    inputs = [
        rng.integers(0, 256, (64, 8), "uint8"),
        rng.integers(-128, 128, (32, 8), "int8"),
        rng.integers(-1000, 1000, 32).astype("int32"),
        np.exp2(rng.integers(-10, -3, 32)).astype("float32"),  # powers of two: products are exact, and many are halves
    ]
    (expected,) = workload.reference(inputs)
    low, high = (0, 255) if act == "relu" else (-128, 127)
    assert (expected.min(), expected.max()) == (low, high)  # some are clipped
    exact(workload, inputs, points(workload))


needs_bfloat16 = pytest.mark.skipif(
    dots_of(operators.dense(4, 32, 16, dtype="bfloat16"), TARGET) is None,
    reason="this machine has no fast unit for dot products of bfloat16",
)

WIDE_BFLOAT16 = [
    operators.dense(37, 49, 65, bias=1, act="relu", residual=1, dtype="bfloat16"),
    operators.conv2d(1, 9, 11, 20, 40, 3, 3, pad=1, bias=1, dtype="bfloat16"),
    operators.conv2d(1, 10, 10, 7, 24, 3, 3, stride=2, dtype="bfloat16"),
    operators.batch_matmul(2, 13, 35, 33, dtype="bfloat16"),
    operators.batch_matmul(2, 13, 35, 33, transpose_b=1, dtype="bfloat16"),
]


@needs_bfloat16
@pytest.mark.compiles
@pytest.mark.parametrize("workload", WIDE_BFLOAT16, ids=lambda workload: workload.name)
def test_every_pair_of_levels_is_exact_in_bfloat16(workload: Workload) -> None:
    exact(workload, workload.random_inputs(3), points(workload, together=2))  # sums of small integers are exact


@pytest.mark.compiles
@pytest.mark.parametrize("k", [1, 31, 33, 65])
@pytest.mark.parametrize("n", [1, 17])
def test_awkward_sizes_of_bfloat16_are_exact(n: int, k: int) -> None:
    workload = operators.dense(7, n, k, dtype="bfloat16")
    exact(workload, workload.random_inputs(1), points(workload))


@pytest.mark.compiles
@pytest.mark.parametrize("target", [TARGET, replace(TARGET, features=())], ids=["with the unit", "without it"])
def test_real_numbers_are_added_up_in_float32(target: Cpu) -> None:
    workload = operators.dense(9, 32, 500, dtype="bfloat16")
    inputs = varied_inputs(workload, 0)
    ((expected,), (allowed,)) = workload.reference(inputs), rounding_bounds(workload, inputs)
    space = SKETCH.space(workload, target)
    assert space is not None
    kernel = TunedKernel(workload, target, SKETCH.apply(workload, target, space.config(space.origin)))
    assert excess("y", kernel(*inputs), expected, allowed) == ""
    coarse = np.zeros((9, 32), "bfloat16")
    for step in range(500):
        coarse = (coarse + inputs[0][:, step, None] * inputs[1][:, step]).astype("bfloat16")
    assert excess("y", coarse, expected, allowed) != ""  # the bound tells sums in bfloat16 from those in float32


def test_packed_words_hold_pairs_of_bfloat16() -> None:
    workload = operators.dense(4, 16, 5, dtype="bfloat16")
    config = {"rows": 4, "columns": 16, "block": 1, "unroll": 1, "order": "columns"}
    transform = SKETCH.apply(workload, BF16, config).transforms[1]
    weights = np.random.default_rng(0).standard_normal((16, 5)).astype("bfloat16")
    (packed,) = evaluate(transform, [weights])
    assert packed.shape == (1, 3, 16) and packed.dtype == np.int32
    pairs = packed[0].view("uint16").reshape(3, 16, 2)
    bits = weights.view("uint16")
    np.testing.assert_array_equal(pairs[0], bits[:, :2])
    # The last group begins one step earlier, and what the group before it has is zero in it.
    np.testing.assert_array_equal(pairs[2], np.stack([np.zeros(16), bits[:, 4]], axis=1))


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("target", "instruction"),
    [(BF16, r"vdpbf16ps\t%zmm"), (ARM_BF16, r"bfdot\tv")],
    ids=["avx512_bf16", "bf16"],
)
@pytest.mark.parametrize("kind", ["dense", "matmul", "conv2d", "1x1"])
def test_the_innermost_loop_has_the_instruction_for_bfloat16(kind: str, target: Cpu, instruction: str) -> None:
    workload = {
        "dense": operators.dense(64, 64, 128, dtype="bfloat16"),
        "matmul": operators.matmul(64, 64, 128, dtype="bfloat16"),
        "conv2d": operators.conv2d(1, 14, 14, 64, 64, 3, 3, pad=1, dtype="bfloat16"),
        "1x1": operators.conv2d(1, 14, 14, 64, 64, 1, 1, dtype="bfloat16"),
    }[kind]
    check_instruction(workload, target, instruction)


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        *((VNNI, r"vpdpbusd\t%zmm"), (AVX_VNNI, r"vpdpbusd\t%ymm"), (AVX512, r"vpmaddwd\t.*%zmm")),
        *((AVX2, r"vpmaddwd\t.*%ymm"), (DOTPROD, r"sdot\tv"), (I8MM, r"usdot\tv")),
    ],
    ids=["avx512_vnni", "avx_vnni", "avx512bw", "avx2", "dotprod", "i8mm"],
)
@pytest.mark.parametrize("kind", ["dense", "matmul", "batch_matmul", "conv2d", "1x1"])
def test_the_innermost_loop_has_the_instruction(kind: str, target: Cpu, instruction: str) -> None:
    """In cross-compiled assembly, so that it is checked for machines that are not here."""
    workload = {
        "dense": operators.dense(64, 64, 128, dtype="uint8"),
        "matmul": operators.matmul(64, 64, 128, dtype="uint8"),
        "batch_matmul": operators.batch_matmul(2, 64, 64, 128, dtype="uint8", transpose_b=1),
        "conv2d": operators.conv2d(1, 14, 14, 64, 64, 3, 3, pad=1, dtype="uint8"),
        "1x1": operators.conv2d(1, 14, 14, 64, 64, 1, 1, dtype="uint8"),
    }[kind]
    check_instruction(workload, target, instruction)


def check_instruction(workload: Workload, target: Cpu, instruction: str) -> None:
    """Checks that each accumulator of the default schedule has its instruction."""
    (sketch, space), *_ = sketches_for(workload, target)
    assert sketch.name == SKETCH.name
    config: Mapping[str, Any] = space.config(space.origin)
    text = assembly(sketch.apply(workload, target, config).main, target.tvm())
    rows = config["rows"] * config.get("rows_outer", 1)
    vectors = -(-config["columns"] // target.lanes)
    assert len(re.findall(instruction, text)) >= rows * vectors
    assert "stormdrop_word" not in text


def test_without_the_unit_the_schedule_is_the_plain_one() -> None:
    workload = operators.dense(16, 32, 64, dtype="uint8")
    plain = known("cpu/x86-64-v4")
    space = SKETCH.space(workload, plain)
    assert space is not None
    variant = SKETCH.apply(workload, plain, space.config(space.origin))
    assert "vpdpbusd" not in variant.main.script()
    assert "vpdpbusd" in SKETCH.apply(workload, VNNI, space.config(space.origin)).main.script()


@pytest.mark.compiles
def test_bytes_without_a_unit_are_exact() -> None:
    workload = operators.conv2d(1, 7, 7, 6, 24, 3, 3, pad=1, dtype="int8", zero_point=3, bias=1)
    plain = replace(TARGET, features=())
    exact_at_origin(workload, [workload.random_inputs(0)], plain)


@pytest.mark.parametrize("pad", [0, 1])
def test_data_are_widened_less_their_zero_point_where_they_are_padded(pad: int) -> None:
    workload = operators.conv2d(1, 5, 4, 6, 16, 3, 3, pad=pad, dtype="int8", zero_point=-7)
    wide, _ = multiplied(workload.contraction, AVX2)
    assert wide.prologue is not None and (wide.prologue.name == "widen") == (not pad)
    assert [stage.name for stage in wide.before] == [wide.prologue.name]
    data = workload.random_inputs(0)[0]
    made = StageGraph((wide.graph.inputs[0], wide.prologue.buffer), (wide.prologue,))
    (values,) = evaluate(made.function(), [data])
    assert values.dtype == np.int16
    margins = ((0, 0), (pad, pad), (pad, pad), (0, 0))
    np.testing.assert_array_equal(values, np.pad(data.astype("int16") + 7, margins))


def test_with_an_instruction_for_bytes_they_are_not_widened() -> None:
    workload = operators.conv2d(1, 5, 4, 6, 16, 3, 3, dtype="int8")
    for target in (replace(VNNI, features=("avx512bw", "avx512vnni")), known("cpu/x86-64-v3"), BF16):
        contraction, _ = multiplied(workload.contraction, target)
        assert contraction is workload.contraction


def test_packed_words_hold_pairs_of_int16() -> None:
    workload = product("uint8", "int8", (0, 5), (4, 16, 5))
    config = {"rows": 4, "columns": 16, "block": 1, "unroll": 1, "order": "columns"}
    transform = SKETCH.apply(workload, AVX2, config).transforms[1]
    weights = np.random.default_rng(0).integers(-128, 128, (5, 16), "int8")
    (packed,) = evaluate(transform, [weights])
    assert packed.shape == (1, 3, 16) and packed.dtype == np.int32
    pairs = packed[0].view("int16").reshape(3, 16, 2)
    less = weights.astype("int16") - 5
    np.testing.assert_array_equal(pairs[0], less[:2].T)
    # The last group begins one step earlier, and what the group before it has is zero in it.
    np.testing.assert_array_equal(pairs[2], np.stack([np.zeros(16), less[4]], axis=1))


def test_packed_words_hold_the_correction_and_the_bytes() -> None:
    workload = operators.dense(4, 16, 6, dtype="uint8", zero_point=3)
    config = {"rows": 4, "columns": 16, "block": 1, "unroll": 1, "order": "columns"}
    transform = SKETCH.apply(workload, VNNI, config).transforms[1]
    weights = np.random.default_rng(0).integers(-128, 128, (16, 6), "int8")
    (packed,) = evaluate(transform, [weights])
    assert packed.shape == (1, 1 + 2, 16) and packed.dtype == np.int32
    np.testing.assert_array_equal(packed[0, 0], -3 * weights.astype("int32").sum(axis=1))
    words = packed[0, 1:].view("int8").reshape(2, 16, 4)
    np.testing.assert_array_equal(words[0], weights[:, :4])
    # The last group begins two steps earlier, and what the first group has is zero in it.
    np.testing.assert_array_equal(words[1], np.pad(weights[:, 4:], ((0, 0), (2, 0))))


def test_the_prior_expects_dot_products_to_be_faster_than_products() -> None:
    workload = operators.dense(256, 256, 256, dtype="uint8")
    origins = {}
    for target in (VNNI, known("cpu/x86-64-v4")):
        space = SKETCH.space(workload, target)
        assert space is not None
        origins[target.features] = SKETCH.estimate(workload, target, space.columns([space.origin]))[0]
    assert origins[("avx512vnni",)] * 4 < origins[()]
