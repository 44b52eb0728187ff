"""The converter of RotaryEmbedding, and the rotation itself: pairs of numbers turn by an angle that their place gives.

    y[i] = x[i] cos[position, i] - x[j] sin[position, i]
    y[j] = x[j] cos[position, i] + x[i] sin[position, i]

The pairs (i, j) lie beside each other ("interleaved"), or j is half of the rotated numbers behind i. What is behind the
rotated numbers of a head stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from ..node import Node, shape_of


@dataclass(frozen=True)
class Positions:
    """Where each row of a sequence stands.

    Attributes:
        places: int32 or int64: a position for each row (batch or 1, rows), or that of the first row (batch or 1).
        offset: What is added to each of them.
    """

    places: Any
    offset: int = 0

    def of(self, placeholder: Any, batch: Any, row: Any) -> Any:
        """The position of a row, read from the placeholder of `places`."""
        first = 0 if shape_of(self.places)[0] == 1 else batch
        if len(shape_of(self.places)) == 2:
            return placeholder(first, row).astype("int32") + self.offset
        return placeholder(first).astype("int32") + row + self.offset


def turns_at(node: Node, positions: Positions, cosines: Any, sines: Any, batch: int, rows: int) -> Any:
    """The cosines, and then the sines, of each row (2, batch, rows, pairs), from tables (positions, pairs).

    Positions outside of the tables count as the nearest ones inside.

    Raises:
        ValueError: The tables differ in their shapes.
    """
    last, pairs = shape_of(cosines)
    if shape_of(sines) != (last, pairs):
        raise ValueError(f"cosines of shape {shape_of(cosines)} and sines of shape {shape_of(sines)}")

    def read(places: Any, *tables: Any) -> Any:
        def value(which: Any, b: Any, s: Any, pair: Any) -> Any:
            place = tirx.max(tirx.min(positions.of(places, b, s), last - 1), 0)
            cosine, sine = (table(place, pair) for table in tables)
            return tirx.Select(which == 0, cosine, sine)

        return te.compute((2, batch, rows, pairs), value, name="turns")

    return node.compute(read, positions.places, cosines, sines, name="turns")


def rotated(node: Node, x: Any, turns: Any, interleaved: bool) -> Any:
    """A tensor whose heads are rotated.

    Args:
        node: The node.
        x: The tensor (batch, rows, heads, size).
        turns: The cosines and the sines of its rows; see `turns_at`.
        interleaved: Whether the two numbers of a pair lie beside each other.

    Raises:
        ValueError: There are more pairs than a head has.
    """
    (batch, rows, heads, size), pairs = shape_of(x), shape_of(turns)[-1]
    if 2 * pairs > size:
        raise ValueError(f"{pairs} pairs of a head of {size} numbers")
    turning = x
    if 2 * pairs < size:
        turning = node.emit(relax.op.strided_slice(x, [3], [0], [2 * pairs]))
    by_pairs = (batch, rows, heads, pairs, 2) if interleaved else (batch, rows, heads, 2, pairs)

    def turned(values: Any, turns: Any) -> Any:
        def value(b: Any, s: Any, h: Any, first: Any, second: Any) -> Any:
            pair, side = (first, second) if interleaved else (second, first)
            other = values(b, s, h, *((pair, 1 - side) if interleaved else (1 - side, pair)))
            signed = tirx.Select(side == 0, -other, other)
            return values(b, s, h, first, second) * turns(0, b, s, pair) + signed * turns(1, b, s, pair)

        return te.compute(by_pairs, value, name="rotary_embedding")

    split = node.emit(relax.op.reshape(turning, by_pairs))
    result = node.compute(turned, split, turns, name="rotary_embedding")
    result = node.emit(relax.op.reshape(result, (batch, rows, heads, 2 * pairs)))
    if 2 * pairs == size:
        return result
    rest = node.emit(relax.op.strided_slice(x, [3], [2 * pairs], [size]))
    return node.emit(relax.op.concat([result, rest], 3))


def _rotary_embedding(node: Node) -> Any:
    """Of (batch, rows, heads * size) or (batch, heads, rows, size)."""
    if node.attribute("is_packed_batching", 0):
        raise ValueError("sequences of several lengths in one (is_packed_batching)")
    x, shape = node[0], node.shape()
    by_heads = len(shape) == 4
    if by_heads:
        x = node.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    else:
        heads = node.attribute("num_heads", 0) or shape[2] // (2 * node.shape(2)[1])
        x = node.emit(relax.op.reshape(x, (*shape[:2], heads, shape[2] // heads)))
    batch, rows = shape_of(x)[:2]
    if rows > node.shape(2)[0]:
        raise ValueError(f"{rows} rows, and cosines of {node.shape(2)[0]} positions")
    turns = turns_at(node, Positions(node[1]), node[2], node[3], batch, rows)
    result = rotated(node, x, turns, bool(node.attribute("interleaved", 0)))
    return relax.op.permute_dims(result, [0, 2, 1, 3]) if by_heads else relax.op.reshape(result, shape)


CONVERTERS: dict[str, Callable[[Node], Any]] = {"RotaryEmbedding": _rotary_embedding}
