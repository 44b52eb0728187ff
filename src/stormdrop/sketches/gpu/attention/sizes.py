"""How an attention is divided among threads and tiles, and the shared memory that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from ....machine.gpu import WARP
from ..matrix_product import SIDE

QUAD = 4
"""The elements that a thread reads from shared memory at once."""


@dataclass(frozen=True)
class BlockSizes:
    """How an attention is divided.

    Args:
        rows: The rows of a thread.
        row_threads: The threads along the rows of a block.
        keys: The keys of a tile that a thread has, of each of its rows.
        key_threads: The threads along the keys of a tile, and along the columns of the output.
        parts: The parts of the keys, which blocks of their own go along.
    """

    rows: int
    row_threads: int
    keys: int
    key_threads: int
    parts: int = 1

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.row_threads * self.key_threads

    @property
    def height(self) -> int:
        """The rows of a block."""
        return self.rows * self.row_threads

    @property
    def tile(self) -> int:
        """The keys of a tile."""
        return self.keys * self.key_threads

    def tiles(self, keys: int) -> int:
        """The tiles of a part, of so many keys. Those of the last parts may have no keys."""
        return -(-keys // (self.tile * self.parts))

    def vector(self, columns: int) -> int:
        """The neighbouring columns of a thread, of so many columns of the output."""
        return next(size for size in (QUAD, 2, 1) if size == 1 or size * self.key_threads <= columns)

    def columns(self, columns: int) -> int:
        """All columns of a thread."""
        vector = self.vector(columns)
        return vector * -(-columns // (vector * self.key_threads))

    def shared_elements(self, depth: int, columns: int) -> tuple[int, int, int, int]:
        """The elements of shared memory.

        Args:
            depth: The elements of a query and of a key.
            columns: Those of a value.

        Returns:
            Those of the queries; of the keys, whose place the weights take; of the values; and of what the threads of a
            row hand on.
        """
        row = padded(depth)
        keys_or_weights = max(self.tile * row, self.height * padded(self.tile))
        values = self.tile * self.columns(columns) * self.key_threads
        return self.height * row, keys_or_weights, values, self.height * self.key_threads


def whole_quads(elements: int) -> int:
    """The elements with those that fill up the last quad."""
    return QUAD * -(-elements // QUAD)


def padded(elements: int) -> int:
    """The elements of a row in shared memory: an odd number of quads, so that eight rows are in different banks."""
    return QUAD * (whole_quads(elements) // QUAD | 1)


@dataclass(frozen=True)
class FragmentSizes:
    """How an attention is divided among warps, in fragments of 16 rows or 16 keys.

    Args:
        rows: The fragments of rows of a warp.
        warps: The warps of a block.
        keys: The fragments of a tile of keys.
        stages: 2 if the next tile is on its way while one is multiplied; 1 if its parts take the place of those that
            are no longer needed.
        parts: The parts of the keys, which blocks of their own go along.
    """

    rows: int
    warps: int
    keys: int
    stages: int
    parts: int = 1

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.warps * WARP

    @property
    def height(self) -> int:
        """The rows of a block."""
        return SIDE * self.rows * self.warps

    @property
    def tile(self) -> int:
        """The keys of a tile."""
        return SIDE * self.keys

    def tiles(self, keys: int) -> int:
        """The tiles of a part, of so many keys. Those of the last parts may have no keys."""
        return -(-keys // (self.tile * self.parts))

    @property
    def holds_queries(self) -> bool:
        """Whether queries stay in registers; else they are loaded for each tile, as there are too many of them."""
        return self.rows == 1

    def shared_elements(self, depth: int, columns: int) -> tuple[int, int, int]:
        """The elements of queries, keys and values in shared memory.

        Args:
            depth: The elements of a query and of a key.
            columns: Those of a value.
        """
        tiles = self.stages * self.tile
        return self.height * with_unused(depth), tiles * with_unused(depth), tiles * with_unused(columns)


def with_unused(elements: int) -> int:
    """The elements of 16 bits of a row in shared memory: 16 bytes are unused, so that eight rows are in other banks."""
    return elements + SIDE // 2
