"""Which tilings of a contraction a GPU can run, and which of them is the default.

A block has at least a warp and at most the threads that the device allows, its shared memory fits, a thread has enough
registers, a multiprocessor has enough of them for a block, and virtual threads are few. The sketches (`contraction.py`,
`winograd.py`) and the rules (`sketches/rules/gpu/gpu_tiling.py`) have these limits as constraints of their spaces.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...machine.gpu import REGISTERS_PER_THREAD, SECTOR, WARP, Gpu
from ...space import Constraint, Knob, Ordinal, Tile
from ...space.tile import largest_divisor
from .tiling import ContractionAxes, ResourceUse, Tilings
from .times.tilings import expected_seconds

VECTORS = (1, 2, 4)
"""The elements that a thread fetches at a time."""
UNROLL = (0, 16, 64, 512, 1024)
"""The steps to unroll: Ansor's."""
DEFAULT_UNROLL = 512
"""Of these, what defaults have: 512 or 1,024 have most of the fastest kernels that were recorded on an A100."""
MOST_INNERMOST = 64
"""The largest innermost factor of an axis: Ansor's."""

_VIRTUAL_THREADS = 8
_GAIN = 1.1  # that is expected at least of a default in several parts or stages

# What the default is chosen from: threads of a block, the most of them along the last axis, outputs of a thread along
# that axis and along another one, virtual threads that share the outputs along the last axis, steps that are staged.
_THREADS, _LANES, _OUTPUTS, _VIRTUAL, _STEPS = (64, 128, 256, 512), (8, 32, 512), (1, 2, 4, 8), (1, 2), (8, 16, 32)


def within_limits(use: ResourceUse, device: Gpu) -> Any:
    """Whether a tiling satisfies the constraints of the space: a truth value, or shape (n,) for n tilings."""
    return _block_fits(use, device) & _shared_fits(use, device)


def _block_fits(use: ResourceUse, device: Gpu) -> Any:
    fewest = min(WARP, math.prod(extent for _, extent in use.axes.spatial))
    fits = (use.threads >= fewest) & (use.threads <= device.threads_per_block)
    fits &= (use.virtual <= _VIRTUAL_THREADS) & (use.least_registers <= REGISTERS_PER_THREAD)
    return fits & (-(-use.threads // WARP) <= device.warps_by_registers(use.least_registers))


def _shared_fits(use: ResourceUse, device: Gpu) -> Any:
    return use.shared_bytes <= device.shared_per_block


def tiling_knobs(axes: ContractionAxes) -> list[Knob]:
    """The knobs of a tiled contraction: tiles under the names of the axes, elements per fetch, and steps to unroll."""
    knobs: list[Knob] = [Tile(name, extent, 5, max_inner=MOST_INNERMOST) for name, extent in axes.spatial]
    knobs += [Tile(name, extent, 3, max_inner=MOST_INNERMOST) for name, extent in axes.reductions]
    knobs += [Ordinal(f"fetch{position}", VECTORS) for position in range(2)]
    return [*knobs, Ordinal("unroll", UNROLL)]


def tiling_constraints(axes: ContractionAxes, device: Gpu) -> list[Constraint]:
    """The limits of the hardware as constraints on the knobs that are named after the axes.

    Args:
        axes: The axes of the contraction.
        device: The GPU.
    """
    spatial = [name for name, _ in axes.spatial]
    names = [name for name, _ in (*axes.spatial, *axes.reductions)]
    return [
        Constraint(
            tuple(spatial),
            _Limit(_block_fits, spatial, device, axes),
            f"a warp to {device.threads_per_block} threads, {_VIRTUAL_THREADS} virtual ones, their registers",
        ),
        Constraint(tuple(names), _Limit(_shared_fits, names, device, axes), f"{device.shared_per_block} bytes shared"),
    ]


def pipeline_constraint(axes: ContractionAxes, device: Gpu, split: bool = True) -> Constraint:
    """What several stages ask of the tiles: steps for all of them, shared memory, and vectors that are aligned in it.

    Args:
        axes: The axes of the contraction.
        device: The GPU.
        split: Whether there is a knob `parts`.
    """
    names = tuple(name for name, _ in (*axes.spatial, *axes.reductions))
    text = f"as many steps as stages, which take {device.shared_per_block} bytes shared; vectors that are aligned"
    knobs = (*names, "stages", "fetch0", "fetch1", *(["parts"] if split else []))
    return Constraint(knobs, _Limit(_pipeline_fits, names, device, axes), text)


def _pipeline_fits(use: ResourceUse, device: Gpu, stages: Any, fetch0: Any = 1, fetch1: Any = 1, parts: Any = 1) -> Any:
    fits = (use.rounds >= stages * parts) & (use.shared_bytes_in(stages) <= device.shared_per_block)
    return (stages == 1) | (fits & vectors_are_aligned(use, 0, fetch0) & vectors_are_aligned(use, 1, fetch1))


def vectors_are_aligned(use: ResourceUse, position: int, width: Any) -> Any:
    """Whether all vectors that are fetched of an operand are contiguous and aligned, in memory and in every stage.

    TVM makes asynchronous copies of vectors without asking for it.

    Args:
        use: A tiling, or n of them.
        position: Which operand.
        width: The elements of a vector, an integer or shape (n,).
    """
    operand, shape = use.axes.operands[position], use.shared_shapes[position]
    aligned = (shape[-1] % width == 0) & (operand.extents[-1] % width == 0)
    for name, factor in operand.dimensions[-1]:
        outer, *inner = use.levels[name]
        step = factor * math.prod(inner)  # from a block, or a round, to the next one
        aligned = aligned & ((outer == 1) | (step % width == 0))
    return aligned


@dataclass(frozen=True)
class _Limit:
    """A constraint on the tiles of the axes that are named, and on knobs after them. Other axes do not matter."""

    fits: Callable[..., Any]
    names: Sequence[str]
    device: Gpu
    axes: ContractionAxes

    def __call__(self, *values: Any) -> bool:
        use = ResourceUse(self.axes, dict(zip(self.names, values, strict=False)), min)
        return bool(self.fits(use, self.device, *values[len(self.names) :]))

    def columns(self, *values: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The same for n configurations at once, given factors of shape (n, 5) or (n, 3) for each axis."""
        levels = {name: factors.T for name, factors in zip(self.names, values, strict=False)}
        use = ResourceUse(self.axes, levels, np.minimum)
        return np.asarray(self.fits(use, self.device, *values[len(self.names) :]))


@lru_cache(maxsize=64)
def default_tiling(
    axes: ContractionAxes, device: Gpu, seconds: Callable[[Tilings, Gpu], NDArray[np.float64]] | None = None
) -> dict[str, tuple[int, ...]] | None:
    """The default tiling of a contraction: the fastest of some tilings by a model of time.

    They have few threads or many, and small tiles in registers or large ones.

    Args:
        axes: The axes of the contraction.
        device: The GPU.
        seconds: The model: the seconds of n tilings, shape (n,). By default `expected_seconds` with `DEFAULT_UNROLL`.

    Returns:
        The factors by axis. None if none of the tilings is within the limits, which happens if an extent is a large
        prime.
    """
    tilings, together, fits = _some_tilings(axes, device)
    if not fits.any():
        return None
    model = seconds or partial(expected_seconds, unroll=DEFAULT_UNROLL)
    return tilings[int(np.argmin(np.where(fits, model(together, device), np.inf)))]


def default_in_parts(
    axes: ContractionAxes, device: Gpu, parts: Sequence[int], stages: Sequence[int]
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]] | None:
    """The default tiling of a contraction, the parts of its longest reduction, and the stages.

    It has more of them if the model of time expects a tenth less time of the best tiling for them than with fewer.

    Args:
        axes: The axes of the contraction.
        device: The GPU.
        parts: Into how many parts it may be split, 1 first.
        stages: How many stages the loop over steps may have, 1 first.

    Returns:
        The factors by axis, and the values of `parts` and `stages`. None if none of the tilings is within the limits.
    """
    tilings, together, fits = _some_tilings(axes, device)
    if not fits.any():
        return None
    best, least = (0, 1, 1), np.inf
    for count, depth in itertools.product(parts, stages):
        possible = fits & (together.factors[axes.longest][:, 0] % count == 0)
        possible &= _pipeline_fits(together, device, depth, parts=count)
        seconds = expected_seconds(together, device, unroll=DEFAULT_UNROLL, parts=count, stages=depth)
        seconds = np.where(possible, seconds, np.inf)
        position = int(np.argmin(seconds))
        if seconds[position] * (_GAIN if (count, depth) > (1, 1) else 1.0) < least:
            best, least = (position, count, depth), seconds[position]
    position, count, depth = best
    return tilings[position], {"parts": count, "stages": depth}


def widest_fetches(axes: ContractionAxes, tiling: Mapping[str, Sequence[int]]) -> list[int]:
    """For each operand the most elements that a thread can fetch at a time if all threads are to fetch.

    Args:
        axes: The axes of the contraction.
        tiling: The factors by axis.
    """
    use = ResourceUse(axes, tiling, min)
    return [
        max(
            n
            for n in VECTORS
            if n == 1 or (elements % (n * use.threads) == 0 and vectors_are_aligned(use, position, n))
        )
        for position, elements in enumerate(use.shared_elements)
    ]


def _some_tilings(
    axes: ContractionAxes, device: Gpu
) -> tuple[list[dict[str, tuple[int, ...]]], Tilings, NDArray[np.bool_]]:
    """What the default is chosen from, and which of it is within the limits."""
    *others, last = [name for name, extent in axes.spatial if extent > 1] or [axes.spatial[-1][0]]
    # Threads of a block go along the last axes first. An axis that both operands follow (groups) shares nothing in a
    # block: threads go along it at last, unless the last axis is shorter than a sector of memory.
    batches = axes.batches - {last} if dict(axes.spatial)[last] * axes.item_bytes >= SECTOR else frozenset()
    ordered = sorted(axes.spatial, key=lambda axis: axis[0] not in batches)
    tilings = []
    for second, threads, lanes, columns, virtual_threads, rows, steps in itertools.product(
        others or [last], _THREADS, _LANES, _OUTPUTS, _VIRTUAL, _OUTPUTS, _STEPS
    ):
        factors: dict[str, tuple[int, ...]] = {}
        outputs_along = {second: rows, last: columns}
        for name, extent in reversed(ordered):
            outputs = largest_divisor(extent, outputs_along.get(name, 1))
            virtual = largest_divisor(outputs, virtual_threads) if name == last else 1
            across = largest_divisor(extent // outputs, min(threads, lanes) if name == last else threads)
            threads //= across
            factors[name] = (extent // outputs // across, virtual, across, 1, outputs // virtual)
        for name, extent in reversed(axes.reductions):
            inner = largest_divisor(extent, min(steps, MOST_INNERMOST))
            steps = max(1, steps // inner)
            factors[name] = (extent // inner, 1, inner)
        tilings.append(factors)
    names = [name for name, _ in (*axes.spatial, *axes.reductions)]
    together = Tilings(axes, {name: np.array([factors[name] for factors in tilings]) for name in names})
    return tilings, together, within_limits(together, device)
