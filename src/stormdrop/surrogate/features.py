"""Features: what a surrogate sees of a candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import SearchError
from ..space import Space
from ..trial import Candidate, Point

Features = Callable[[Sequence[Candidate]], list[NDArray[np.float64]]]
"""Returns one array of shape `(rows, d)` per candidate; d is the same for all candidates of all sketches.

There is one row if the features describe a whole candidate (knob encodings, the seven features of the AF-DS paper).
There is one row per statement if they describe statements (the 164 features of Ansor); a model then adds the scores of
a candidate's rows.
"""


MOST_COLUMNS = 8_192
"""The largest number of columns by which surrogates see candidates."""

Describe = Callable[[Sequence[Point]], NDArray[np.float64]]
"""Returns one row per point of one space: shape `(n, d)`, always with the same d. There is at least one point."""


def knob_encodings(spaces: Sequence[Space]) -> Features:
    """The encodings of the knobs, one row per candidate: the features if nothing describes the kernel."""
    return by_sketch(spaces, [encoded(space) for space in spaces])


def by_sketch(spaces: Sequence[Space], describe: Sequence[Describe]) -> Features:
    """Features with one row per candidate, which the candidate's space describes.

    If there are several sketches, each has its own columns, which are zero for candidates of the others, and one
    more column that is 1 for its own candidates.

    Args:
        spaces: The spaces, one per sketch.
        describe: One description per space.

    Raises:
        SearchError: When the features are computed: there are more than `MOST_COLUMNS` columns.
    """
    widths = [describe_points([space.origin]).shape[1] for describe_points, space in zip(describe, spaces, strict=True)]
    position = {space.name: index for index, space in enumerate(spaces)}
    leading = 0 if len(spaces) == 1 else len(spaces)
    begins = np.cumsum([leading, *widths]).tolist()

    def rows_of(candidates: Sequence[Candidate]) -> list[NDArray[np.float64]]:
        if begins[-1] > MOST_COLUMNS:
            raise too_wide(*position)
        table = np.zeros((len(candidates), begins[-1]))
        sketches = np.array([position[candidate.sketch] for candidate in candidates], dtype=np.int64)
        for sketch in np.unique(sketches).tolist():
            (members,) = np.nonzero(sketches == sketch)
            points = [candidates[index].point for index in members.tolist()]
            table[members, begins[sketch] : begins[sketch + 1]] = describe[sketch](points)
            if leading:
                table[members, sketch] = 1.0
        return [row[None, :] for row in table]

    return rows_of


def too_wide(*spaces: str) -> SearchError:
    """The error if spaces have too many columns for a surrogate."""
    return SearchError(
        f"space {', '.join(spaces)}: the surrogate of this search would see more than {MOST_COLUMNS:,} columns; "
        "choose a search without one, such as random or genetic"
    )


def encoded(space: Space) -> Describe:
    """The encodings of a space's knobs."""
    return space.encodings
