"""Every search that exists passes the suite, with its defaults; droplet also with its other tests."""

from collections.abc import Sequence

import numpy as np

from stormdrop.search import Search, create, names
from stormdrop.space import Ordinal, Space
from stormdrop.testing import SearchConformance


def suite(name: str) -> type[SearchConformance]:
    """The suite for the search of this name."""

    def make(self: SearchConformance, spaces: Sequence[Space], rng: np.random.Generator) -> Search:
        return create(name, spaces, rng)

    search = create(name, [Space("any", [Ordinal("knob", (1, 2))])], np.random.default_rng(0))
    asks_again = bool(getattr(search, "asks_again", False))
    return type(f"Test{name.capitalize()}", (SearchConformance,), {"make": make, "asks_again": asks_again})


for _name in names():
    globals()[f"Test{_name.capitalize()}"] = suite(_name)


class TestDropletStudent(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator) -> Search:
        return create("droplet", spaces, rng, test="student")


class TestDropletRank(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator) -> Search:
        return create("droplet", spaces, rng, test="rank", repeats=5)


class TestDropletMeans(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator) -> Search:
        return create("droplet", spaces, rng, test="none", speculation=False)
