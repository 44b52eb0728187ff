"""What a surrogate sees of a candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..space import Space
from ..trial import Candidate

Features = Callable[[Sequence[Candidate]], list[NDArray[np.float64]]]
"""One array of shape `(rows, d)` per candidate; d is the same for all candidates of all sketches.

One row where the features describe a whole candidate (knob encodings, the seven of the AF-DS paper), a row per
statement where they describe statements (the 164 of Ansor): a model then sums up the scores of a candidate's rows.
"""


def knob_encodings(spaces: Sequence[Space]) -> Features:
    """The encodings of the knobs, one row per candidate: what there is without a description of the kernel.

    With several sketches each has columns of its own, zero for candidates of the others, and a column that says
    which one it is.
    """
    widths = [len(space.encode(space.origin)) for space in spaces]
    if len(spaces) == 1:
        return lambda candidates: [spaces[0].encode(candidate.point)[None, :] for candidate in candidates]
    index = {space.name: i for i, space in enumerate(spaces)}
    begins = np.cumsum([len(spaces), *widths]).tolist()

    def encode(candidates: Sequence[Candidate]) -> list[NDArray[np.float64]]:
        rows = np.zeros((len(candidates), begins[-1]))
        for row, candidate in zip(rows, candidates, strict=True):
            at = index[candidate.sketch]
            row[at] = 1.0
            row[begins[at] : begins[at + 1]] = spaces[at].encode(candidate.point)
        return [row[None, :] for row in rows]

    return encode
