"""A contraction in the tiles of Listing 1 of the AF-DS paper, as numbers: what a tiling asks of a device.

    for i.0, j.0, in parallel:                                  blocks
        for i.1, j.1                                            virtual threads, unrolled
            for i.2, j.2, in parallel:                          threads of a block
                for k.0:
                    shared memory = the parts of both operands that the block needs for k.1, k.2
                    for k.1, i.3, j.3, k.2, i.4, j.4:           registers
                        local[i, j] += a[i, k] * b[k, j]
                output = local

Every spatial axis has five factors, every reduction three; their product is the axis's extent. `Tiling` is n of them at
once: an array of shape (n, 5) or (n, 3) per axis.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...machine.gpu import BANKS, WARP, WORD

Factors = Mapping[str, NDArray[np.int64]]

_ADDRESSES = 24  # registers beside outputs and operands

_ALIGNED = 64  # bytes, of arrays in shared memory

BLOCK, VIRTUAL, THREAD, OUTER, INNER = range(5)
"""Levels of a spatial axis."""


@dataclass(frozen=True)
class Operand:
    """What is read: each dimension's index as sum of factor times axis, the last dimension contiguous.

    `extents` are the dimensions' sizes: no tile reads more.
    """

    dimensions: tuple[tuple[tuple[str, int], ...], ...]
    extents: tuple[int, ...]


@dataclass(frozen=True)
class Contraction:
    """A sum of products: axes by name with their extents, in the order of the output's dimensions, and the operands."""

    spatial: tuple[tuple[str, int], ...]
    reductions: tuple[tuple[str, int], ...]
    operands: tuple[Operand, ...]
    item: int = 4  # bytes of an element

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        return 2.0 * math.prod(extent for _, extent in (*self.spatial, *self.reductions))


class Counts:
    """What a tiling asks of a device: of one tiling with plain integers, or of n at once with arrays of shape (n,)."""

    def __init__(
        self, contraction: Contraction, levels: Mapping[str, Sequence[Any]], least: Callable[..., Any]
    ) -> None:
        """`levels` by axis: five factors, or three of a reduction. `least` is the smaller of two (`min`)."""
        self.contraction, self.levels, self._least = contraction, levels, least
        self._spatial = [name for name, _ in contraction.spatial]
        self._reductions = [name for name, _ in contraction.reductions]

    @cached_property
    def blocks(self) -> Any:
        """Blocks of the grid."""
        return self._product(BLOCK)

    @cached_property
    def virtual(self) -> Any:
        """Virtual threads of a thread."""
        return self._product(VIRTUAL)

    @cached_property
    def threads(self) -> Any:
        """Threads of a block."""
        return self._product(THREAD)

    @cached_property
    def outputs(self) -> Any:
        """Elements of the output that a thread holds in registers."""
        return self._product(VIRTUAL, OUTER, INNER)

    @cached_property
    def rounds(self) -> Any:
        """How often shared memory is filled: the iterations of all k.0."""
        return _times(self.levels[name][0] for name in self._reductions)

    @cached_property
    def shared_shapes(self) -> list[list[Any]]:
        """The extents of each operand's part in shared memory."""
        steps = {name: _times(self.levels[name][VIRTUAL:]) for name in self._spatial}
        steps |= {name: _times(self.levels[name][1:]) for name in self._reductions}
        return [self._spans(operand, steps) for operand in self.contraction.operands]

    @cached_property
    def shared_elements(self) -> list[Any]:
        """Elements of each operand in shared memory."""
        return [_times(shape) for shape in self.shared_shapes]

    @cached_property
    def shared_bytes(self) -> Any:
        """Of a block; each operand's begins where TVM aligns it."""
        end: Any = 0
        for elements in self.shared_elements:
            end = -(-end // _ALIGNED) * _ALIGNED + elements * self.contraction.item
        return end

    @cached_property
    def registers(self) -> Any:
        """An estimate of the registers that `ptxas` gives a thread where it may: what it needs, and what it fetches.

        All that a thread brings to shared memory in a round is on its way at once.
        """
        return self.least_registers + sum(-(-elements // self.threads) for elements in self.shared_elements)

    @cached_property
    def least_registers(self) -> Any:
        """What a thread cannot do without: its outputs, what one innermost step reads, addresses."""
        steps = {name: _times(self.levels[name][at] for at in (VIRTUAL, OUTER, INNER)) for name in self._spatial}
        steps |= dict.fromkeys(self._reductions, 1)
        first, *others = [_times(self._spans(operand, steps)) for operand in self.contraction.operands]
        read = first
        for other in others:
            read = self._least(read, other)
        return self.outputs + read + _ADDRESSES

    def _product(self, *levels: int) -> Any:
        return _times(self.levels[name][level] for name in self._spatial for level in levels)

    def _spans(self, operand: Operand, steps: Mapping[str, Any]) -> list[Any]:
        """Elements of each dimension that are read while each axis takes so many neighbouring values."""
        return [
            self._least(1 + sum(factor * (steps[name] - 1) for name, factor in dimension), extent)
            for dimension, extent in zip(operand.dimensions, operand.extents, strict=True)
        ]


class Tiling(Counts):
    """n tilings of a contraction."""

    def __init__(self, contraction: Contraction, factors: Factors) -> None:
        """`factors` by axis, shape (n, 5) or (n, 3). Raises ValueError where they do not multiply to the extents."""
        for name, extent in (*contraction.spatial, *contraction.reductions):
            if not (np.prod(factors[name], axis=1) == extent).all():
                raise ValueError(f"the factors of axis {name} do not multiply to {extent}")
        super().__init__(contraction, {name: each.T for name, each in factors.items()}, np.minimum)
        self.factors = factors

    @cached_property
    def loads(self) -> list[NDArray[np.float64]]:
        """Loads of each operand from shared memory, by all warps: one per element that a step of a thread's tile needs.

        What neighbouring reductions of a window share is loaded again.
        """
        names = [name for name, _ in self.contraction.spatial]
        total = math.prod(extent for _, extent in self.contraction.reductions)
        warps = (self.blocks * -(-self.threads // WARP)).astype(np.float64)
        found = []
        for operand in self.contraction.operands:
            follows = {name for dimension in operand.dimensions for name, _ in dimension}
            each = [
                np.prod(self.factors[name][:, [VIRTUAL, OUTER, INNER]], axis=1) for name in names if name in follows
            ]
            found.append(warps * total * np.prod([*each, np.ones_like(self.threads)], axis=0))
        return found

    @cached_property
    def conflicts(self) -> list[NDArray[np.int64]]:
        """How often a warp's load of each operand is repeated: words of the same bank that its threads want.

        Threads are numbered with the last axis fastest; neighbouring ones are a tile of registers apart.
        """
        pairs = zip(self.contraction.operands, self.shared_shapes, strict=True)
        return [self._conflicts(operand, shape) for operand, shape in pairs]

    def _conflicts(self, operand: Operand, shape: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        lanes = np.arange(WARP)[None, :]
        number = np.minimum(lanes, self.threads[:, None] - 1)
        position: dict[str, NDArray[np.int64]] = {}
        for name, _ in reversed(self.contraction.spatial):
            threads = self.factors[name][:, THREAD, None]
            position[name] = number % threads * np.prod(self.factors[name][:, [OUTER, INNER]], axis=1)[:, None]
            number = number // threads
        address = np.zeros_like(number)
        for dimension, extent in zip(operand.dimensions, shape, strict=True):
            index = sum(
                (factor * position[name] for name, factor in dimension if name in position), np.zeros_like(number)
            )
            address = address * np.asarray(extent).reshape(-1, 1) + index
        address = np.sort(address * self.contraction.item // WORD, axis=1)
        fresh = np.concatenate([np.ones((len(address), 1), bool), np.diff(address, axis=1) != 0], axis=1)
        wanted = np.zeros((len(address), BANKS), np.int64)
        np.add.at(wanted, (np.arange(len(address))[:, None], address % BANKS), fresh)
        return np.asarray(wanted.max(axis=1), dtype=np.int64)


def _times(values: Iterable[Any]) -> Any:
    """The product of integers, or of arrays."""
    return functools.reduce(operator.mul, values, 1)
