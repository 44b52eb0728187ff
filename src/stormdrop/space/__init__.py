"""What may vary: knobs, and spaces of knobs under constraints."""

from .component import Columnwise
from .description import knob_from
from .knob import Coords, Knob, Value
from .listed import Categorical, Ordinal
from .space import Constraint, Space
from .split import Split
from .tile import Tile

__all__ = [
    "Categorical",
    "Columnwise",
    "Constraint",
    "Coords",
    "Knob",
    "Ordinal",
    "Space",
    "Split",
    "Tile",
    "Value",
    "knob_from",
]
