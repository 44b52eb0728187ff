"""AutoTVM's template of convolutions on CPUs, without any constraint: many of its points fail, as in the NoSE paper.

Source: `conv2d_nchw_spatial_pack.arm_cpu` of TVM's operators, in the layout NCHW of the NoSE paper. The knobs are its
knobs, with the same values: tiles of the output channels, rows and columns (two levels, all divisors), the order of the
inner loops, and an annotation for each loop that may be annotated: `ann_reduce` for the window (none or unroll),
`ann_spatial` for the inner tile (none, unroll, or vec for at most one of the three). On the layer C12 these are 6,400
points. The paper ran the template of CUDA, which has eight knobs and 844,800 points there. Points fail here for these
reasons:

- *instantiation*: the template itself refuses a loop of more than 16 steps that is to be unrolled, and vectors of other
  than 1, 2, 4, 8 or 16 lanes, after they were asked for. AutoTVM's annotations have such limits (`max_unroll` and
  `vec_size`) and refuse with these messages. The numbers are ours, because the paper prints none.
- *compilation*: unrolled loops inside of each other make code that LLVM does not translate within the time limit.

What differs from AutoTVM's: the padded images are read where they are, not from a copy in which the windows overlap.
Both limits are checked before anything is scheduled, so that a refusal costs milliseconds, as it does in AutoTVM.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import stormdrop as sd

MAX_UNROLL = 16
LANES = (1, 2, 4, 8, 16)

REDUCE = [" ".join(marks) for marks in product(("none", "unroll"), repeat=2)]
"""The annotations of the loops over the window: rows, columns."""

SPATIAL = [
    " ".join(marks) for marks in product(("none", "unroll", "vec"), repeat=3) if marks.count("vec") <= 1
]  # as AutoTVM's `AnnotateSpace`
"""The annotations of the loops over the inner tile: rows, columns, channels."""

ORDERS = ["vh vw vc", "vc vh vw"]


class InstantiationError(ValueError):
    """A configuration that the template refuses, as AutoTVM's error of this name."""


@sd.template
def spatial_pack(schedule: Any, knobs: Any) -> None:
    """Schedules a convolution in NCHW with constant weights, without bias and activation."""
    conv = knobs.reduction()
    n, co, oh, ow, ci, kh, kw = schedule.get_loops(conv)
    channels = knobs.tile("tile_co", co, 2, default=_default(knobs.extent(co)))
    rows = knobs.tile("tile_oh", oh, 2)
    columns = knobs.tile("tile_ow", ow, 2)
    order = knobs.categorical("reorder_0", ORDERS)
    reduce = knobs.categorical("ann_reduce", REDUCE).split()
    spatial = knobs.categorical("ann_spatial", SPATIAL, default="none none none").split()
    tile = rows[1], columns[1], channels[1]
    window = knobs.extent(kh), knobs.extent(kw)
    _check([*zip(reduce, window, strict=True), *zip(spatial, tile, strict=True)])

    lanes = channels[1]
    for padding in schedule.get_producers(conv):
        schedule.parallel(schedule.get_loops(padding)[1])
    knobs.layout(conv, "x1", lambda o, i, y, x: [o // lanes, i, y, x, o % lanes])
    unpack = schedule.cache_write(conv, 0, "global")
    schedule.transform_layout(conv, ("write", 0), lambda b, c, y, x: _packed(b, c, y, x, *tile))
    co, vc = schedule.split(co, channels)
    oh, vh = schedule.split(oh, rows)
    ow, vw = schedule.split(ow, columns)
    inner = {"vh": vh, "vw": vw, "vc": vc}
    schedule.reorder(n, co, oh, ow, ci, kh, kw, *(inner[name] for name in order.split()))
    schedule.reverse_compute_at(unpack, ow)
    for mark, loop in zip([*reduce, *spatial], [kh, kw, vh, vw, vc], strict=True):
        if mark == "unroll":
            schedule.unroll(loop)
        elif mark == "vec":
            schedule.vectorize(loop)
    schedule.parallel(co)
    schedule.decompose_reduction(conv, ci)


def _check(marks: list[tuple[str, int]]) -> None:
    """Refuses annotations as AutoTVM does. Raises InstantiationError."""
    for mark, steps in marks:
        if mark == "unroll" and steps > MAX_UNROLL:
            raise InstantiationError(f"Too large factor for unrolling: {steps}")
        if mark == "vec" and steps not in LANES:
            raise InstantiationError(f"Wrong size of lanes in vectorization: {steps}")


def _packed(b: Any, c: Any, y: Any, x: Any, vh: int, vw: int, vc: int) -> list[Any]:
    """Where a sum lies: tile by tile, with the channels of a tile side by side."""
    return [b, c // vc, y // vh, x // vw, y % vh, x % vw, c % vc]


def _default(channels: int) -> tuple[int, int]:
    """A tile that is valid everywhere: the largest divisor of up to 8 channels."""
    lanes = max(size for size in LANES[:4] if channels % size == 0)
    return channels // lanes, lanes
