"""All sizes from one to another, in the place of a size."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

from ...errors import InputError

_SMALL = 4  # up to here each size is compiled
_STEP = 4
"""From one size that is compiled to the next one. The schedules of a size are used until the next one."""

_WIDE_STEP = 8  # if there are several ranges, all combinations of whose sizes are compiled


class Range(Collection[int]):
    """All sizes from one to another.

    A model is compiled and tuned for a few of them: those up to four; 5, 18, 70 and so on; and the last one. They leave
    a tail behind tiles, as most sizes of a range do, and other remainders than each other. If several dimensions have
    ranges, it is compiled for fewer of each, and for all combinations of these.

    Args:
        first: The least size.
        last: The largest one.
        step: From one size to the next. Networks that halve an image five times take multiples of 32.

    Raises:
        InputError: They are no sizes, the first one is not less than the last one, or no steps lead to that.

    Example:
        >>> list(Range(1, 512))
        [512, 1, 2, 3, 4, 5, 18, 70, 278]
        >>> Range(1, 512).few
        (512, 1, 2, 15, 119)
        >>> 77 in Range(1, 512)
        True
        >>> list(Range(64, 640, 32))
        [640, 64, 96, 160, 352]
    """

    def __init__(self, first: int, last: int, step: int = 1) -> None:
        if not (isinstance(first, int) and isinstance(last, int) and 1 <= first < last):
            raise InputError(
                f"a range of sizes goes from a whole number, 1 or more, to a larger one, not from {first} to {last}"
            )
        if not isinstance(step, int) or step < 1 or (last - first) % step:
            raise InputError(
                f"a range of sizes from {first} to {last} has no step of {step}: no such steps lead to {last}"
            )
        self.first, self.last, self.step = first, last, step

    def __iter__(self) -> Iterator[int]:
        """The sizes that are compiled, the largest first."""
        if self.step > 1:
            yield from (self.last, *self._in_steps())
            return
        compiled = {self.first, *range(self.first, min(self.last, _SMALL) + 1)}
        size = _SMALL + 1
        while size < self.last:
            compiled.update([size] if size > self.first else [])
            size = size * _STEP - 2  # 18, 70, 278: of other remainders than those before
        if len(compiled) == 1:
            compiled.add(self.first + 1)  # what a size changes is seen at three of them
        yield self.last
        yield from sorted(compiled - {self.last})

    @property
    def few(self) -> tuple[int, ...]:
        """The sizes that are compiled if other dimensions have ranges, too; the largest first."""
        if self.step > 1:
            sizes = list(self._in_steps())
            return (self.last, *dict.fromkeys((sizes[0], sizes[len(sizes) // 2])))
        sizes = [1, 2] if self.first == 1 else [self.first]  # with one row, other kernels
        while (following := sizes[-1] * _WIDE_STEP - 1) * 3 <= self.last:
            sizes.append(following)
        if len(sizes) <= 2:  # what a size changes is seen at three of them
            sizes.append(math.isqrt(sizes[-1] * self.last) | 1)
        return (self.last, *dict.fromkeys(size for size in sizes if size < self.last))

    def __len__(self) -> int:
        """How many sizes are compiled."""
        return sum(1 for _ in self)

    def __contains__(self, size: Any) -> bool:
        """Whether it is a size of the range."""
        return isinstance(size, int) and size in range(self.first, self.last + 1, self.step)

    def __eq__(self, other: object) -> bool:
        """Whether another range has the same sizes."""
        return isinstance(other, Range) and self._key == other._key

    def __hash__(self) -> int:
        """A number that equal ranges share."""
        return hash(self._key)

    def __repr__(self) -> str:
        """As it is written in Python."""
        return f"Range{self._key if self.step > 1 else self._key[:2]}"

    @property
    def _key(self) -> tuple[int, int, int]:
        return self.first, self.last, self.step

    def _in_steps(self) -> Iterator[int]:
        """The first size, and others that are each some three times as many steps away from it as those before."""
        steps = 0
        while (size := self.first + steps * self.step) < self.last:
            yield size
            steps = 3 * steps or 1
