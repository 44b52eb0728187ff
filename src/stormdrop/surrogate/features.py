"""What a surrogate sees of a candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..space import Space
from ..trial import Candidate, Point

Features = Callable[[Sequence[Candidate]], list[NDArray[np.float64]]]
"""One array of shape `(rows, d)` per candidate; d is the same for all candidates of all sketches.

One row where the features describe a whole candidate (knob encodings, the seven of the AF-DS paper), a row per
statement where they describe statements (the 164 of Ansor): a model then sums up the scores of a candidate's rows.
"""


Describe = Callable[[Sequence[Point]], NDArray[np.float64]]
"""Some points of one space, at least one, as rows: shape `(n, d)`, the same d always."""


def knob_encodings(spaces: Sequence[Space]) -> Features:
    """The encodings of the knobs, one row per candidate: what there is without a description of the kernel."""
    return by_sketch(spaces, [encoded(space) for space in spaces])


def by_sketch(spaces: Sequence[Space], describe: Sequence[Describe]) -> Features:
    """One row per candidate, as the space that it is a point of describes it.

    With several sketches each has columns of its own, zero for candidates of the others, and a column that says
    which one it is.
    """
    widths = [describe[at]([space.origin]).shape[1] for at, space in enumerate(spaces)]
    index = {space.name: at for at, space in enumerate(spaces)}
    leading = 0 if len(spaces) == 1 else len(spaces)
    begins = np.cumsum([leading, *widths]).tolist()

    def rows_of(candidates: Sequence[Candidate]) -> list[NDArray[np.float64]]:
        table = np.zeros((len(candidates), begins[-1]))
        owners = np.array([index[candidate.sketch] for candidate in candidates], dtype=np.int64)
        for at in np.unique(owners).tolist():
            (own,) = np.nonzero(owners == at)
            table[own, begins[at] : begins[at + 1]] = describe[at]([candidates[i].point for i in own.tolist()])
            if leading:
                table[own, at] = 1.0
        return [row[None, :] for row in table]

    return rows_of


def encoded(space: Space) -> Describe:
    """The encodings of a space's knobs."""
    return space.encodings
