"""The last decision of a tuning: the fastest few candidates race with the default.

    entrants -> (the measurer's race) -> decide

The fastest candidate of a search is the best of many, and it was measured at another time than its rivals. Only
samples that are taken in turns, with a correction for choosing among several, say whether it is faster than what would
be used without tuning.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..statistics import Interval, plainly_faster, plainly_faster_beside_load, ratio_interval
from ..trial import Candidate

RACE_SECONDS = 1.0
"""Wall seconds that a race should take at most. This much of a time budget is kept for it."""

FINALISTS = 3
"""How many of the candidates that a search measured take part, by their samples."""

ALPHA = 0.05
"""The probability of a wrong decision, for all comparisons of a race together; in a model, of all its races."""


@dataclass(frozen=True)
class RaceResult:
    """How a race ended.

    Attributes:
        winner: The candidate to use.
        seconds: The winner's samples.
        default: The default's samples; None if the default does not work.
        speedup: The default's time over the winner's. None if there is nothing to compare with, if the difference is
            not significant (the winner is then the default, or faster beyond doubt), or if the race was disturbed.
        compared: The same ratio, whether or not it is claimed. None if the winner is the default, or if the default
            does not work.
    """

    winner: Candidate
    seconds: Sequence[float]
    default: Sequence[float] | None
    speedup: Interval | None
    compared: Interval | None

    @property
    def default_median(self) -> float | None:
        """The default's median in seconds; None if the default does not work."""
        return None if self.default is None else statistics.median(self.default)


def entrants(
    default: Candidate | None, ranked: Sequence[Candidate], incumbent: Candidate | None, rival: Candidate | None
) -> list[Candidate]:
    """Which candidates race.

    Args:
        default: The default, which comes first; None if it is known to fail.
        ranked: The working candidates of the search, the fastest first. The first `FINALISTS` race.
        incumbent: The candidate that the search itself holds for the best.
        rival: An earlier result.
    """
    named = [candidate for candidate in (default, incumbent, rival) if candidate is not None]
    return list(dict.fromkeys([*named, *ranked[:FINALISTS]]))


def decide(
    default: Candidate, samples: Mapping[Candidate, Sequence[float]], *, disturbed: bool = False, races: int = 1
) -> RaceResult | None:
    """Decides a race.

    The winner is the fastest candidate that is significantly faster than the default. The confidence is 95% for all
    comparisons of all races together (Bonferroni: with r races of k challengers each, an interval has a confidence of
    1 - 0.05 / (r k)). A candidate that is faster beyond doubt wins, too. In the race of a large model, a kernel of
    20 ms has only three rounds: their interval is so wide that the default would win over a candidate that takes a
    third of its time (`plainly_faster`). Beside other load single rounds take several times as long, and make the
    interval wide however many there are (`plainly_faster_beside_load`). Nothing is claimed for such a winner. If
    no candidate is faster in either way, the default wins. If the default does not work, the fastest candidate wins.

    Args:
        default: The candidate that the others are compared with.
        samples: For each candidate that worked, its seconds in each round.
        disturbed: Whether something else used the machine. The best guess still wins, but nothing is claimed for it.
        races: The number of races whose decisions belong together, as those of the kernels of a model.

    Returns:
        The result; None if no candidate worked.
    """
    if not samples:
        return None
    median = {candidate: statistics.median(times) for candidate, times in samples.items()}
    base = samples.get(default)
    if base is None:
        fastest = min(median, key=median.__getitem__)
        return RaceResult(fastest, samples[fastest], None, None, None)
    alpha = ALPHA / (races * max(1, len(samples) - 1))
    others = {candidate: times for candidate, times in samples.items() if candidate != default}
    faster = [candidate for candidate, times in others.items() if is_faster(times, base, alpha, disturbed)]
    winner = min(faster, key=median.__getitem__, default=default)
    ratio = None if winner == default else ratio_interval(base, samples[winner], 1 - alpha)
    claimed = None if disturbed or ratio is None or ratio.low <= 1 else ratio
    return RaceResult(winner, samples[winner], base, claimed, ratio)


def is_faster(challenger: Sequence[float], incumbent: Sequence[float], alpha: float, disturbed: bool) -> bool:
    """Whether a schedule is faster than another one in interleaved rounds: significantly, or beyond doubt.

    Args:
        challenger: Its seconds, one per round.
        incumbent: The seconds of the other one in the same rounds.
        alpha: The probability to be wrong.
        disturbed: Whether something else used the machine.
    """
    beyond_doubt = plainly_faster_beside_load if disturbed else plainly_faster
    return ratio_interval(incumbent, challenger, 1 - alpha).low > 1 or beyond_doubt(challenger, incumbent, alpha)
