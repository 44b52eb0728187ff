from collections.abc import Sequence

import numpy as np

from stormdrop.search import Search, create
from stormdrop.space import Space
from stormdrop.testing import SearchConformance


class TestRandom(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator) -> Search:
        return create("random", spaces, rng)


class TestGrid(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator) -> Search:
        return create("grid", spaces, rng)


class TestDroplet(SearchConformance):
    asks_again = True

    def make(self, spaces: Sequence[Space], rng: np.random.Generator) -> Search:
        return create("droplet", spaces, rng)


class TestDropletStudent(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator) -> Search:
        return create("droplet", spaces, rng, test="student")


class TestDropletRank(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator) -> Search:
        return create("droplet", spaces, rng, test="rank", repeats=5)


class TestDropletMeans(SearchConformance):
    def make(self, spaces: Sequence[Space], rng: np.random.Generator) -> Search:
        return create("droplet", spaces, rng, test="none", speculation=False)
