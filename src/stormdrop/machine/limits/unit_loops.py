"""The loops that measure arithmetic units: LLVM functions that hold all operands in registers.

    void stormdrop_unit(x, out, steps)
        a, b = x                                 the operands
        r[0..n] = out                            accumulators, as many as hide the latency
        for steps: r[i] = unit(r[i], a, b)
        out = r

They are written in LLVM's language because TVM has no types for bfloat16 and tiles. A TensorIR function calls them on
each core. `units` says what is done with the rates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cpu import Cpu
from ..tiles import ask_for_tiles
from ..units import Unit
from .measuring import best_window, main_function
from .peak_loops import accumulators

_NAME = "stormdrop_unit"
_SECONDS = 1e-3  # of one run of a loop
_RUNS, _PATIENCE = 40, 0.2

_VEX_REGISTERS = 16  # that instructions of AVX-VNNI reach, also on a CPU with 32
_CONFIG = 64  # bytes of a tile configuration
_TILE = 1024  # bytes of a tile

_PAIRS = "stormdrop_pairs"  # see `_pairs`

# By unit: LLVM's types of an accumulator and of the operands, LLVM's name of the instruction (or `_PAIRS`), and NumPy's
# type (or bfloat16) of an element of the operands.
_VECTORS = {
    "avx512_vnni": ("<16 x i32>", "<64 x i8>", "llvm.x86.avx512.vpdpbusd.512", "int8"),
    "avx_vnni": ("<8 x i32>", "<32 x i8>", "llvm.x86.avx512.vpdpbusd.256", "int8"),
    "avx512bw": ("<16 x i32>", "<32 x i16>", _PAIRS, "int16"),
    "avx2": ("<8 x i32>", "<16 x i16>", _PAIRS, "int16"),
    "avx512_bf16": ("<16 x float>", "<32 x bfloat>", "llvm.x86.avx512bf16.dpbf16ps.512", "bfloat16"),
    "avx512_fp16": ("<32 x half>", "<32 x half>", "llvm.fma.v32f16", "float16"),
    "asimddp": ("<4 x i32>", "<16 x i8>", "llvm.aarch64.neon.sdot.v4i32.v16i8", "int8"),
    "i8mm": ("<4 x i32>", "<16 x i8>", "llvm.aarch64.neon.usmmla.v4i32.v16i8", "int8"),
    "bf16": ("<4 x float>", "<8 x bfloat>", "llvm.aarch64.neon.bfmmla", "bfloat16"),
}
_TILES = {"amx_int8": "tdpbusd", "amx_bf16": "tdpbf16ps", "amx_fp16": "tdpfp16ps"}
_PRODUCTS = ((0, 4, 6), (1, 4, 7), (2, 5, 6), (3, 5, 7))  # tiles: of the accumulators, and of the operands


@dataclass(frozen=True)
class Loop:
    """A loop that keeps a unit busy.

    Attributes:
        code: An LLVM module with the function `stormdrop_unit`.
        instructions: The instructions of one step.
        operations: Multiplications and additions of one instruction.
        operands: What `x` holds.
        tiles: Whether the loop needs the operating system's permission for tiles.
    """

    code: str
    instructions: int
    operations: int
    operands: NDArray[np.uint8]
    tiles: bool = False

    @classmethod
    def of_float32(cls, target: Cpu) -> Loop:
        """The loop of float32 multiply-adds, with which units are compared.

        Args:
            target: The machine.
        """
        vector = f"<{target.lanes} x float>"
        return _vector_loop(
            vector, vector, f"llvm.fma.v{target.lanes}f32", "float32", accumulators(target.registers), 2 * target.lanes
        )

    @classmethod
    def of(cls, unit: Unit, target: Cpu) -> Loop:
        """The loop of a unit.

        Args:
            unit: The unit.
            target: The machine, which has the unit.
        """
        if unit.name in _TILES:
            return _tile_loop(_TILES[unit.name], unit.operations)
        total, operand, instruction, dtype = _VECTORS[unit.name]
        registers = min(target.registers, _VEX_REGISTERS) if unit.name == "avx_vnni" else target.registers
        return _vector_loop(total, operand, instruction, dtype, accumulators(registers), unit.operations)


def _vector_loop(total: str, operand: str, instruction: str, dtype: str, count: int, operations: int) -> Loop:
    """A loop with `count` accumulators of type `total`."""
    numbers = range(count)
    slots = [f"%slot{i} = getelementptr i8, ptr %out, i64 {64 * i}" for i in numbers]
    starts = [f"%start{i} = load {total}, ptr %slot{i}, align 1" for i in numbers]
    sums = [f"%r{i} = phi {total} [ %start{i}, %entry ], [ %next{i}, %loop ]" for i in numbers]
    steps = [f"%next{i} = call {total} @{instruction}({total} %r{i}, {operand} %a, {operand} %b)" for i in numbers]
    stores = [f"store {total} %next{i}, ptr %slot{i}, align 1" for i in numbers]
    before = [f"%a = load {operand}, ptr %x, align 1", "%second = getelementptr i8, ptr %x, i64 64"]
    before += [f"%b = load {operand}, ptr %second, align 1", *slots, *starts]
    declaration = (
        _pairs(total, operand)
        if instruction == _PAIRS
        else f"declare {total} @{instruction}({total}, {operand}, {operand})"
    )
    return Loop(_module(declaration, before, sums, steps, stores), count, operations, _operands(dtype))


def _pairs(total: str, operand: str) -> str:
    """A function that adds products of pairs of int16 to a sum, as kernels do by two instructions.

    One factor is the sum itself, because LLVM would otherwise compute the products before the loop. Sums begin at zero
    and stay there.
    """
    instruction = {"<8 x i32>": "llvm.x86.avx2.pmadd.wd", "<16 x i32>": "llvm.x86.avx512.pmaddw.d.512"}[total]
    return f"""declare {total} @{instruction}({operand}, {operand})
        define internal {total} @{_PAIRS}({total} %sum, {operand} %a, {operand} %b) alwaysinline {{
            %left = bitcast {total} %sum to {operand}
            %products = call {total} @{instruction}({operand} %left, {operand} %b)
            %result = add {total} %sum, %products
            ret {total} %result
        }}"""


def _tile_loop(instruction: str, operations: int) -> Loop:
    """A loop with four accumulators of 16 x 16, and two tiles for each operand."""
    before = ["call void @llvm.x86.ldtilecfg(ptr %x)", f"%data = getelementptr i8, ptr %x, i64 {_CONFIG}"]
    before += [f"call void @llvm.x86.tileloadd64(i8 {tile}, ptr %data, i64 64)" for tile in range(8)]
    steps = [f"call void @llvm.x86.{instruction}(i8 {c}, i8 {a}, i8 {b})" for c, a, b in _PRODUCTS]
    after = ["call void @llvm.x86.tilestored64(i8 0, ptr %out, i64 64)", "call void @llvm.x86.tilerelease()"]
    declarations = [
        "declare void @llvm.x86.ldtilecfg(ptr)",
        "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
        "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
        "declare void @llvm.x86.tilerelease()",
        f"declare void @llvm.x86.{instruction}(i8 immarg, i8 immarg, i8 immarg)",
    ]
    # Palette 1; eight tiles of 64 bytes by 16 rows.
    config = np.array([1] + [0] * 15 + [64, 0] * 8 + [0] * 16 + [16] * 8 + [0] * 8, "uint8")
    # Zeros would be multiplied faster. As bfloat16 these are numbers from 0.5 to 1.
    numbers = np.random.default_rng(0).integers(0, 256, _TILE, "uint8")
    numbers[1::2] = 0x3F
    operands = np.concatenate([config, numbers])
    code = _module("\n".join(declarations), before, [], steps, after)
    return Loop(code, len(steps), operations, operands, tiles=True)


def _module(
    declarations: str, before: Sequence[str], sums: Sequence[str], steps: Sequence[str], after: Sequence[str]
) -> str:
    """An LLVM module with a loop; see the top of this file."""
    lines = [
        declarations,
        f"define void @{_NAME}(ptr %x, ptr %out, i64 %steps) noinline {{",
        "entry:",
        *before,
        "br label %loop",
        "loop:",
        "%step = phi i64 [ 0, %entry ], [ %following, %loop ]",
        *sums,
        *steps,
        "%following = add i64 %step, 1",
        "%more = icmp ult i64 %following, %steps",
        "br i1 %more, label %loop, label %exit",
        "exit:",
        *after,
        "ret void",
        "}",
    ]
    return "\n".join(lines)


def _operands(dtype: str) -> NDArray[np.uint8]:
    """Two vectors of 64 bytes. Sums of their products neither overflow nor become denormal."""
    if dtype == "int8":
        return np.concatenate([np.full(64, 100, "uint8"), np.full(64, -3, "int8").view("uint8")])
    if dtype == "int16":
        return np.concatenate([np.full(32, 100, dtype), np.full(32, -3, dtype)]).view("uint8")
    if dtype == "bfloat16":  # the upper half of a float32
        half, one = (np.full(32, value, "float32").view("uint32") >> 16 for value in (0.5, 1.0))
        return np.concatenate([half.astype("uint16"), one.astype("uint16")]).view("uint8")
    count = 64 // np.dtype(dtype).itemsize
    return np.concatenate([np.full(count, 0.5, dtype), np.full(count, 1.0, dtype)]).view("uint8")


def loop_function(loop: Loop, cores: int) -> Any:
    """A TensorIR function that runs a loop on each core.

    Its parameters are `x` (the loop's operands, uint8), `out` of shape (cores, 2048) in uint8, and `steps` of shape
    (1,) in int64.

    Args:
        loop: The loop.
        cores: Parallel tasks, one per core.
    """
    import tvm
    from tvm import tirx
    from tvm.script.ir_builder import tirx as T

    with main_function() as builder:
        x = T.arg("x", T.buffer((len(loop.operands),), "uint8"))
        out = T.arg("out", T.buffer((cores, 2 * _TILE), "uint8"))
        steps = T.arg("steps", T.buffer((1,), "int64"))
        code = tvm.ir.StringImm(loop.code)
        with T.attr(tirx.const(0, "int32"), "pragma_import_llvm", code), T.parallel(cores) as core:
            arguments = (tirx.address_of(x[0]), tirx.address_of(out[core, 0]), steps[0])
            T.evaluate(tirx.call_extern("void", _NAME, *arguments))
    return builder.get()


def compiled_loop(loop: Loop, target: Cpu) -> Callable[[int], float]:
    """A loop as a callable that takes a number of steps, runs them on each core, and returns the seconds.

    Args:
        loop: The loop.
        target: This machine.

    Raises:
        OSError: The operating system does not permit tiles.
    """
    import tvm

    if loop.tiles:
        ask_for_tiles()
    kernel = tvm.compile(tvm.IRModule({"main": loop_function(loop, target.cores)}), target.tvm()).jit()["main"]
    x = tvm.runtime.tensor(loop.operands)
    out = tvm.runtime.tensor(np.zeros((target.cores, 2 * _TILE), "uint8"))

    def run(steps: int) -> float:
        count = tvm.runtime.tensor(np.array([steps], "int64"))
        start = time.perf_counter()
        kernel(x, out, count)
        return time.perf_counter() - start

    return run


def rate_of(loop: Loop, run: Callable[[int], float], cores: int) -> tuple[float, bool]:
    """Multiplications and additions per second of a loop on all cores, and whether it ran undisturbed.

    Args:
        loop: The loop.
        run: The loop, compiled.
        cores: The cores that it runs on.
    """
    run(1)  # starts the threads
    steps = 1000
    while (seconds := run(steps)) < _SECONDS / 10:
        steps *= 4
    steps = max(1, int(steps * _SECONDS / seconds))
    seconds, undisturbed = best_window(lambda: run(steps), cores, _RUNS, _PATIENCE)
    return float(cores * steps * loop.instructions * loop.operations) / seconds, undisturbed


def serve_rates(connection: Connection, target: Cpu, units: Sequence[Unit]) -> None:
    """Measures units in a child process, whose parent holds the machine-wide lock.

    Sends True once it has measured float32, and then for each unit the rate of float32, the rate of the unit, and
    whether both were undisturbed. Each is the better one of two that were measured in turns.
    """
    yardstick = Loop.of_float32(target)
    multiply_adds = compiled_loop(yardstick, target)
    rate_of(yardstick, multiply_adds, target.cores)
    connection.send(True)
    for unit in units:
        loop = Loop.of(unit, target)
        run = compiled_loop(loop, target)
        turns = [(rate_of(yardstick, multiply_adds, target.cores), rate_of(loop, run, target.cores)) for _ in range(2)]
        float32, rate = (max(rates) for rates in zip(*turns, strict=True))
        connection.send((float32[0], rate[0], float32[1] and rate[1]))
