"""The tiles of Listing 1 of the AF-DS paper as numbers: which resources of a GPU a tiled contraction uses.

    for i.0, j.0, in parallel:                                  blocks
        for i.1, j.1                                            virtual threads, unrolled
            for i.2, j.2, in parallel:                          threads of a block
                for k.0:
                    shared memory = the parts of both operands that the block needs for k.1, k.2
                    for k.1, i.3, j.3, k.2, i.4, j.4:           registers
                        local[i, j] += a[i, k] * b[k, j]
                output = local

A tiling gives every spatial axis five factors and every reduction three. Their product is the axis's extent. `Tilings`
are n of them at once: an array of shape (n, 5) or (n, 3) per axis.
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
"""By axis: factors of n tilings, shape (n, 5) for a spatial axis and (n, 3) for a reduction."""

BLOCK, VIRTUAL, THREAD, OUTER, INNER = range(5)
"""The levels of a spatial axis: the positions of its five factors."""

_ADDRESS_REGISTERS = 24  # of a thread, besides those of outputs and operands
_ALIGNMENT = 64  # bytes, of an array in shared memory


def shared_bytes(arrays: Iterable[Any]) -> Any:
    """The bytes of shared memory that arrays take together. TVM aligns where each begins.

    Args:
        arrays: The bytes of each, or of n tilings an array of n.

    Example:
        >>> shared_bytes([100, 8])
        136
    """
    end: Any = 0
    for size in arrays:
        end = -(-end // _ALIGNMENT) * _ALIGNMENT + size
    return end


@dataclass(frozen=True)
class Operand:
    """A buffer that a contraction reads. Its last dimension is contiguous.

    Attributes:
        dimensions: For each dimension the pairs of axis and factor whose products sum to its index.
        extents: The sizes of the dimensions.
    """

    dimensions: tuple[tuple[tuple[str, int], ...], ...]
    extents: tuple[int, ...]


@dataclass(frozen=True)
class ContractionAxes:
    """The axes of a sum of products, and what it reads along them.

    Attributes:
        spatial: Name and extent of each axis of the output, in the order of its dimensions.
        reductions: Name and extent of each axis that is summed over.
        operands: The two buffers that are multiplied.
        item_bytes: Bytes of an element of the operands.
    """

    spatial: tuple[tuple[str, int], ...]
    reductions: tuple[tuple[str, int], ...]
    operands: tuple[Operand, ...]
    item_bytes: int = 4

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        return 2.0 * math.prod(extent for _, extent in (*self.spatial, *self.reductions))

    @property
    def longest(self) -> str:
        """The name of the longest reduction, which is the one that is split in parts."""
        return max(self.reductions, key=lambda axis: axis[1])[0]

    @property
    def output_bytes(self) -> int:
        """The bytes of all sums if each is a float32."""
        return WORD * math.prod(extent for _, extent in self.spatial)

    @property
    def batches(self) -> frozenset[str]:
        """The names of the axes that both operands follow: those of batches, groups, or channels of their own."""
        follows = ({name for dimension in operand.dimensions for name, _ in dimension} for operand in self.operands)
        return frozenset(name for name, _ in self.spatial).intersection(*follows)

    @property
    def read_once(self) -> bool:
        """Whether each product has an element of one operand to itself, as in a product of a matrix and a vector."""
        axes = {name for name, extent in (*self.spatial, *self.reductions) if extent > 1}
        by_operand = (
            [axes.intersection(name for name, _ in dimension) for dimension in operand.dimensions]
            for operand in self.operands
        )
        return any(max(map(len, found), default=0) <= 1 and set().union(*found) == axes for found in by_operand)


class ResourceUse:
    """Which resources of a device a tiling uses: integers for one tiling, or arrays of shape (n,) for n tilings."""

    def __init__(self, axes: ContractionAxes, levels: Mapping[str, Sequence[Any]], minimum: Callable[..., Any]) -> None:
        """Describes one tiling, or n of them.

        Args:
            axes: The axes of the contraction.
            levels: By axis five factors, or three for a reduction: integers, or arrays of shape (n,).
            minimum: The function that returns the smaller of two factors: `min`, or `np.minimum` for arrays.
        """
        self.axes, self.levels, self._minimum = axes, levels, minimum
        self._spatial = [name for name, _ in axes.spatial]
        self._reductions = [name for name, _ in axes.reductions]

    @cached_property
    def blocks(self) -> Any:
        """The blocks of the grid."""
        return self._of_levels(BLOCK)

    @cached_property
    def virtual(self) -> Any:
        """The virtual threads of a thread."""
        return self._of_levels(VIRTUAL)

    @cached_property
    def threads(self) -> Any:
        """The threads of a block."""
        return self._of_levels(THREAD)

    @cached_property
    def outputs(self) -> Any:
        """The elements of the output that a thread holds in registers."""
        return self._of_levels(VIRTUAL, OUTER, INNER)

    @cached_property
    def rounds(self) -> Any:
        """How often a block fills its shared memory: the iterations of all k.0."""
        return _product(self.levels[name][0] for name in self._reductions)

    @cached_property
    def shared_shapes(self) -> list[list[Any]]:
        """The extents of the part of each operand that is in shared memory."""
        steps = {name: _product(self.levels[name][VIRTUAL:]) for name in self._spatial}
        steps |= {name: _product(self.levels[name][1:]) for name in self._reductions}
        return [self._spans(operand, steps) for operand in self.axes.operands]

    @cached_property
    def shared_elements(self) -> list[Any]:
        """The elements of each operand that are in shared memory."""
        return [_product(extents) for extents in self.shared_shapes]

    @cached_property
    def shared_bytes(self) -> Any:
        """The bytes of shared memory of a block in one stage."""
        return self.shared_bytes_in(1)

    def shared_bytes_in(self, stages: Any) -> Any:
        """The bytes of shared memory of a block.

        Args:
            stages: The steps whose operands are there at a time: an integer or shape (n,).
        """
        return shared_bytes(stages * elements * self.axes.item_bytes for elements in self.shared_elements)

    @cached_property
    def registers(self) -> Any:
        """An estimate of the registers that `ptxas` gives a thread if it may: what it needs and what it fetches.

        All elements that a thread brings to shared memory in a round are in registers at once.
        """
        return self.least_registers + sum(-(-elements // self.threads) for elements in self.shared_elements)

    @cached_property
    def least_registers(self) -> Any:
        """The registers that a thread needs: for its outputs, what one innermost step reads, and addresses."""
        steps = {
            name: _product(self.levels[name][level] for level in (VIRTUAL, OUTER, INNER)) for name in self._spatial
        }
        steps |= dict.fromkeys(self._reductions, 1)
        first, *others = [_product(self._spans(operand, steps)) for operand in self.axes.operands]
        read = first
        for other in others:
            read = self._minimum(read, other)
        return self.outputs + read + _ADDRESS_REGISTERS

    def _of_levels(self, *levels: int) -> Any:
        """The product of the factors of all spatial axes at some levels."""
        return _product(self.levels[name][level] for name in self._spatial for level in levels)

    def _spans(self, operand: Operand, steps: Mapping[str, Any]) -> list[Any]:
        """The elements of each dimension that are read while each axis takes `steps` neighbouring values."""
        return [
            self._minimum(1 + sum(factor * (steps[name] - 1) for name, factor in dimension), extent)
            for dimension, extent in zip(operand.dimensions, operand.extents, strict=True)
        ]


class Tilings(ResourceUse):
    """n tilings of a contraction, and how each of them uses shared memory."""

    def __init__(self, axes: ContractionAxes, factors: Factors) -> None:
        """Describes n tilings.

        Args:
            axes: The axes of the contraction.
            factors: By axis an array of shape (n, 5), or (n, 3) for a reduction.

        Raises:
            ValueError: The factors of an axis do not multiply to its extent.
        """
        for name, extent in (*axes.spatial, *axes.reductions):
            if not (np.prod(factors[name], axis=1) == extent).all():
                raise ValueError(f"the factors of axis {name} do not multiply to {extent}")
        super().__init__(axes, {name: columns.T for name, columns in factors.items()}, np.minimum)
        self.factors = factors

    @classmethod
    def of(cls, axes: ContractionAxes, knobs: Mapping[str, NDArray[Any]]) -> Tilings:
        """The tilings of n configurations, which have a knob of its factors for each axis."""
        names = [name for name, _ in (*axes.spatial, *axes.reductions)]
        return cls(axes, {name: np.array([tuple(tile) for tile in knobs[name]], dtype=np.int64) for name in names})

    @cached_property
    def loads(self) -> list[NDArray[np.float64]]:
        """The loads of each operand from shared memory by all warps, each of shape (n,).

        A thread loads one element per step and element of its tile. If neighbouring steps of a window read the same
        element, it is loaded again.
        """
        terms = math.prod(extent for _, extent in self.axes.reductions)
        warps = (self.blocks * -(-self.threads // WARP)).astype(np.float64)
        loads = []
        for operand in self.axes.operands:
            follows = {name for dimension in operand.dimensions for name, _ in dimension}
            tile = [
                np.prod(self.factors[name][:, [VIRTUAL, OUTER, INNER]], axis=1)
                for name, _ in self.axes.spatial
                if name in follows
            ]
            loads.append(warps * terms * np.prod([*tile, np.ones_like(self.threads)], axis=0))
        return loads

    @cached_property
    def conflicts(self) -> list[NDArray[np.int64]]:
        """How often a warp's load of each operand is repeated, each of shape (n,).

        It is the largest number of words that the threads of a warp need from one bank. Threads are numbered with the
        last axis fastest. The elements of neighbouring threads are a register tile apart.
        """
        pairs = zip(self.axes.operands, self.shared_shapes, strict=True)
        return [self._conflicts(operand, extents) for operand, extents in pairs]

    def _conflicts(self, operand: Operand, extents: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        lanes = np.arange(WARP)[None, :]
        number = np.minimum(lanes, self.threads[:, None] - 1)
        position: dict[str, NDArray[np.int64]] = {}
        for name, _ in reversed(self.axes.spatial):
            threads = self.factors[name][:, THREAD, None]
            position[name] = number % threads * np.prod(self.factors[name][:, [OUTER, INNER]], axis=1)[:, None]
            number = number // threads
        address = np.zeros_like(number)
        for dimension, extent in zip(operand.dimensions, extents, strict=True):
            index = sum(
                (factor * position[name] for name, factor in dimension if name in position), np.zeros_like(number)
            )
            address = address * np.asarray(extent).reshape(-1, 1) + index
        address = np.sort(address * self.axes.item_bytes // WORD, axis=1)
        distinct = np.concatenate([np.ones((len(address), 1), bool), np.diff(address, axis=1) != 0], axis=1)
        words = np.zeros((len(address), BANKS), np.int64)  # that the first warp needs from each bank
        np.add.at(words, (np.arange(len(address))[:, None], address % BANKS), distinct)
        return np.asarray(words.max(axis=1), dtype=np.int64)


def _product(values: Iterable[Any]) -> Any:
    """The product of integers or of arrays."""
    return functools.reduce(operator.mul, values, 1)
