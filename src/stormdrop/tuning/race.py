"""The last decision of a tuning: the fastest few and the default, raced side by side.

    enter -> rounds -> (a measurer's race) -> decide

What was fastest in a search is a best of many, measured at another time than its rivals. Only samples taken in
turns, and a correction for choosing among several, say whether it is faster than what is used untuned.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..statistics import Interval, ratio_interval
from ..trial import Candidate

RACE_SECONDS = 1.0
"""What a race should take at most; of a time budget, this much is kept for it."""

LEAST_ROUNDS = 3
"""Rounds of a race, however long they take."""

_MOST_ROUNDS = 15
FINALISTS = 3
"""How many of those that a search measured race, by their samples."""

ALPHA = 0.05
"""Of all comparisons of a decision together."""


@dataclass(frozen=True)
class Final:
    """How a race ended: the winner with its samples (seconds), those of the default, and their ratio.

    `default` is None where the default does not work. `speedup` is None where there is nothing to compare with, or no
    significant difference: then the winner is the default.
    """

    winner: Candidate
    seconds: Sequence[float]
    default: Sequence[float] | None
    speedup: Interval | None


def enter(
    default: Candidate | None, ranked: Sequence[Candidate], incumbent: Candidate | None, recorded: Candidate | None
) -> list[Candidate]:
    """Who races: the default first, what the search itself ended at, an earlier result, the fastest few.

    `default` is None where it is known to fail; `ranked` are the working candidates of a search, fastest first.
    """
    given = [each for each in (default, incumbent, recorded) if each is not None]
    return list(dict.fromkeys([*given, *ranked[:FINALISTS]]))


def rounds(turns: Sequence[float], seconds: float = RACE_SECONDS) -> int:
    """Rounds that fit into `seconds`, each of turns that take so long (wall seconds): 3 at least, 15 at most."""
    return int(max(LEAST_ROUNDS, min(_MOST_ROUNDS, seconds / max(sum(turns), 1e-9))))


def decide(default: Candidate, raced: Mapping[Candidate, Sequence[float]]) -> Final | None:
    """The winner of a race, given the samples by round of those that worked; None where nobody did.

    The fastest of those that are significantly faster than the default, at 95% over all of them together (Bonferroni:
    each interval has 1 - 0.05 / k, k being the number of challengers); the default where nobody is; the fastest where
    the default does not work.
    """
    if not raced:
        return None
    median = {candidate: statistics.median(samples) for candidate, samples in raced.items()}
    base = raced.get(default)
    if base is None:
        fastest = min(median, key=lambda each: median[each])
        return Final(fastest, raced[fastest], None, None)
    confidence = 1 - ALPHA / max(1, len(raced) - 1)
    ratios = {each: ratio_interval(base, raced[each], confidence) for each in raced if each != default}
    faster = [each for each, ratio in ratios.items() if ratio.low > 1]
    winner = min(faster, key=lambda each: median[each], default=default)
    return Final(winner, raced[winner], base, ratios.get(winner))
