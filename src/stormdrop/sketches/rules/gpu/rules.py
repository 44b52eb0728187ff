"""The rules for a GPU, in the order in which they are tried on each block.

They are those that Ansor has for GPUs, which the paper lists in Figure 3. Skipping a block is what happens where no
rule applies. Ansor's special compute location is not among them: it puts the block that Winograd's inverse transform
reads inside of that transform's loops, and here the block has a kernel of its own.
"""

from __future__ import annotations

from ...gpu.limits import UNROLL
from ..contract import Rule
from ..inline import InlineAll
from ..simplify import SimplifyTensorOnGpu
from ..unroll import Unroll
from .bind import Bind
from .cross_thread import CrossThreadReduction, FuseReduction
from .gpu_tiling import CacheRead, CacheRegisters, TileOnGpu

GPU_RULES: tuple[Rule, ...] = (
    # Structure
    InlineAll(),
    CrossThreadReduction(),
    CacheRegisters(),
    SimplifyTensorOnGpu(),
    TileOnGpu(),
    CacheRead(),
    FuseReduction(),
    # Annotations
    Bind(),
    Unroll(UNROLL),
)
