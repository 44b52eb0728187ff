"""Winograd's convolutions: formulas, errors, awkward shapes, and what they do not apply to."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from stand_ins.cpus import cpu
from stormdrop import operators
from stormdrop.codegen.compile import build_module
from stormdrop.codegen.needed_features import needed_features
from stormdrop.errors import TargetError
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.cpu.contractions.dot_products import unit_for_int16
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.sketches.cpu.winograd.arithmetic import Arithmetic, _growth
from stormdrop.sketches.cpu.winograd.sketch import Winograd, WinogradOfBytes
from stormdrop.sketches.fingerprint import space_of
from stormdrop.sketches.winograd.convolution import find_convolution
from stormdrop.sketches.winograd.transforms import POINTS, Filter, matrices
from stormdrop.testing.sketches import check_points, check_sketch, covering_points, run, run_all, some_points

TARGET = Cpu.detect()
SKETCHES = [Winograd(2), Winograd(4)]


def _conv(n: int, h: int, w: int, ci: int, co: int, **more: Any) -> Workload:
    return operators.conv2d(**{"n": n, "h": h, "w": w, "ci": ci, "co": co, "kh": 3, "kw": 3, "pad": 1, **more})


CONVOLUTIONS = [
    _conv(1, 14, 14, 32, 64, bias=1, act="relu"),
    _conv(1, 7, 7, 16, 24, pad=0, bias=1, residual=1, act="relu"),
    _conv(2, 13, 17, 24, 40, act="silu", bias=1),
    _conv(2, 13, 17, 3, 5, pad=0),
    _conv(1, 9, 14, 16, 24, layout="NCHW", bias=1, residual=1, act="gelu"),
    _conv(2, 8, 7, 8, 20, layout="NCHW", pad=0),
    _conv(1, 6, 6, 16, 16).placed(16, 48),
    _conv(1, 13, 11, 16, 24, kh=5, kw=5, pad=2, bias=1, act="relu"),
    _conv(2, 9, 14, 7, 20, kh=1, kw=3, pad=0),
    _conv(1, 14, 9, 16, 24, kh=5, kw=1, pad=0, bias=1),
    _conv(1, 8, 7, 8, 16, kh=3, kw=5, pad=1, layout="NCHW"),
    operators.conv1d(2, 19, 16, 24, 3, pad=1, bias=1, act="relu"),
    _conv(1, 14, 13, 32, 40, bias=1, residual=1, act="relu", dtype="bfloat16"),
]
FILTERS = [Filter(m, r) for m in (1, 2, 4) for r in (1, 3, 5, 7) if m + r - 1 in POINTS]


@pytest.mark.parametrize("down", FILTERS, ids=str)
@pytest.mark.parametrize("across", FILTERS, ids=str)
def test_the_formula_is_a_convolution(down: Filter, across: Filter) -> None:
    """Y = A^T [(G g G^T) * (B^T d B)] A, equation 8 of arXiv:1509.09308, in float64."""
    rng = np.random.default_rng(down.m)
    tile, weight = rng.standard_normal((down.alpha, across.alpha)), rng.standard_normal((down.r, across.r))
    left, right = matrices(down), matrices(across)
    products = (left.weight @ weight @ right.weight.T) * (left.input @ tile @ right.input.T)
    wanted = [[np.sum(tile[y : y + down.r, x : x + across.r] * weight) for x in range(across.m)] for y in range(down.m)]
    np.testing.assert_allclose(left.output @ products @ right.output.T, wanted, rtol=0, atol=1e-12)


@pytest.mark.compiles
@pytest.mark.parametrize("sketch", SKETCHES, ids=lambda sketch: sketch.name)
@pytest.mark.parametrize("workload", CONVOLUTIONS, ids=lambda workload: workload.name)
def test_computes_the_convolution(sketch: Winograd, workload: Workload) -> None:
    space = sketch.space(workload, TARGET)
    assert space is not None
    check_points(sketch, workload, TARGET, space, [space.origin, space.sample(np.random.default_rng(1))])


@pytest.mark.parametrize("sketch", SKETCHES, ids=lambda sketch: sketch.name)
def test_every_point_schedules(sketch: Winograd) -> None:
    workload = _conv(1, 13, 17, 24, 40, bias=1)
    space = sketch.space(workload, TARGET)
    assert space is not None
    for point in covering_points(space):
        sketch.apply(workload, TARGET, space.config(point))


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("m", "bound", "window"),
    [(2, 1.5, (3, 3)), (4, 5.0, (3, 3)), (2, 5.0, (5, 5)), (4, 5.0, (5, 5)), (2, 5.0, (1, 7)), (4, 5.0, (7, 1))],
)
def test_the_error_is_small(m: int, bound: float, window: tuple[int, int]) -> None:
    """With normal random numbers, beside float64: at most some times the error of the direct sum."""
    workload = _conv(1, 14, 14, 256, 32, kh=window[0], kw=window[1], pad=0)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(spec.shape).astype(np.float32) for spec in workload.inputs]
    (wanted,) = workload.reference([array.astype(np.float64) for array in inputs])
    errors = []
    for sketch in (RegisterBlocked(), Winograd(m)):
        space = sketch.space(workload, TARGET)
        assert space is not None
        (actual,) = run(sketch.apply(workload, TARGET, space.config(space.origin)), workload, TARGET, inputs)
        errors.append(np.max(np.abs(actual - wanted)) / np.max(np.abs(wanted)))
    assert 0 < errors[1] < min(bound * errors[0], 1e-5)


@pytest.mark.compiles
def test_all_schedules_of_a_tile_size_agree_in_every_bit() -> None:
    """Tiles that overlap round differently: each output must be stored by one of them only, on any thread."""
    workload = _conv(1, 13, 11, 16, 32)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(spec.shape).astype(np.float32) for spec in workload.inputs]
    for sketch in SKETCHES:
        space = sketch.space(workload, TARGET)
        assert space is not None
        config = space.config(space.origin)
        variants = [
            sketch.apply(workload, TARGET, {**config, "order": order}) for order in ("fused", "tiles", "columns")
        ]
        results = run_all(variants, workload, TARGET, inputs)
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.compiles
@pytest.mark.parametrize(
    "target",
    [dataclasses.replace(TARGET, lanes=8, registers=16), dataclasses.replace(TARGET, lanes=4, registers=32)],
    ids=["AVX2", "NEON"],
)
def test_other_vector_units(target: Cpu) -> None:
    if TARGET.lanes < target.lanes:
        pytest.skip(f"this machine's vectors hold {TARGET.lanes} values")
    check_sketch(Winograd(4), _conv(1, 9, 10, 12, 24, bias=1), target, samples=1)


@pytest.mark.parametrize(
    "workload",
    [
        _conv(1, 14, 14, 16, 32, stride=2),
        _conv(1, 14, 14, 16, 32, dilation=2),
        _conv(1, 14, 14, 16, 32, groups=2),
        _conv(1, 14, 14, 16, 32, kh=9, kw=9),
        _conv(1, 14, 14, 16, 32, kh=1, kw=1, pad=0),
        _conv(1, 14, 14, 16, 32, kh=2, kw=2, pad=0),
        _conv(1, 3, 3, 16, 32, pad=0),
        operators.depthwise_conv2d(1, 14, 14, 16, 3, 3, pad=1),
        operators.conv1d(1, 14, 16, 32, 3, pad=1, stride=2),
        operators.matmul(16, 16, 16),
        operators.pool2d(1, 14, 14, 16, 3, 3, kind="avg"),
        dataclasses.replace(_conv(1, 14, 14, 16, 32), constants=()),
    ],
    ids=lambda workload: workload.name,
)
def test_does_not_apply(workload: Workload) -> None:
    for sketch in SKETCHES:
        assert sketch.space(workload, TARGET) is None


def test_an_image_must_hold_a_tile() -> None:
    workload = _conv(1, 3, 14, 16, 32)
    assert Winograd(2).space(workload, TARGET) is not None
    assert Winograd(4).space(workload, TARGET) is None


def test_the_origin_fills_the_registers_and_keeps_to_the_second_cache() -> None:
    for sketch in SKETCHES:
        for size, channels in ((56, 64), (28, 128), (14, 256)):
            workload = _conv(1, size, size, channels, channels, bias=1)
            space = sketch.space(workload, TARGET)
            assert space is not None
            config: Mapping[str, Any] = space.config(space.origin)
            tiles = find_convolution(workload).tiles(sketch.m)
            block = min(config["rows"] * config["block"], tiles)
            assert config["rows"] * config["columns"] >= 8 * TARGET.lanes
            assert 4 * (sketch.m + 2) ** 2 * block * (channels + config["columns"]) <= max(TARGET.l2, 1 << 20)


def test_the_larger_tile_is_expected_to_be_faster() -> None:
    workload = _conv(1, 56, 56, 64, 64, bias=1, act="relu")
    expected = []
    sketches: list[RegisterBlocked | Winograd] = [RegisterBlocked(), *SKETCHES]
    for sketch in sketches:
        space = sketch.space(workload, TARGET)
        assert space is not None
        expected.append(sketch.estimate(workload, TARGET, space.columns([space.origin]))[0])
    assert expected[0] > expected[1] > expected[2]


def test_another_bound_is_another_space() -> None:
    workload = _conv(1, 14, 14, 16, 32)
    spaces = [space_of(sketch, workload, TARGET) for sketch in (Winograd(4), Winograd(4, 1e-5), Winograd(4))]
    fingerprints = [None if space is None else space.fingerprint for space in spaces]
    assert fingerprints[0] == fingerprints[2] != fingerprints[1]


TARGET_OF_INT16 = dataclasses.replace(
    TARGET, features=tuple(name for name in TARGET.features if name not in ("avx512vnni", "avxvnni"))
)
"""This machine without its instructions for dot products of bytes."""
NEEDS_INT16 = pytest.mark.skipif(
    unit_for_int16(TARGET_OF_INT16) is None, reason="this machine has no instruction for dot products of int16"
)
AVX2 = dataclasses.replace(cpu("cpu/x86-64-v3"), features=("avx2",))
OF_BYTES = WinogradOfBytes()


def _of_weights(dtype: str, zero_point: int) -> Workload:
    """A convolution whose weights have a zero point: int32(x) - 3 times int32(w) - zero point."""
    x, w = te.placeholder((1, 8, 9, 6), "int8", "x"), te.placeholder((20, 3, 3, 6), dtype, "w")
    r, s, c = te.reduce_axis((0, 3)), te.reduce_axis((0, 3)), te.reduce_axis((0, 6))

    def product(n: Any, i: Any, j: Any, o: Any) -> Any:
        data = x[n, i + r, j + s, c].astype("int32") - 3
        return te.sum(data * (w[o, r, s, c].astype("int32") - zero_point), axis=[r, s, c])

    y = te.compute((1, 6, 7, 20), product)
    return Workload.create("weights", te.create_prim_func([x, w, y]), [1])


CONVOLUTIONS_OF_BYTES = [
    _conv(1, 14, 14, 32, 64, bias=1, act="relu", dtype="uint8", zero_point=9, requantize=1),
    _conv(2, 13, 17, 6, 24, pad=0, dtype="int8", zero_point=-128, bias=1),
    _conv(1, 9, 14, 16, 24, kh=1, pad=0, dtype="uint8", zero_point=255),
    _conv(1, 9, 14, 16, 24, kw=1, pad=0, dtype="uint8"),
    _conv(1, 8, 9, 12, 20, layout="NCHW", dtype="uint8", zero_point=7),
    _conv(1, 7, 7, 258, 17, dtype="int8"),
    _of_weights("uint8", 0),
    _of_weights("int8", -128),
]


@NEEDS_INT16
@pytest.mark.compiles
@pytest.mark.parametrize("workload", CONVOLUTIONS_OF_BYTES, ids=lambda workload: workload.name)
def test_bytes_are_computed_exactly(workload: Workload) -> None:
    assert OF_BYTES.max_error == 0.0, "so that the outputs are compared without a tolerance"
    space = OF_BYTES.space(workload, TARGET_OF_INT16)
    assert space is not None
    check_points(OF_BYTES, workload, TARGET_OF_INT16, space, some_points(space, 4))


@NEEDS_INT16
@pytest.mark.compiles
def test_every_order_of_bytes() -> None:
    workload = _conv(1, 10, 11, 256, 128, dtype="uint8", zero_point=5)
    space = OF_BYTES.space(workload, TARGET_OF_INT16)
    assert space is not None
    origin, inputs = space.config(space.origin), workload.random_inputs(0)
    (expected,) = workload.reference(inputs)
    orders = list(itertools.product(("fused", "tiles", "columns"), (0, 1)))
    configs = [{**origin, "order": order, "prefetch": prefetch} for order, prefetch in orders]
    variants = [OF_BYTES.apply(workload, TARGET_OF_INT16, config) for config in configs]
    for order, (actual,) in zip(orders, run_all(variants, workload, TARGET_OF_INT16, inputs), strict=True):
        np.testing.assert_array_equal(actual, expected, err_msg=str(order))


def _extreme_inputs(workload: Workload, high: bool) -> list[Any]:
    x, weight = (np.empty(spec.shape, spec.dtype) for spec in workload.inputs)
    x[:], weight[:] = 255, 127 if high else -128
    return [x, weight]


@NEEDS_INT16
@pytest.mark.compiles
@pytest.mark.parametrize("high", [True, False])
def test_the_largest_sums_of_bytes_do_not_overflow(high: bool) -> None:
    """All products of an output have the same sign, with the most channels that are allowed."""
    workload = _conv(1, 4, 6, 1826, 8, dtype="uint8")
    space = OF_BYTES.space(workload, TARGET_OF_INT16)
    assert space is not None
    inputs = _extreme_inputs(workload, high)
    variant = OF_BYTES.apply(workload, TARGET_OF_INT16, space.config(space.origin))
    (actual,) = run(variant, workload, TARGET_OF_INT16, inputs)
    np.testing.assert_array_equal(actual, workload.reference(inputs)[0])


def test_the_bound_of_the_sums_is_reached_by_some_signs() -> None:
    """All signs of four inputs and three weights are tried."""
    tile = Filter(2, 3)
    parts, weights = matrices(tile), 2 * matrices(tile).weight
    signs = [np.array(list(itertools.product((-1, 1), repeat=size))) for size in (4, 3)]
    products = np.einsum("ai,bi->abi", signs[0] @ parts.input.T, signs[1] @ weights.T)
    pairs = products[..., 1] + products[..., 2], products[..., 1] - products[..., 2]
    outputs = products @ parts.output.T
    assert max(np.abs(each).max() for each in (products, *pairs, outputs)) == 6 == _growth(Arithmetic(halvings=2), tile)


@pytest.mark.parametrize(
    "workload",
    [
        _conv(1, 14, 14, 32, 64, kh=5, kw=5, dtype="uint8"),
        _conv(1, 14, 14, 31, 64, dtype="uint8"),
        _conv(1, 14, 14, 32, 3, dtype="uint8"),
        _conv(1, 14, 14, 1828, 8, dtype="uint8"),
        _conv(1, 14, 14, 32, 64, stride=2, dtype="uint8"),
        _conv(1, 14, 14, 32, 64),
    ],
    ids=["larger window", "odd channels", "short vectors", "sums that overflow", "strided", "float32"],
)
def test_other_convolutions_are_left_to_others(workload: Workload) -> None:
    assert OF_BYTES.space(_conv(1, 14, 14, 32, 64, dtype="uint8"), AVX2) is not None
    assert OF_BYTES.space(workload, AVX2) is None


def test_bytes_are_left_to_their_own_instructions_and_to_their_own_sketch() -> None:
    workload = _conv(1, 14, 14, 32, 64, dtype="uint8")
    with_vnni = dataclasses.replace(AVX2, features=(*AVX2.features, "avxvnni"))
    assert OF_BYTES.space(workload, with_vnni) is None
    assert all(sketch.space(workload, AVX2) is None for sketch in SKETCHES)


@pytest.mark.compiles
@pytest.mark.parametrize("lanes", [8, 16])
def test_bytes_are_compiled_for_machines_with_and_without_long_vectors(lanes: int) -> None:
    """The instruction is there, and a machine that lacks it is refused by name."""
    long_vectors = dataclasses.replace(cpu("cpu/x86-64-v4"), features=("avx512bw",))
    target = AVX2 if lanes == 8 else long_vectors
    assert target.lanes == lanes
    workload = _conv(1, 14, 14, 32, 64, dtype="uint8", bias=1)
    space = OF_BYTES.space(workload, target)
    assert space is not None
    main = OF_BYTES.apply(workload, target, space.config(space.origin)).main
    assert needed_features(main) == {"avx2" if lanes == 8 else "avx512bw"}
    assert "vpmaddwd" in build_module(main, target.tvm()).inspect_source("asm")
    with pytest.raises(TargetError, match="the kernel needs avx"):
        build_module(
            main, tvm.target.Target({"kind": "llvm", "mcpu": "nehalem", "mtriple": "x86_64-unknown-linux-gnu"})
        )
