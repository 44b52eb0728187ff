"""The instructions of AMX as plain loops, so that schedules with tiles can be executed on any machine.

`emulated` replaces each instruction by what Intel's manual says that it does, over an array that stands for the eight
tile registers. Products of bfloat16 are added up in float32, in the order of the manual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.ir import Call
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.tirx import BufferStore, Evaluate, For, ForKind, PrimFunc
from tvm_ffi import structural_walk

from stormdrop.ir.attributes import NEEDS, WORD
from stormdrop.ir.expressions import Expr, transform_statement, unraveled
from stormdrop.ir.stages import intermediate, shape_of, variable
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.contract import Variant
from stormdrop.sketches.cpu.nests import element_offset
from stormdrop.sketches.cpu.tiles.instructions import CONFIGURATION_WORDS, REGISTERS, TILE, WORD_BYTES
from stormdrop.testing.sketches import run_all

_NAMES = (
    *("ldtilecfg", "tilerelease", "tilezero", "tileloadd64", "tilestored64"),
    *("tdpbf16ps", "tdpbusd", "tdpbssd", "tdpbuud", "tdpbsud"),
)


def emulated(function: PrimFunc) -> PrimFunc:
    """A function with loops in the place of its tile instructions.

    Args:
        function: a scheduled function of the sketch `tiles`.
    """
    machine = _Tiles(_configuration(function))
    body = transform_statement(function.body, machine.replaced)
    root = body.block
    allocated = [*root.alloc_buffers, machine.tiles]
    block = type(root)(
        root.iter_vars, root.reads, root.writes, root.name_hint, root.body, root.init, allocated, root.match_buffers
    )
    realized = type(body)(body.iter_values, body.predicate, block)
    return function.with_body(realized).without_attr(NEEDS)


def run_emulated(variant: Variant, workload: Workload, target: Cpu, inputs: list[Any]) -> list[NDArray[Any]]:
    """Runs a variant as `run_all_emulated` does with several."""
    return run_all_emulated([variant], workload, target, inputs)[0]


def run_all_emulated(
    variants: Sequence[Variant], workload: Workload, target: Cpu, inputs: list[Any]
) -> list[list[NDArray[Any]]]:
    """Runs variants with loops in the place of their tile instructions, as `run_all` does.

    LLVM does not optimize them, because nobody else executes these loops.
    """
    loops = [Variant(emulated(variant.main), variant.transforms) for variant in variants]
    return run_all(loops, workload, target, inputs, optimized=False)


def _configuration(function: PrimFunc) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The 64 bytes that a function configures its tiles with."""
    stores: list[Any] = []
    structural_walk(function.body, (BufferStore, stores.append))
    words = {int(node.indices[0]): int(node.value) for node in stores if str(node.buffer.name) == "tile_configuration"}
    return np.array([words[number] for number in range(CONFIGURATION_WORDS)], np.int32).view(np.uint8)


def _name_of(call: Any) -> str:
    numbers = {int(tirx.call_llvm_intrin("void", f"llvm.x86.{name}").args[0]): name for name in _NAMES}
    return numbers.get(int(call.args[0]), "")


class _Tiles:
    """The tile registers of a thread.

    Attributes:
        tiles: Their words.
    """

    def __init__(self, configuration: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.tiles = intermediate("emulated_tiles", [REGISTERS, TILE, TILE], "int32", "local")
        self._rows = configuration[48 : 48 + REGISTERS].tolist()
        self._words = (configuration[16:48].view(np.uint16)[:REGISTERS] // WORD_BYTES).tolist()

    def replaced(self, node: Any) -> Any:
        """The loops in the place of a statement, if that is an instruction on tiles."""
        if not isinstance(node, Evaluate) or not isinstance(node.value, Call):
            return node
        if node.value.op.name != "tirx.call_llvm_intrin":
            return node
        name, arguments = _name_of(node.value), list(node.value.args)[1:]
        if name in ("ldtilecfg", "tilerelease"):
            return Evaluate(IntImm("int32", 0))
        if name == "tilezero":
            return self._filled(int(arguments[0]), lambda row, word: IntImm("int32", 0))
        if name == "tileloadd64":
            tile, address, stride = int(arguments[0]), arguments[1], int(arguments[2])
            return self._filled(tile, lambda row, word: _word(address.args[0], row, word, stride))
        if name == "tilestored64":
            return self._stored(int(arguments[0]), arguments[1].args[0], int(arguments[2]))
        return self._multiplied(name, *map(int, arguments)) if name else node

    def _filled(self, tile: int, value: Any) -> Any:
        def store(row: Expr, word: Expr) -> Any:
            return BufferStore(self.tiles, value(row, word), [IntImm("int32", tile), row, word])

        return _loops([self._rows[tile], self._words[tile]], store)

    def _stored(self, tile: int, element: Any, stride: int) -> Any:
        buffer = element.source
        dtype = str(buffer.dtype)

        def store(row: Expr, word: Expr) -> Any:
            value = self.tiles[IntImm("int32", tile), row, word]
            indices = _moved(element, row * (stride // WORD_BYTES) + word)
            return BufferStore(buffer, value if dtype == "int32" else tirx.reinterpret(dtype, value), indices)

        return _loops([self._rows[tile], self._words[tile]], store)

    def _multiplied(self, name: str, sums: int, data: int, columns: int) -> Any:
        def update(row: Expr, word: Expr, column: Expr) -> Any:
            at = (IntImm("int32", sums), row, column)
            left = self.tiles[IntImm("int32", data), row, word]
            right = self.tiles[IntImm("int32", columns), word, column]
            total = self.tiles[at]
            if name == "tdpbf16ps":
                value = tirx.reinterpret("float32", total)
                for half in (_half, _upper):
                    value = value + half(left) * half(right)
                return BufferStore(self.tiles, tirx.reinterpret("int32", value), list(at))
            signs = {"u": "uint8", "s": "int8"}
            for number in range(WORD_BYTES):
                total = total + _byte(left, number, signs[name[4]]) * _byte(right, number, signs[name[5]])
            return BufferStore(self.tiles, total, list(at))

        return _loops([self._rows[data], self._words[data], self._words[sums]], update)


def _half(word: Expr) -> Expr:
    return tirx.reinterpret("float32", tirx.shift_left(word, IntImm("int32", 16)))


def _upper(word: Expr) -> Expr:
    return tirx.reinterpret("float32", tirx.bitwise_and(word, IntImm("int32", -(1 << 16))))


def _byte(word: Expr, number: int, dtype: str) -> Expr:
    shifted = tirx.shift_right(word, IntImm("int32", 8 * number)) if number else word
    return prim.Cast("int32", prim.Cast(dtype, tirx.bitwise_and(shifted, IntImm("int32", 255))))


def _word(element: Any, row: Expr, word: Expr, stride: int) -> Expr:
    """A word of memory: at a row and a word of a tile whose first element is given."""
    dtype = str(element.source.dtype)
    per_word = WORD_BYTES // np.dtype(dtype).itemsize
    first = row * (stride // WORD_BYTES * per_word) + word * per_word
    loads = [element.source[tuple(_moved(element, first + number))] for number in range(per_word)]
    if per_word == 1:
        return loads[0] if dtype == "int32" else tirx.reinterpret("int32", loads[0])
    return tirx.call_pure_extern("int32", WORD, *loads)


def _moved(element: Any, by: Expr) -> list[Expr]:
    """The indices of the element that lies so many elements behind another one."""
    shape = shape_of(element.source)
    return unraveled(element_offset(shape, element.indices) + by, shape)


def _loops(extents: list[int], body: Any) -> Any:
    indices = [variable("e") for _ in extents]
    statement = body(*indices)
    for index, extent in zip(reversed(indices), reversed(extents), strict=True):
        statement = For(index, 0, extent, ForKind.SERIAL, statement)
    return statement
