"""The sketch `gpu_dot_products`: contractions of bytes in the tiles of `gpu_contraction`, four products at a time.

It is a contraction of words (see `words`): the tiles, the knobs, and the model of time are those of float32, with a
quarter of the steps along the reduction that goes along words. Zero points are subtracted from the sums, as
`zero_points` says. An instruction (`dp4a`) takes four bytes with or without a sign of each operand, and adds up in
32 bits, which is exact. Every GPU of NVIDIA's since sm_61 has it, at the rate of float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ....errors import UnsupportedFunction
from ....ir.kept import kept
from ....ir.workload import Workload
from ....machine.contract import CUDA
from ....machine.gpu import Gpu
from ....space import Space
from ...contract import Variant
from ..contraction import fused_contraction, scheduled_in_tiles, seconds_of_tiles, space_of_tiles
from ..features import analytic_features
from ..streaming import schedule_sums, seconds_of_sums
from ..tiling import Tilings
from ..zero_points import of_bare_bytes
from .words import Words, in_words, with_arithmetic


class GpuDotProducts:
    """The sketch that this module describes."""

    name: ClassVar[str] = "gpu_dot_products"
    max_error: ClassVar[float] = 0.0

    def speedup_bound(self, workload: Workload, target: Gpu) -> float:
        """See `Bounded`: an instruction does four products."""
        return 4.0

    def space(self, workload: Workload, target: Gpu) -> Space | None:
        """The tilings of a contraction of words, as `GpuContraction` has them; None for other functions and devices."""
        if target.device != CUDA:
            return None
        try:
            fused = _words(workload).fused
        except UnsupportedFunction:
            return None
        return space_of_tiles(self.name, fused, target)

    def features(self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The seven of `analytic_features`, shape (n, 7), of n configurations; its operations are those of words."""
        return analytic_features(
            Tilings.of(_words(workload).fused.axes, knobs), target, knobs["parts"], knobs["stages"]
        )

    def estimate(self, workload: Workload, target: Gpu, knobs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The expected seconds of n configurations, shape (n,)."""
        before = sum(seconds_of_sums(each, target) for each in of_bare_bytes(workload).before)
        words = _words(workload)
        widths = {f"fetch{operand}": knobs[f"fetch{operand}"] / loads for operand, loads in enumerate(words.loads)}
        return seconds_of_tiles(words.fused, target, {**knobs, **widths}) + before

    def apply(self, workload: Workload, target: Gpu, config: Mapping[str, Any]) -> Variant:
        """The schedule at a configuration."""
        bare = of_bare_bytes(workload)
        main = bare.with_sums(scheduled_in_tiles(_words(workload).fused, target, config), schedule_sums)
        return Variant(main, bare.transforms, partial(with_arithmetic, main))


@kept
def _words(workload: Workload) -> Words:
    """The contraction of words that a function is."""
    return in_words(fused_contraction(of_bare_bytes(workload).graph))
