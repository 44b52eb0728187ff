"""Keys and values of the tokens so far: slots of one piece of memory for all states of a shape.

slots 0 to length - 1     the tokens
the slots behind them     zeros, which the mask hides

What is hidden is multiplied by zero, so it has to be a number: a sequence that overflows must leave nothing behind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..inputs import Array, address_of, dtype_of
from ..program import ALIGNMENT


@dataclass
class Cache:
    """The memory of the states of a sequence.

    Args:
        states: The shape of each state at some capacity, and the name of its type.
        axes: The axis of its slots.

    Attributes:
        length: How many tokens it holds.
        slots: How many it could hold.
        arrays: The memory of each state: contiguous, and where kernels may read and write it.
    """

    states: Sequence[tuple[tuple[int, ...], str]]
    axes: Sequence[int]
    length: int = 0
    slots: int = 0
    arrays: list[Array] = field(default_factory=list)
    _groups: list[_Group] = field(default_factory=list)

    def make_room(self, slots: int) -> None:
        """Gives it another number of slots. The tokens are moved, once.

        Args:
            slots: The number: `length` or more.
        """
        if slots == self.slots:
            return
        alike: dict[tuple[tuple[int, ...], str, int], list[int]] = {}
        for position, ((shape, dtype), axis) in enumerate(zip(self.states, self.axes, strict=True)):
            alike.setdefault(((*shape[:axis], slots, *shape[axis + 1 :]), dtype, axis), []).append(position)
        groups = [_Group(len(members), *kind) for kind, members in alike.items()]
        for old, new in zip(self._groups, groups, strict=False):
            new.at(0, self.length)[...] = old.at(0, self.length)
        by_position = {
            position: group.whole[index]
            for group, members in zip(groups, alike.values(), strict=True)
            for index, position in enumerate(members)
        }
        self.slots, self._groups = slots, groups
        self.arrays.clear()  # whoever keeps it keeps no memory
        self.arrays = [by_position[position] for position in range(len(self.states))]

    def shorten(self, length: int) -> None:
        """Forgets the last tokens.

        Args:
            length: How many remain.
        """
        for group in self._groups:
            group.at(length, self.length - length)[...] = 0
        self.length = length

    def take(self, begin: int, count: int) -> None:
        """Makes rows that a step has written the next tokens.

        Args:
            begin: The slot of the first row.
            count: How many rows.
        """
        if begin != self.length:
            for group in self._groups:
                group.at(self.length, count)[...] = group.at(begin, count)
        self.length += count

    def append(self, rows: Sequence[Array], begin: int, count: int) -> None:
        """Appends tokens.

        Args:
            rows: An array of each state that has their rows.
            begin: Where they begin there.
            count: How many tokens.
        """
        for array, more, axis in zip(self.arrays, rows, self.axes, strict=True):
            array[_places(axis, self.length, count)] = more[_places(axis, begin, count)]
        self.length += count


class _Group:
    """States of one shape, which are moved at once.

    Args:
        count: How many.
        shape: The shape of each.
        dtype: The name of its type.
        axis: The axis of the slots.

    Attributes:
        whole: The states along the first axis.
    """

    def __init__(self, count: int, shape: tuple[int, ...], dtype: str, axis: int) -> None:
        kind = dtype_of(dtype)
        size = math.prod(shape) * kind.itemsize
        each = -(-size // ALIGNMENT) * ALIGNMENT  # so that all of them are aligned
        memory = np.zeros(count * each + ALIGNMENT, np.uint8)
        begin = -address_of(memory) % ALIGNMENT
        aligned = memory[begin : begin + count * each].reshape(count, each)[:, :size]
        self.whole: Array = aligned.view(kind).reshape(count, *shape)
        self._axis = 1 + axis

    def at(self, begin: int, count: int) -> Array:
        """Some slots of all states."""
        return self.whole[_places(self._axis, begin, count)]


def _places(axis: int, begin: int, count: int) -> tuple[slice, ...]:
    """The index of some slots along an axis."""
    return (*(slice(None),) * axis, slice(begin, begin + count))
