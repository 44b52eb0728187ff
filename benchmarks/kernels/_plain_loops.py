"""Plain loops whose two innermost ones are tiled: the kernels mm2d and conv3 of the Droplet Search paper, section 4.1.

From the paper: the shapes (1,000 x 700 times 700 x 800; an image of 1,024 x 1,024 with a filter of 3 x 3), the tile
sizes (0, 8, 16, ..., 128, where 0 leaves the loop as it is), and that the orders of the loops differ, of which `ijk` is
the canonical one. What is ours, because the text does not say it:

- Tiling a loop strip-mines it, and moves the loop over the tiles out of both tiled loops, as in Figure 1 (e):
  `i j k` becomes `i j0 k0 j1 k1`, or `i k0 j k1` if only `k` is tiled. The last tile may be cut off.
- The two innermost loops of conv3 are those over the image. Those over the filter have three steps each and stay
  inside.
- The image has no padding, so the output has 1,022 x 1,022 elements.
- Nothing is parallel, vectorised or unrolled by the schedule. LLVM does what it likes with the innermost loop.
- On a GPU the tiles are the thread blocks: `i j k` becomes `i0 j0 i1 j1 k`, with blocks over the tiles, and a thread
  for each element of a tile. Without tiles every block has one thread. More than 1,024 threads are refused, as the
  paper has invalid points for thread blocks.
"""

from __future__ import annotations

from typing import Any

import stormdrop as sd
from stormdrop.ir.workload import Workload

SIZES = list(range(0, 129, 8))
"""The tile sizes: 17 values."""

MOST_THREADS = 1024
"""Threads of a block."""


@sd.template
def ijk(schedule: Any, knobs: Any) -> None:
    """A matrix product whose innermost loop runs over the sum."""
    _tiled(schedule, knobs, "ijk", tiled="jk", sums="k")


@sd.template
def ikj(schedule: Any, knobs: Any) -> None:
    """A matrix product whose innermost loop runs along the rows of the output."""
    _tiled(schedule, knobs, "ikj", tiled="kj", sums="k")


@sd.template
def ij(schedule: Any, knobs: Any) -> None:
    """A convolution of one channel, row by row. The loops k and l are those over the filter."""
    _tiled(schedule, knobs, "ijkl", tiled="ij", sums="kl")


@sd.template
def blocks(schedule: Any, knobs: Any) -> None:
    """A matrix product, or a convolution of one channel, by thread blocks."""
    block = knobs.reduction()
    i, j, *sums = (loop for loop in schedule.get_loops(block) if knobs.extent(loop) > 1)
    tile = [max(1, knobs.ordinal(f"tile_{name}", SIZES)) for name in "ij"]
    if tile[0] * tile[1] > MOST_THREADS:
        raise ValueError(f"{tile[0]} x {tile[1]} threads: a block has {MOST_THREADS} at most")
    (i0, i1), (j0, j1) = (schedule.split(loop, [None, size]) for loop, size in zip((i, j), tile, strict=True))
    schedule.reorder(i0, j0, i1, j1, *sums)
    for loop, axis in ((i0, "blockIdx.y"), (j0, "blockIdx.x"), (i1, "threadIdx.y"), (j1, "threadIdx.x")):
        schedule.bind(loop, axis)
    schedule.decompose_reduction(block, sums[0])


def mm2d() -> Workload:
    """The matrix product of the paper."""
    return sd.operators.matmul(1000, 800, 700)


def conv3() -> Workload:
    """The convolution of the paper."""
    return sd.operators.conv2d(1, 1024, 1024, 1, 1, 3, 3)


def _tiled(schedule: Any, knobs: Any, order: str, tiled: str, sums: str) -> None:
    """Puts the loops into an order, and tiles two that follow each other.

    Args:
        schedule: the schedule.
        knobs: declares `tile_X` for each of the two loops X.
        order: the loops by their letters, which they have in the order of the alphabet at first. Loops of one step do
            not count.
        tiled: the two loops.
        sums: the loops over the terms of the sums.
    """
    block = knobs.reduction()
    loops = [loop for loop in schedule.get_loops(block) if knobs.extent(loop) > 1]
    if len(loops) != len(order):
        knobs.unsupported(f"{len(loops)} loops, not {len(order)}")
    parts = {name: [loop] for name, loop in zip(sorted(order), loops, strict=True)}
    for name in tiled:
        size = knobs.ordinal(f"tile_{name}", SIZES)
        if size:
            parts[name] = list(schedule.split(parts[name][0], [None, size]))
    first = order.index(tiled[0])
    tiles = [name for name in tiled if len(parts[name]) == 2]
    nest = [(name, parts[name][0]) for name in [*order[:first], *tiles]]
    nest += [(name, parts[name][-1]) for name in order[first:]]
    schedule.reorder(*(loop for _, loop in nest))
    schedule.decompose_reduction(block, next(loop for name, loop in nest if name in sums))
