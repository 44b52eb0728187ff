"""NoSE: an evolutionary algorithm whose elite is picked by a non-parametric surrogate model.

Source: the NoSE paper, section III-B, in its symbols; the numbers are those of section V-D. The fitness f(c) is the
measured speed, 0 for a failure. P_0 is N = 100 random configurations, all of them measured. Then, in each generation t:

1) M = 1.5 N pairs of parents (c_i, c_j) are picked from P_{t-1} by roulette on f.
2) Each pair has an offspring c_m, by single-point crossover and uniform mutation with probability p = 0.3 per gene.
3) The surrogate estimates f^(c_m) by the k = 9 nearest of all observed configurations D = {(c_n, y_n)}:

       w_{c,i} = 1 / d(c, c_i)                                                   (1)
       N_{k,c} = the indices of the k nearest neighbours of c                    (2)
       f^(c)   = sum_{i in N_{k,c}} w_{c,i} y_i  /  sum_{i in N_{k,c}} w_{c,i}   (3)
       d(x, z) = sum_l |x_l - z_l| / (|x_l| + |z_l|)        the Canberra distance (4)

4) The E = 0.3 N offspring with the greatest f^ are the elite. They are measured and added to D.
5) P_t is the N fittest, by f, of P_{t-1} and the elite.

Failures enter D like every observation, with y = 0, so the surrogate learns to avoid their surroundings.

What the paper leaves open, or where this differs from it:

- *Speed* is 1 / seconds, where the seconds are the median of the samples (their mean with `mean`, as TVM reports
  GFLOP/s). This is GFLOP/s up to a factor, and nothing here depends on the factor.
- *x* holds the rank of each knob's value (of each inner factor of a tile), counted from 1 as in the ranked lists of
  the paper's source [22]. With ranks from 0, like AutoTVM's indices, the first value would be as far from the second
  as from the last. On five recorded spaces of GPU kernels the best of 200 evaluations was 9.1% above the optimum with
  ranks from 1, and 11.6% with ranks from 0 (30 seeds, standard error 0.7%).
- *Offspring that are known or outside of their space*, and *several sketches*, are treated as in `genetic`, which has
  the operators: nothing is measured twice, new random points replace offspring that were not found, and the search
  finishes when no point is left. Each sketch has its own D, and so its own distances and neighbours. The offspring of
  all sketches compete for the elite.
- *Starts* are in P_0.
- *D holds the latest `_REMEMBERED` observations of a sketch.* The search costs 0.5 ms per evaluation, and 0.4 us more
  for each observation in D (8 knobs, 10 coordinates), which is 2.6 ms at the bound. The paper's 5,000 evaluations fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import SearchError
from ..surrogate.neighbours import WeightedNeighbours
from ..trial import Candidate, Request
from .contract import GeneratorSearch, Options, Steps, later, limited
from .genetic import Breeder, fitness, fittest

_REMEMBERED = 5_000


@dataclass(frozen=True)
class NoseOptions(Options):
    """The options of `Nose`, with the paper's symbols.

    Args:
        population: N, the candidates of a generation.
        offspring: M / N, where M is the number of pairs of parents.
        elite: E / N, the share of N that is measured per generation.
        mutation: p, the probability that a knob mutates.
        k: The number of neighbours of an estimate.
        repeats: Samples per candidate.
        mean: Whether the fitness is the mean of the samples, not their median.

    Raises:
        SearchError: A value is out of its range.
    """

    population: int = limited(100, ge=1)
    offspring: float = 1.5
    elite: float = 0.3
    mutation: float = limited(0.3, ge=0, le=1)
    k: int = limited(9, ge=1)
    repeats: int = limited(3, ge=1)
    mean: bool = later(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.elite <= self.offspring < math.inf:
            raise SearchError(f"nose needs 0 < elite <= offspring, not {self.elite} and {self.offspring}")


class Nose(GeneratorSearch):
    """NoSE (NoSE paper, section III-B); the module states the deviations.

    It finishes when every point was measured, and never is `converged`. The constructor takes the arguments of
    `GeneratorSearch`.
    """

    name = "nose"
    Options = NoseOptions
    can_ask_ahead = True
    options: NoseOptions

    def steps(self) -> Steps:
        """One batch per generation: P_0, then the elites."""
        o = self.options
        N, M, E = o.population, round(o.offspring * o.population), max(round(o.elite * o.population), 1)
        breeder = Breeder(self.spaces, self.rng, o.mutation)
        P: dict[Candidate, float] = {}
        D = {space.name: WeightedNeighbours(o.k, _REMEMBERED) for space in self.spaces}
        batch = breeder.fill(self.knowledge.starts, N)  # P_0, then the elite of each generation
        while batch:
            trials = yield [Request(c, o.repeats) for c in batch]
            f = {trial.candidate: fitness(trial, o.mean) for trial in trials}
            for c, y in f.items():
                D[c.sketch].observe(_ranks(c), y)
            P = fittest(P | f, N)  # step 5
            offspring = breeder.breed(P, M)  # steps 1 and 2
            batch = breeder.fill(fittest(_estimates(D, offspring), E), E)  # steps 3 and 4: the elite


def _estimates(D: dict[str, WeightedNeighbours], offspring: Sequence[Candidate]) -> dict[Candidate, float]:
    """f^ of each offspring, by its neighbours in its own sketch."""
    f_hat: dict[Candidate, float] = {}
    for sketch, neighbours in D.items():
        members = [c for c in offspring if c.sketch == sketch]
        if members:
            f_hat.update(zip(members, neighbours.estimate([_ranks(c) for c in members]).tolist(), strict=True))
    return f_hat


def _ranks(c: Candidate) -> tuple[int, ...]:
    """`x` of equation 4."""
    return tuple(coordinate + 1 for coordinate in c.point)
