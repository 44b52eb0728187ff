"""Where searches are compared: a recording, or an operator on this machine.

    walk(contender, seed)    one run
    judge(walks)             the best that is known, and how good what led on the way really was

Both know nothing of the other runs: on the machine only the workers are shared, so that no run pays for their start.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..errors import UnsupportedFunction
from ..measure.replay import Recording
from ..space import Space
from ..trial import Candidate, Request
from .search_run import Contender, Walk, walk

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from ..ir.workload import Workload
    from ..measure.local import LocalMeasurer

Times = Sequence[float | None]
"""True seconds of what led, one per lead of a walk; None where nothing worked."""

Optimum = tuple[Candidate, float]
"""The best that is known of a ground, with its seconds."""

_RACE_SECONDS = 20.0  # what the last race on an operator should take at most
_MOST_ROUNDS, _LEAST_ROUNDS = 25, 5
_FAR = 3.0  # times the best: what is as slow as that is not measured again
_MOST_RACED = 32  # of what led, the fastest: a worker holds some more kernels at once


@dataclass(frozen=True)
class Limits:
    """Of each run: distinct candidates, seconds, and whether recordings answer without noise."""

    trials: int
    time: float | None = None
    exact: bool = False


class Arena(Protocol):
    """A ground that searches can be run on."""

    name: str
    spaces: Sequence[Space]

    def walk(self, contender: Contender, seed: int) -> Walk:
        """One run."""

    def judge(self, walks: Sequence[Walk], race: bool) -> tuple[Optimum | None, list[Times]]:
        """The optimum, and the times of each walk. `race` says that there is still time to measure something."""


class RecordedArena:
    """A recording: it knows the time of every candidate, and in every run of a seed has the same noise."""

    def __init__(self, recording: Recording, limits: Limits) -> None:
        self.name = recording.name
        self.spaces: Sequence[Space] = recording.spaces
        self._recording, self._limits = recording, limits

    def walk(self, contender: Contender, seed: int) -> Walk:
        """See `Arena.walk`."""
        search = contender.create(self.spaces, seed)
        with self._recording.measurer(np.random.default_rng([seed, 1]), exact=self._limits.exact) as measurer:
            return walk(search, measurer, self._limits.trials, self._limits.time)

    def judge(self, walks: Sequence[Walk], race: bool) -> tuple[Optimum | None, list[Times]]:
        """The recorded medians."""
        truth = self._recording.truth
        led = [[None if lead.candidate is None else truth(lead.candidate) for lead in each.leads] for each in walks]
        return (self._recording.optimum, self._recording.optimum_seconds), list(led)


class MachineArena:
    """An operator on this machine. All runs share its worker processes; a context manager, for their sake.

    Its optimum is the best of all runs.
    """

    def __init__(self, workload: Workload | PrimFunc, limits: Limits) -> None:
        """Raises `UnsupportedFunction` where no sketch applies."""
        from ..ir.workload import Workload
        from ..machine.cpu import Target
        from ..sketches.registry import sketches_for

        self._workload = workload if isinstance(workload, Workload) else Workload.create("function", workload)
        self._target, self._limits = Target.detect(), limits
        found = sketches_for(self._workload, self._target)
        if not found:
            raise UnsupportedFunction(f"{self._workload.name}: no sketch applies to this function")
        self._sketches = [sketch for sketch, _ in found]
        self.name = self._workload.name
        self.spaces: Sequence[Space] = [space for _, space in found]
        self._warm = False

    def __enter__(self) -> MachineArena:
        from ..measure.pool import WorkerPool

        self._pool = WorkerPool(self._target.cores)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def measurer(self) -> LocalMeasurer:
        """A measurer that has measured nothing yet."""
        from ..measure.local import LocalMeasurer

        return LocalMeasurer(self._workload, self._target, self._sketches, self.spaces, pool=self._pool)

    def walk(self, contender: Contender, seed: int) -> Walk:
        """See `Arena.walk`. The first waits until the workers have loaded TVM: it is not to pay for that."""
        search = contender.create(self.spaces, seed)
        if not self._warm:
            with self.measurer() as measurer:
                list(measurer.measure([Request(Candidate(self.spaces[0].name, self.spaces[0].origin), 1)]))
            self._warm = True
        with self.measurer() as measurer:
            return walk(search, measurer, self._limits.trials, self._limits.time, live=True)

    def judge(self, walks: Sequence[Walk], race: bool) -> tuple[Optimum | None, list[Times]]:
        """Runs are minutes apart, and so are their times: in the end the fastest that led are measured in turns.

        For the others, which are slower anyway, their time in their run has to do.
        """
        known: dict[Candidate, float] = {}
        for candidate in dict.fromkeys(lead.candidate for walked in walks for lead in walked.leads):
            seen = [walked.medians[candidate] for walked in walks if candidate in walked.medians]
            if candidate is not None and seen:
                known[candidate] = statistics.median(seen)
        if race and known:
            ranked = sorted(known.items(), key=lambda each: each[1])
            near = {each: seconds for each, seconds in ranked[:_MOST_RACED] if seconds <= _FAR * ranked[0][1]}
            raced = self._race(near)
            if len(raced) < len(near):  # once more: it may have been the machine, or one that took others with it
                raced |= self._race({each: seconds for each, seconds in near.items() if each not in raced})
            if raced:  # what has stopped working has no time
                known = {each: seconds for each, seconds in known.items() if each not in near} | raced
        times = [[None if lead.candidate is None else known.get(lead.candidate) for lead in w.leads] for w in walks]
        return min(known.items(), key=lambda each: each[1], default=None), list(times)

    def _race(self, entrants: Mapping[Candidate, float]) -> dict[Candidate, float]:
        """Median seconds of those that still work."""
        once = sum(seconds + max(seconds, 2e-3) for seconds in entrants.values())
        rounds = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, int(_RACE_SECONDS / once)))
        with self.measurer() as measurer:
            raced = measurer.race(list(entrants), rounds)
        return {each: statistics.median(found.seconds) for each, found in zip(entrants, raced, strict=True) if found.ok}
