"""A range of sizes in the place of a size: the model then runs at each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from ...errors import InputError
from ...machine.contract import CPU, Machine
from .combinations import GivenShapes

_SMALL = 4  # up to here each size is compiled
_STEP = 4
"""From one size that is compiled to the next one. The schedules of a size are used until the next one."""


class Range(Collection[int]):
    """All sizes from one to another.

    A model is compiled and tuned for a few of them: those up to four; 5, 18, 70 and so on; and the last one. They leave
    a tail behind tiles, as most sizes of a range do, and other remainders than each other.

    Args:
        first: The least size.
        last: The largest one.

    Raises:
        InputError: They are no sizes, or the first one is not less than the last one.

    Example:
        >>> list(Range(1, 512))
        [512, 1, 2, 3, 4, 5, 18, 70, 278]
        >>> 77 in Range(1, 512)
        True
    """

    def __init__(self, first: int, last: int) -> None:
        if not (isinstance(first, int) and isinstance(last, int) and 1 <= first < last):
            raise InputError(
                f"a range of sizes goes from a whole number, 1 or more, to a larger one, not from {first} to {last}"
            )
        self.first, self.last = first, last

    def __iter__(self) -> Iterator[int]:
        """The sizes that are compiled, the largest first."""
        compiled = {self.first, *range(self.first, min(self.last, _SMALL) + 1)}
        size = _SMALL + 1
        while size < self.last:
            compiled.update([size] if size > self.first else [])
            size = size * _STEP - 2  # 18, 70, 278: of other remainders than those before
        if len(compiled) == 1:
            compiled.add(self.first + 1)  # what a size changes is seen at three of them
        yield self.last
        yield from sorted(compiled - {self.last})

    def __len__(self) -> int:
        """How many sizes are compiled."""
        return sum(1 for _ in self)

    def __contains__(self, size: Any) -> bool:
        """Whether it is a size of the range."""
        return isinstance(size, int) and self.first <= size <= self.last

    def __repr__(self) -> str:
        """As it is written in Python."""
        return f"Range({self.first}, {self.last})"


def has_range(shapes: GivenShapes | None) -> bool:
    """Whether the shapes of inputs have a range in the place of a size."""
    return any(isinstance(size, Range) for shape in (shapes or {}).values() for size in shape)


def check_range(shapes: GivenShapes | None, machine: Machine, native: bool) -> None:
    """Checks that a model for a machine can run at each size of a range, before the work that this takes.

    Args:
        shapes: The shapes of its inputs.
        machine: The machine.
        native: Whether machine code is to be saved.

    Raises:
        InputError: It cannot.
    """
    if not has_range(shapes):
        return
    if machine.device != CPU or machine.runner:
        raise InputError(
            f"a range of sizes is possible on this machine's CPU, not on {machine.target_name}: list sizes"
        )
    if native:
        raise InputError("a range of sizes is not possible in a native model: list sizes, or leave native out")
