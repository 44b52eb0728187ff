"""The options of Droplet Search; `droplet` explains what each of them changes, `presets` has the paper's values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import SearchError
from ..contract import Options, later, limited
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

    test: str = limited("ours", among=TESTS)
    confidence: float = limited(0.95, ge=0.5, lt=1)
    repeats: int = limited(3, ge=1)
    speculation: bool = True
    max_iterations: int | None = limited(None, ge=1)
    contests: int = limited(8, ge=0)
    restarts: int = limited(64, ge=0)
    drop: float = limited(2.0, ge=1, lt=math.inf)
    sides: int = later(1, among=(1, 2))
    neighbourhood: str = later("all", among=NEIGHBOURHOODS)
    origin: str = later("default", among=ORIGINS)
    whole_set: bool = later(False)
    revisit: bool = later(True)
    candidates: int = later(1, ge=1)
    prune: float = later(0.0, ge=0, lt=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.test == "rank" and self.repeats < (least := least_repeats(self.confidence, self.sides)):
            raise SearchError(
                f"droplet's rank test can never accept with {self.repeats} samples at confidence {self.confidence}; "
                f"use repeats={least} or more"
            )
