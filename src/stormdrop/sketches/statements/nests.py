"""Loop nests of n schedules at once: what a statement stores and reads, and the loops around it.

It is what TVM would make of the schedules before it extracts features of them, as far as the features depend on it.
Numbers that differ between schedules are arrays of shape (n,). A loop of one iteration that TVM leaves out is masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .indices import Index, Ints, Mask

READ, WRITE, BOTH = range(3)
"""How a statement accesses a buffer: it reads from it, or writes to it, or both."""

BLOCKS, VTHREAD, THREADS, VECTOR = "blockIdx.x", "vthread", "threadIdx.x", "vectorize"
"""The kinds of loops that have features of their own."""


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop.

    Attributes:
        extent: The number of iterations.
        present: Where it is there.
        kind: One of `BLOCKS`, `VTHREAD`, `THREADS` and `VECTOR`; None for a serial loop.
    """

    extent: Ints
    present: Mask
    kind: str | None = None


@dataclass(frozen=True, eq=False)
class Buffer:
    """A buffer.

    Attributes:
        name: Its name. Buffers that are accessed as much are in the order of their names.
        item_bytes: The bytes of an element.
        shape: The extents.
        around: The loops around its allocation; none if it is a parameter.
    """

    name: str
    item_bytes: int
    shape: Sequence[Any]
    around: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Access:
    """How a statement accesses a buffer.

    Attributes:
        buffer: The buffer.
        kind: `READ`, `WRITE` or `BOTH`.
        elements: The indices of each element that is accessed; of one that is read and written, once.
    """

    buffer: Buffer
    kind: int
    elements: Sequence[Sequence[Index]]


@dataclass(frozen=True, eq=False)
class Statement:
    """A store.

    Attributes:
        loops: The names of the loops around it, the outermost first.
        accesses: The buffers that it accesses, the stored one first.
        operations: How many operations an execution of it has, by the names of the features, such as "float_mul".
    """

    loops: Sequence[str]
    accesses: Sequence[Access]
    operations: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Nest:
    """A function of n schedules.

    Attributes:
        loops: The loops, by name.
        statements: The statements that store something else than a constant, in their order.
        unroll: The steps up to which loops are unrolled, 0 for none.
    """

    loops: Mapping[str, Loop]
    statements: Sequence[Statement]
    unroll: Ints
