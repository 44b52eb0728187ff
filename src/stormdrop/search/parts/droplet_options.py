"""The options of Droplet Search; `droplet` explains what each of them changes, `presets` has the paper's values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import SearchError, hint
from ..contract import Options, later
from .judge import least_repeats

TESTS = ("ours", "student", "rank", "none")
NEIGHBOURHOODS = ("all", "coordinates")
ORIGINS = ("default", "lowest")


@dataclass(frozen=True)
class DropletOptions(Options):
    """The options of `Droplet`.

    Args:
        test: The test that decides a move: "ours", "student", "rank" or "none".
        confidence: The confidence of a move.
        sides: 1 or 2: whether the test of a move has one side or two.
        repeats: Samples per request.
        speculation: Whether batches are filled up to the caller's width.
        max_iterations: The largest number of iterations per sketch; None if there is no limit.
        contests: How often a decision may ask for more samples of two known candidates; for "ours" only.
        restarts: The number of random points to try if the origin and all its neighbours fail.
        drop: A sketch is dropped if the time of its best candidate is this many times that of the best so far.
        neighbourhood: "all" or "coordinates": with the steps between the levels of a tile and between categories, or
            single coordinates only.
        origin: "default" or "lowest": whether a descent starts at the default schedule or at the lowest point.
        whole_set: Whether speculation adds all neighbours of its point, not only as many as fit into the width.
        revisit: Whether neighbours that were measured in an earlier batch are targets.
        candidates: How many of the best points have their neighbourhoods measured in one batch.
        prune: The share of the new points of a batch that the cost model leaves out.

    Raises:
        SearchError: A value is out of its range, or the rank test could never accept with so few samples.
    """

    test: str = "ours"
    confidence: float = 0.95
    repeats: int = 3
    speculation: bool = True
    max_iterations: int | None = None
    contests: int = 8
    restarts: int = 64
    drop: float = 2.0
    sides: int = later(1)
    neighbourhood: str = later("all")
    origin: str = later("default")
    whole_set: bool = later(False)
    revisit: bool = later(True)
    candidates: int = later(1)
    prune: float = later(0.0)

    def __post_init__(self) -> None:
        for name, known in (("test", TESTS), ("neighbourhood", NEIGHBOURHOODS), ("origin", ORIGINS)):
            if (value := getattr(self, name)) not in known:
                raise SearchError(f"droplet has no {name} {value!r}; {hint(value, known)}")
        if self.sides not in (1, 2):
            raise SearchError(f"droplet's test has 1 or 2 sides, not {self.sides}")
        if self.candidates < 1 or not 0 <= self.prune < 1:
            raise SearchError("droplet needs candidates >= 1 and prune from 0 to less than 1")
        if not 0.5 <= self.confidence < 1:
            raise SearchError(f"droplet's confidence must be at least 0.5 and below 1, not {self.confidence}")
        if self.repeats < 1 or self.contests < 0 or self.restarts < 0 or not 1 <= self.drop < math.inf:
            raise SearchError("droplet needs repeats >= 1, contests >= 0, restarts >= 0 and drop >= 1")
        if self.max_iterations is not None and self.max_iterations < 1:
            raise SearchError(f"droplet's max_iterations must be at least 1, not {self.max_iterations}")
        if self.test == "rank" and self.repeats < (least := least_repeats(self.confidence, self.sides)):
            raise SearchError(
                f"droplet's rank test can never accept with {self.repeats} samples at confidence {self.confidence}; "
                f"use repeats={least} or more"
            )
