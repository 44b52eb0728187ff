"""The instructions of AMX as TensorIR, and which of them multiplies what.

There are eight tile registers of up to 16 rows of 64 bytes. A product adds to each of 16 x 16 sums of 32 bits up to 16
products of words, which are pairs of bfloat16 or groups of four bytes:

    sums[row, column] += sum over 16 words of dot(data[row, word], columns[word, column])

The numbers of tiles are part of an instruction. What shape each tile has is configured once per thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir.prim.expr import IntImm
from tvm.tirx import BufferStore, Evaluate

from ....ir.dtypes import BFLOAT16
from ....ir.expressions import Expr
from ....ir.stages import Buffer
from ....machine.cpu import Cpu

TILE = 16
"""The most rows of a tile, and its words per row."""

REGISTERS = 8
WORD_BYTES = 4

CONFIGURATION_WORDS = 16
"""The size of a configuration: 64 bytes."""

# By the types of the data and of the column operand: the extension and the instruction.
_PRODUCTS: Mapping[tuple[str, str], tuple[str, str]] = {
    (BFLOAT16, BFLOAT16): ("amx-bf16", "tdpbf16ps"),
    (BFLOAT16, "float32"): ("amx-bf16", "tdpbf16ps"),  # columns in parts, see `parts`
    ("uint8", "int8"): ("amx-int8", "tdpbusd"),
    ("int8", "int8"): ("amx-int8", "tdpbssd"),
    ("uint8", "uint8"): ("amx-int8", "tdpbuud"),
    ("int8", "uint8"): ("amx-int8", "tdpbsud"),
}


def product_of(data: str, columns: str, target: Cpu) -> tuple[str, str] | None:
    """The extension and the instruction that multiply data by columns of these types.

    Returns:
        None if a machine has none, or if it is to keep denormals, which tiles of bfloat16 always take for zero.
    """
    feature, name = _PRODUCTS.get((data, columns), ("", ""))
    flushes = data == BFLOAT16 and target.keep_denormals
    return (feature, name) if {"amx-tile", feature} <= set(target.features) and not flushes else None


def configuration(rows: int, depth: int, sums: int, data: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The words of a configuration.

    Args:
        rows: The rows of a tile of sums, and of one of data.
        depth: The words in a row of data, which are the rows of a tile of columns.
        sums: How many tiles hold sums; they come first.
        data: How many tiles hold data; they come next. All others hold columns.
    """
    count = {"sums": sums, "data": data, "columns": REGISTERS - sums - data}
    of_tile = [kind for kind, number in count.items() for _ in range(number)]
    row_bytes = {"sums": WORD_BYTES * TILE, "data": WORD_BYTES * depth, "columns": WORD_BYTES * TILE}
    tile_rows = {"sums": rows, "data": rows, "columns": depth}
    described = np.zeros(WORD_BYTES * CONFIGURATION_WORDS, np.uint8)
    described[0] = 1  # the palette
    described[16:48].view(np.uint16)[:REGISTERS] = [row_bytes[kind] for kind in of_tile]
    described[48 : 48 + REGISTERS] = [tile_rows[kind] for kind in of_tile]
    return described.view(np.int32)


def configure(words: Buffer, rows: int, depth: int, sums: int, data: int) -> list[Any]:
    """Configures the tiles of a thread.

    Args:
        words: A buffer of `CONFIGURATION_WORDS` words in int32.
        rows: As in `configuration`, like the others.
        depth: The words in a row of data.
        sums: How many tiles hold sums.
        data: How many tiles hold data.
    """
    values = configuration(rows, depth, sums, data).tolist()
    stores = [BufferStore(words, IntImm("int32", value), [number]) for number, value in enumerate(values)]
    return [*stores, _instruction("ldtilecfg", tirx.address_of(words[0]))]


def release() -> Any:
    """Gives the tiles of a thread back."""
    return _instruction("tilerelease")


def clear(tile: int) -> Any:
    """Sets a tile to zero."""
    return _instruction("tilezero", tile)


def load(tile: int, element: Expr, stride: int) -> Any:
    """Loads a tile whose first element is the one that is loaded here, with rows at a distance of `stride` bytes."""
    return _instruction("tileloadd64", tile, tirx.address_of(element), IntImm("int64", stride))


def store(tile: int, element: Expr, stride: int) -> Any:
    """Stores a tile; see `load`."""
    return _instruction("tilestored64", tile, tirx.address_of(element), IntImm("int64", stride))


def multiply(name: str, sums: int, data: int, columns: int) -> Any:
    """Adds the products of two tiles to a third one."""
    return _instruction(name, sums, data, columns)


def _instruction(name: str, *arguments: Any) -> Any:
    values = [IntImm("int8", value) if isinstance(value, int) else value for value in arguments]
    return Evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *values))
