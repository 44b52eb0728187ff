"""Sketches derived by rules, as Ansor derives them: the general fallback, and the ground to compare with.

    CPU_RULES    the rules for a CPU, in the order in which each block passes them
    derive       the sketches that rules make of a workload

Rules and their order are those of Figures 3 and 5 of the paper on Droplet Search in Ansor; tile sizes factorise
extents perfectly, as there.
"""

from . import blocks
from .contract import Annotation, Applies, Nest, Place, Rule, State
from .cpu import CPU_RULES
from .derivation import derive

__all__ = [
    "CPU_RULES",
    "Annotation",
    "Applies",
    "Nest",
    "Place",
    "Rule",
    "State",
    "blocks",
    "derive",
]
