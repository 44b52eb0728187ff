"""Sketches that rules derive from a workload, as in Ansor: for functions without a sketch, and for comparisons.

    derive       derives the sketches of a workload
    CPU_RULES    the rules for a CPU, in the order in which they are tried on each block
    GPU_RULES    the rules for a GPU, in their order
    Rule         the base class of a rule of your own, which says whether it `Applies` and works on a `State`
    blocks       what a rule can ask about the blocks of a schedule

In this package:

contract.py                   what a rule is, and the state of a derivation
derivation.py                 from a workload to its sketches
blocks.py                     what a rule can ask about the blocks of a schedule
cpu/, gpu/                    the rules for a CPU and for a GPU
inline.py                     blocks that are computed where they are read
simplify.py                   blocks that multiply by constant matrices
cache_write.py, registers.py  a buffer for a contraction; on a GPU, sums in registers
unroll.py                     loops that are unrolled

Rules and their order are those of Figures 3 and 5 of the paper on Droplet Search in Ansor. As there, tile sizes are
perfect factors of extents. docs/how-to/write-a-schedule.md says how to write a rule.
"""

from . import blocks
from .contract import Annotation, Applies, Nest, Place, Rule, State
from .cpu.rules import CPU_RULES
from .derivation import derive
from .gpu.rules import GPU_RULES

__all__ = [
    "CPU_RULES",
    "GPU_RULES",
    "Annotation",
    "Applies",
    "Nest",
    "Place",
    "Rule",
    "State",
    "blocks",
    "derive",
]
