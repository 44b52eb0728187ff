"""What may vary in a schedule: knobs, and spaces of knobs under constraints."""

from .component import Columnwise
from .constraint import Constraint
from .description import knob_from
from .knob import Coords, Knob, Value
from .listed import Categorical, Ordinal
from .space import Space
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
