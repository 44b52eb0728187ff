"""A reduction in parts that blocks of their own sum up, for contractions with few outputs.

    Before:     y[i, j] = f(sum over k of a[i, k] * b[k, j])
    After:      t[p, i, j] = sum over k of a[i, p * K / P + k] * b[p * K / P + k, j]        a launch
                y[i, j] = f(sum over p of t[p, i, j])                                       another one

The partial sums are in global memory. Neighbouring threads of the second launch add neighbouring outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm.s_tir import Schedule

from .tiling import ContractionAxes

PARTS = (1, 2, 4, 8, 16, 32)
"""Into how many parts a reduction may be split."""

_MOST_BYTES = 32 << 20  # of partial sums
_THREADS = 128  # of a block that adds partial sums
_PART = "part"


def possible_parts(axes: ContractionAxes) -> tuple[int, ...]:
    """Into how many parts the longest reduction of a contraction can be split; 1 is among them.

    Args:
        axes: The axes of the contraction.
    """
    extent = dict(axes.reductions)[axes.longest]
    return tuple(n for n in PARTS if n == 1 or (extent % n == 0 and n * axes.output_bytes <= _MOST_BYTES))


def split_reduction(schedule: Schedule, total: Any, loops: Mapping[str, Any], axis: str, parts: int) -> Any:
    """Has a block add partial sums that another one computes.

    Args:
        schedule: The schedule.
        total: The block of the contraction, which becomes the one that adds.
        loops: Its loops by axis.
        axis: The reduction that is split.
        parts: Into how many parts.

    Returns:
        The block that computes partial sums. Its loops are those of the parts and then of the axes, in their order.
    """
    part, rest = schedule.split(loops[axis], [parts, None])
    schedule.reorder(part, *(rest if name == axis else loop for name, loop in loops.items()))
    return schedule.rfactor(part, 0)


def of_parts(
    axes: ContractionAxes, factors: Mapping[str, Sequence[int]], parts: int
) -> tuple[ContractionAxes, dict[str, Sequence[int]]]:
    """The axes of partial sums, the parts before the others, and the tiles of these axes.

    Args:
        axes: The axes of the contraction.
        factors: Its tiles by axis. The steps of its longest reduction are divided among the parts.
        parts: Into how many parts that is split.
    """
    steps, *inner = factors[axes.longest]
    tiles = {_PART: (parts, 1, 1, 1, 1), axes.longest: (steps // parts, *inner)}
    return replace(axes, spatial=((_PART, parts), *axes.spatial)), {**factors, **tiles}


def add_parts(schedule: Schedule, total: Any, output: Any) -> None:
    """Binds a block that writes outputs to blocks and threads. Each thread adds the partial sums of its output.

    Args:
        schedule: The schedule.
        total: The block that adds partial sums into registers.
        output: The block that reads the sums and writes outputs.
    """
    blocks, threads = schedule.split(schedule.fuse(*schedule.get_loops(output)), [None, _THREADS])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    schedule.compute_at(total, threads)
    schedule.unroll(schedule.get_loops(total)[-1])
