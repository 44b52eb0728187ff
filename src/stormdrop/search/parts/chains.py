"""Markov chains over the points of spaces, many at once: what `annealing` moves over its model.

Points are kept as arrays of integers, because to change and encode them one by one takes five times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise

import numpy as np
from numpy.typing import NDArray

from ...space import Coords, Space, some_coords
from ...surrogate import Features
from ...trial import Candidate, Point

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

_CACHED = 100_000  # candidates whose features (other than encodings) are cached, as in AutoTVM
_TRIES = (1, 2, 4, 8, 16)  # mutations that are tried at once for each point, until one is inside of the space


class Chains:
    """The Markov chains. `rows` holds their points: one array of shape `(chains, knobs)` per space, see `_Table`.

    Args:
        spaces: The spaces of the candidates.
        candidates: Where the chains start, one chain per candidate.
        features: What a model sees of a candidate; if None, the knobs' encodings.
    """

    def __init__(self, spaces: Sequence[Space], candidates: Sequence[Candidate], features: Features | None) -> None:
        self._tables = [_Table(space) for space in spaces]
        self.rows = [
            table.rows([candidate.point for candidate in candidates if candidate.sketch == table.name])
            for table in self._tables
        ]
        # Of each chain the index of its space and its row there.
        self._places = [(space, row) for space, rows in enumerate(self.rows) for row in range(len(rows))]
        self._features = None if features is None else lru_cache(_CACHED)(lambda candidate: features([candidate])[0])

    def propose(self, rng: np.random.Generator) -> list[Rows]:
        """A random step of each chain."""
        return [table.mutated(rows, rng) for table, rows in zip(self._tables, self.rows, strict=True)]

    def move(self, accepted: NDArray[np.bool_], rows: list[Rows]) -> None:
        """Makes the accepted steps to `rows`; `accepted` is a mask of shape `(chains,)` for all spaces."""
        masks = np.split(accepted, np.cumsum([len(rows_of_space) for rows_of_space in self.rows])[:-1])
        self.rows = [np.where(mask[:, None], new, old) for mask, new, old in zip(masks, rows, self.rows, strict=True)]

    def candidate(self, index: int, rows: list[Rows]) -> Candidate:
        """The candidate of a chain."""
        space, row = self._places[index]
        return Candidate(self._tables[space].name, self._tables[space].point(rows[space][row].tolist()))

    def features(self, rows: list[Rows]) -> list[Array]:
        """One array of shape `(rows, d)` per chain."""
        if self._features is not None:
            return [self._features(self.candidate(index, rows)) for index in range(len(self._places))]
        return list(self._encodings(rows)[:, None, :])

    def _encodings(self, rows: list[Rows]) -> Array:
        """The features of `knob_encodings` for all chains at once: shape `(chains, d)`."""
        blocks = [table.encodings(rows_of_space) for table, rows_of_space in zip(self._tables, rows, strict=True)]
        if len(blocks) == 1:
            return blocks[0]
        wide = np.zeros((len(self._places), len(blocks) + sum(block.shape[1] for block in blocks)))
        top, left = 0, len(blocks)
        for space, block in enumerate(blocks):
            bottom, right = top + block.shape[0], left + block.shape[1]
            wide[top:bottom, space] = 1.0
            wide[top:bottom, left:right] = block
            top, left = bottom, right
        return wide


class _Table:
    """A space as integers: a row is a point, a column is a knob, an entry is the rank of the knob's value.

    Of a knob with too many values to be listed, the ranks of a random part are known, and those of all points that come
    in from outside.
    """

    def __init__(self, space: Space) -> None:
        self.name = space.name
        self._space = space
        self._coords = [some_coords(knob, len(space.knobs)) for knob in space.knobs]
        self._ranks = [{coords: rank for rank, coords in enumerate(known)} for known in self._coords]
        self._values = [
            [knob.value(coords) for coords in known] for knob, known in zip(space.knobs, self._coords, strict=True)
        ]
        self._codes = [
            np.array([knob.encode(coords) for coords in known])
            for knob, known in zip(space.knobs, self._coords, strict=True)
        ]
        self._counts = np.array([len(known) for known in self._coords], dtype=np.intp)
        self._free = np.flatnonzero(self._counts > 1)  # the knobs that have another value
        position = {knob.name: index for index, knob in enumerate(space.knobs)}
        self._tests = [
            (constraint.test, [position[name] for name in constraint.knobs]) for constraint in space.constraints
        ]
        ends = accumulate((len(knob.sizes) for knob in space.knobs), initial=0)
        self._slices = [slice(begin, end) for begin, end in pairwise(ends)]  # of each knob in a point

    def rows(self, points: Sequence[Point]) -> Rows:
        """The rows of points, shape `(n, knobs)`."""
        rows = [[self._rank(knob, point[place]) for knob, place in enumerate(self._slices)] for point in points]
        return np.array(rows, np.intp).reshape(len(points), len(self._slices))

    def _rank(self, knob: int, coords: Coords) -> int:
        """The rank of a knob's value, which gets one if it is not listed."""
        rank = self._ranks[knob].setdefault(coords, len(self._coords[knob]))
        if rank == len(self._coords[knob]):
            of_space = self._space.knobs[knob]
            self._coords[knob].append(coords)
            self._values[knob].append(of_space.value(coords))
            self._codes[knob] = np.vstack([self._codes[knob], of_space.encode(coords)])
            self._counts[knob] += 1
        return rank

    def point(self, row: list[int]) -> Point:
        """The point of a row."""
        return tuple(chain.from_iterable(coords[rank] for coords, rank in zip(self._coords, row, strict=True)))

    def encodings(self, rows: Rows) -> Array:
        """What `Space.encodings` returns for the points of the rows, shape `(n, d)`."""
        codes = [code[column] for code, column in zip(self._codes, rows.T, strict=True)]
        return np.hstack([np.zeros((len(rows), 0)), *codes])

    def mutated(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """For each row another one that differs in one knob; the knob and its new value are drawn uniformly.

        This is `Space.mutate` for many rows, with another order of draws. The space itself mutates the rows for which
        all draws were outside.
        """
        mutated: Rows = rows.copy()
        todo = np.arange(len(rows))
        for tries in _TRIES if len(self._free) else ():
            sources = np.repeat(todo, tries)
            changed = self._free[rng.integers(len(self._free), size=len(sources))]
            counts = self._counts[changed]
            drawn, index = rows[sources], np.arange(len(sources))
            drawn[index, changed] = (drawn[index, changed] + rng.integers(1, counts)) % counts
            inside = self._inside(drawn, changed)
            mutated[sources[inside]] = drawn[inside]
            todo = np.setdiff1d(todo, sources[inside])
            if not len(todo):
                break
        for row in todo.tolist():
            mutated[row] = self.rows([self._space.mutate(self.point(rows[row].tolist()), rng)])[0]
        return mutated

    def _inside(self, rows: Rows, changed: Rows) -> NDArray[np.bool_]:
        """Which rows are inside of the space, if all were before one knob of each row (`changed`) was changed."""
        inside = np.ones(len(rows), bool)
        for predicate, used in self._tests:
            due = np.flatnonzero(inside & (changed[:, None] == used).any(axis=1))
            columns = [map(self._values[knob].__getitem__, rows[due, knob].tolist()) for knob in used]
            inside[due] = list(map(predicate, *columns))
        return inside
