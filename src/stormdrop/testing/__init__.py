"""Conformance suites for everyone who adds a space, a search, a measurer, a store or a sketch.

Each contract has a suite. An implementation that passes the suite of its contract works with the rest of stormdrop.

===========  ==================================  =============================================================
what         suite                               what to give it
===========  ==================================  =============================================================
a search     `searches.SearchConformance`        `make(spaces, rng, knowledge)` returns a new search
a measurer   `measurers.MeasurerConformance`     `make()` returns a new measurer with candidates for it
a space      `spaces.SpaceConformance`           `make_spaces()` returns spaces small enough to enumerate
a knob       `spaces.check_knob`                 the knob and a random generator
a store      `stores.CHECKS`,                    each check takes a function that opens the database of a name
             `stores.PERSISTENCE_CHECKS`
a sketch     `sketches.check_sketch`             the sketch, a workload, a target and a number of random points
===========  ==================================  =============================================================

A suite whose name ends in `Conformance` is a class of tests with one abstract method. To use it, write a class in a
test module that inherits from it, has a name that starts with `Test`, and returns the thing under test from that
method. pytest then runs all rules of the contract. The other suites are functions that raise AssertionError: call them
in a test.

searches.py, measurers.py, spaces.py, stores.py, sketches.py  the suites

`drive` runs a search on an objective without a machine, and `objective_of` makes such an objective from a formula.
`sketches` imports TVM and is therefore not imported by this package.

Example:
    A search of your own passes the suite of searches:

    >>> from stormdrop.search import create
    >>> class TestGrid(SearchConformance):
    ...     def make(self, spaces, rng, knowledge=None):
    ...         return create("grid", spaces, rng, knowledge)

    pytest runs every rule of `TestGrid`. A rule can also be called by itself; it raises AssertionError if it is broken:

    >>> TestGrid().test_it_finishes_on_small_grounds()

    A store of your own passes the checks of stores:

    >>> from stormdrop.records import open_store
    >>> from stormdrop.testing import stores
    >>> for check in stores.CHECKS:
    ...     check(lambda name: open_store("sqlite://"))
"""

from .measurers import MeasurerCase, MeasurerConformance
from .searches import SearchConformance, drive, objective_of
from .spaces import SpaceConformance, check_knob, check_space

__all__ = [
    "MeasurerCase",
    "MeasurerConformance",
    "SearchConformance",
    "SpaceConformance",
    "check_knob",
    "check_space",
    "drive",
    "objective_of",
]
