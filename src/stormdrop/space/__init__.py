"""What may vary in a schedule: knobs, and spaces of knobs under constraints.

space.py                      a space: knobs, constraints, an origin; its fingerprint
knob.py                       what a knob is
listed.py, tile.py, split.py  the knobs
constraint.py, component.py   constraints, and the groups of knobs that they tie together
coordinates.py, decisions.py  steps from a point: the papers' neighbours, Ansor's mutations
description.py                knobs from their descriptions
analytic.py                   landscapes with a known optimum
"""

from .component import NoneFound
from .constraint import Columnwise, Constraint
from .coordinates import coordinate_beyond, coordinate_hops, coordinate_neighbours, first_fastest, lowest
from .decisions import mutated_as_ansor
from .description import knob_from
from .knob import Coords, Knob, Value, some_coords
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
    "NoneFound",
    "Ordinal",
    "Space",
    "Split",
    "Tile",
    "Value",
    "coordinate_beyond",
    "coordinate_hops",
    "coordinate_neighbours",
    "first_fastest",
    "knob_from",
    "lowest",
    "mutated_as_ansor",
    "some_coords",
]
