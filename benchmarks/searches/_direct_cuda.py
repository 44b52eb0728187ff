"""AutoTVM's template of direct convolutions on CUDA, without constraints: many points fail, as in the NoSE paper.

Source: `conv2d_nchw.cuda` of TVM's operators (`schedule_direct_cuda`), of the commit that the NoSE paper names. The
knobs are its eight: four factors of the output channels, rows and columns (blocks, virtual threads, threads,
registers), two of the input channels and of the window's rows and columns, the steps up to which loops are unrolled,
and whether that is written into the source. On the layers C2, C6, C9 and C12 of Table II the space has the size that
the paper prints (C12: 844,800 points). Of layers with a stride the paper prints other sizes; those of C4, C7, C8 and
C10 are the sizes with as many output channels as input channels.

Points fail here for these reasons, as in AutoTVM:

- *instantiation*: too many threads in a block, or too much shared memory. AutoTVM's `gpu_verify_pass` refuses these
  while it builds; here they are refused before anything is scheduled, by the same limits.
- *build_timeout*: unrolled loops that the compiler does not translate in time.
- *runtime*: more registers than a multiprocessor has, so that the kernel cannot be launched.
"""

from __future__ import annotations

import math
from typing import Any

import stormdrop as sd

UNROLL = [0, 512, 1500]
MOST_THREADS = (1024, 1024, 64)
"""In x, y and z of a block; and no more than the first of them in all."""

SHARED_BYTES = 48 * 1024


class InstantiationError(ValueError):
    """A configuration that AutoTVM's check of GPU code refuses."""


@sd.template
def direct_cuda(schedule: Any, knobs: Any) -> None:
    """Schedules a convolution in NCHW for a GPU, without bias and activation."""
    conv = knobs.reduction()
    n, *spatial, ci, kh, kw = schedule.get_loops(conv)
    names = ("f", "y", "x")
    tiles = [knobs.tile(f"tile_{name}", loop, 4) for name, loop in zip(names, spatial, strict=True)]
    steps = [knobs.tile(f"tile_{name}", loop, 2) for name, loop in (("rc", ci), ("ry", kh), ("rx", kw))]
    unroll = knobs.ordinal("auto_unroll_max_step", UNROLL)
    explicit = knobs.categorical("unroll_explicit", [0, 1])
    _check(tiles, [inner for _, inner in steps], knobs.workload.arguments["stride"])

    paddings = schedule.get_producers(conv)
    staged = [schedule.cache_read(conv, position, "shared") for position in (0, 1)]
    for padding in paddings:
        schedule.compute_inline(padding)
    written = schedule.cache_write(conv, 0, "local")
    levels = list(zip(*(schedule.split(loop, tile) for loop, tile in zip(spatial, tiles, strict=True)), strict=True))
    outer, inner = zip(
        *(schedule.split(loop, step) for loop, step in zip((ci, kh, kw), steps, strict=True)), strict=True
    )
    blocks, virtual, threads, registers = levels
    schedule.reorder(n, *blocks, *virtual, *threads, *outer, *inner, *registers)
    blocks = (schedule.fuse(n, blocks[0]), *blocks[1:])
    for loops, kind in ((blocks, "blockIdx"), (virtual, "vthread"), (threads, "threadIdx")):
        for loop, axis in zip(loops, "zyx", strict=True):
            schedule.bind(loop, f"{kind}.{axis}")
    schedule.reverse_compute_at(written, threads[-1])
    for block in staged:
        schedule.compute_at(block, outer[-1], preserve_unit_loops=True)
        fetched = schedule.fuse(*schedule.get_loops(block)[-4:])
        _, *lanes = schedule.split(fetched, [None, *(tile[2] for tile in tiles)])
        for lane, axis in zip(lanes, "zyx", strict=True):
            schedule.bind(lane, f"threadIdx.{axis}")
    if unroll:
        schedule.annotate(blocks[0], "pragma_auto_unroll_max_step", unroll)
        schedule.annotate(blocks[0], "pragma_unroll_explicit", explicit)
    schedule.decompose_reduction(conv, outer[0])


def _check(tiles: list[tuple[int, ...]], window: list[int], stride: int) -> None:
    """Refuses what AutoTVM refuses. Raises InstantiationError."""
    z, y, x = (tile[2] for tile in tiles)
    if z * y * x > MOST_THREADS[0] or z > MOST_THREADS[2]:
        raise InstantiationError(f"Skipped because of invalid gpu kernel: {x} x {y} x {z} threads")
    channels, rows, columns = (math.prod(tile[1:]) for tile in tiles)
    depth, high, wide = window
    image = depth * ((rows - 1) * stride + high) * ((columns - 1) * stride + wide)
    shared = 4 * (image + channels * depth * high * wide)
    if shared > SHARED_BYTES:
        raise InstantiationError(f"Skipped because of invalid gpu kernel: {shared} bytes of shared memory")
