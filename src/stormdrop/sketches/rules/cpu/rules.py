"""The rules for a CPU, in the order in which they are tried on each block."""

from __future__ import annotations

from ..cache_write import CacheWrite
from ..contract import Rule
from ..inline import Inline
from ..simplify import SimplifyTensor
from ..unroll import Unroll
from .location import ComputeLocation
from .packing import Pack
from .parallel import Parallel
from .rfactor import FactorLanes, FactorTasks
from .tiling import Tile, TileAndFuse
from .vectorise import Vectorise

CPU_RULES: tuple[Rule, ...] = (
    # Structure
    Inline(),
    SimplifyTensor(),
    FactorTasks(),
    FactorLanes(),
    CacheWrite(),
    TileAndFuse(),
    Tile(),
    Pack(),
    # Annotations
    ComputeLocation(),
    Vectorise(),
    Parallel(),
    Unroll(),
)
