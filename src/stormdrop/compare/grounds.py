"""Grounds: what searches are compared on. A ground is a recording, or an operator on this machine.

    run(search, seed)     one run of a search
    true_times(traces)    the best candidate that is known, and how good the leaders of each run really were

No run knows of another. On the machine they share only the worker processes, so that no run pays for their start.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..errors import UnsupportedFunction
from ..measure.replay import Recording
from ..measure.timing import SAMPLE_SECONDS, rounds_within
from ..search import Knowledge, needs_prior
from ..space import Space
from ..trial import Candidate, Request
from ..tuning.trace import Trace
from .search_run import run_search
from .search_spec import SearchSpec

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from ..ir.workload import Workload
    from ..measure.local import LocalMeasurer

Times = Sequence[float | None]
"""True seconds of the leaders of a trace, one per lead; None if nothing worked."""

Optimum = tuple[Candidate, float]
"""The best candidate that is known of a ground, with its seconds."""

_RACE_SECONDS = 20.0  # that the last race on an operator should take at most
_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 25
_SLOW = 3.0  # times the best: a leader that is slower is not measured again
_MOST_RACED = 32  # leaders that race, the fastest ones: a worker holds 40 kernels at once


@dataclass(frozen=True)
class Limits:
    """Bounds of each run.

    Attributes:
        trials: The most distinct candidates.
        time: The most seconds; None is no bound.
        exact: Whether recordings answer without noise.
    """

    trials: int
    time: float | None = None
    exact: bool = False


class Ground(Protocol):
    """Something that searches can be run on."""

    name: str
    spaces: Sequence[Space]

    def run(self, search: SearchSpec, seed: int) -> Trace:
        """One run of a search."""

    def true_times(self, traces: Sequence[Trace], race: bool) -> tuple[Optimum | None, list[Times]]:
        """The optimum, and the true times of the leaders of each trace.

        Args:
            traces: The runs on this ground.
            race: Whether there is still time to measure something.
        """


class RecordedGround:
    """A recording. It knows the time of every candidate, and every run from one seed has the same noise."""

    def __init__(self, recording: Recording, limits: Limits) -> None:
        self.name = recording.name
        self.spaces: Sequence[Space] = recording.spaces
        self._recording, self._limits = recording, limits

    def run(self, search: SearchSpec, seed: int) -> Trace:
        """See `Ground.run`."""
        with self._recording.measurer(np.random.default_rng([seed, 1]), exact=self._limits.exact) as measurer:
            return run_search(search.create(self.spaces, seed), measurer, self._limits.trials, self._limits.time)

    def true_times(self, traces: Sequence[Trace], race: bool) -> tuple[Optimum | None, list[Times]]:
        """The recorded medians."""
        truth = self._recording.truth
        times = [
            [None if lead.candidate is None else truth(lead.candidate) for lead in trace.leads] for trace in traces
        ]
        return (self._recording.optimum, self._recording.optimum_seconds), list(times)


class MachineGround:
    """An operator on this machine. All runs share its worker processes: use it as a context.

    Its optimum is the best of all runs.
    """

    def __init__(self, workload: Workload | PrimFunc, limits: Limits) -> None:
        """Raises `UnsupportedFunction` if no sketch applies."""
        from ..ir.workload import Workload
        from ..machine.cpu import Cpu
        from ..sketches import knowledge
        from ..sketches.registry import sketches_for

        self._workload = workload if isinstance(workload, Workload) else Workload.create("function", workload)
        self._target, self._limits = Cpu.detect(), limits
        sketches = sketches_for(self._workload, self._target)
        if not sketches:
            raise UnsupportedFunction(f"{self._workload.name}: no sketch applies to this function")
        self._sketches = sketches
        prior = knowledge.prior(sketches, self._workload, self._target)
        self._knowledge = Knowledge(prior=prior, unit=knowledge.unit(self._target))
        self.name = self._workload.name
        self.spaces: Sequence[Space] = [space for _, space in sketches]
        self._warm = False

    def __enter__(self) -> MachineGround:
        from ..measure.pool.pool import WorkerPool

        self._pool = WorkerPool(self._target.cores)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def measurer(self) -> LocalMeasurer:
        """A measurer that has measured nothing yet."""
        from ..measure.contract import KernelSetup
        from ..measure.local import LocalMeasurer

        return LocalMeasurer(KernelSetup(self._workload, self._target, self._sketches), pool=self._pool)

    def run(self, search: SearchSpec, seed: int) -> Trace:
        """See `Ground.run`. The first run waits until the workers have loaded TVM: that is no cost of its search."""
        created = search.create(self.spaces, seed, self._knowledge if needs_prior(search.name) else None)
        if not self._warm:
            with self.measurer() as measurer:
                list(measurer.measure([Request(Candidate(self.spaces[0].name, self.spaces[0].origin), 1)]))
            self._warm = True
        with self.measurer() as measurer:
            return run_search(created, measurer, self._limits.trials, self._limits.time, live=True)

    def true_times(self, traces: Sequence[Trace], race: bool) -> tuple[Optimum | None, list[Times]]:
        """The times of a last race of the fastest leaders.

        Runs are minutes apart, and so are their times. The other leaders are slower in any case: for them, their time
        in their run has to do.
        """
        known: dict[Candidate, float] = {}
        for candidate in dict.fromkeys(lead.candidate for trace in traces for lead in trace.leads):
            medians = [trace.medians[candidate] for trace in traces if candidate in trace.medians]
            if candidate is not None and medians:
                known[candidate] = statistics.median(medians)
        if race and known:
            ranked = sorted(known.items(), key=lambda entry: entry[1])
            near = {candidate: time for candidate, time in ranked[:_MOST_RACED] if time <= _SLOW * ranked[0][1]}
            raced = self._race(near)
            if len(raced) < len(near):  # once more: it may have been the machine, or one that took others with it
                raced |= self._race({candidate: time for candidate, time in near.items() if candidate not in raced})
            if raced:  # a candidate that has stopped working has no time
                known = {candidate: time for candidate, time in known.items() if candidate not in near} | raced
        times = [
            [None if lead.candidate is None else known.get(lead.candidate) for lead in trace.leads] for trace in traces
        ]
        return min(known.items(), key=lambda entry: entry[1], default=None), list(times)

    def _race(self, candidates: Mapping[Candidate, float]) -> dict[Candidate, float]:
        """Median seconds of those that still work."""
        turns = [seconds + max(seconds, SAMPLE_SECONDS) for seconds in candidates.values()]
        rounds = rounds_within(turns, _RACE_SECONDS, _FEWEST_ROUNDS, _MOST_ROUNDS)
        with self.measurer() as measurer:
            raced = measurer.race(list(candidates), rounds)
        return {
            candidate: statistics.median(measurement.seconds)
            for candidate, measurement in zip(candidates, raced, strict=True)
            if measurement.ok
        }
