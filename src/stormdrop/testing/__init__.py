"""Conformance suites: whoever adds a space, a search or a measurer runs the suite of its contract against it.

Each suite is a class of tests with one method to override, which makes the thing under test; a test module
inherits from it under a name that starts with `Test`. The functions behind it can also be called directly.
"""

from .measurers import MeasurerConformance
from .searches import SearchConformance, drive, objective_of
from .spaces import SpaceConformance, check_knob, check_space

__all__ = [
    "MeasurerConformance",
    "SearchConformance",
    "SpaceConformance",
    "check_knob",
    "check_space",
    "drive",
    "objective_of",
]
