"""One run of a search: what it would report after every measurement, and what it has cost until then.

An *evaluation* is a distinct candidate that is measured. More samples of a known candidate cost time, but they are no
evaluation. What a search would report is the candidate with the lowest median over all of its samples so far, among
those that never failed. When the search has finished and holds another one for the best (`Search.best`), it is that.
"""

from __future__ import annotations

import time as clock

from ..measure.contract import Measurer
from ..search import Search
from ..trial import Phases, Trial, within
from ..tuning.request import BATCH
from ..tuning.trace import Trace

PARTS = ("search", "schedule", "build", "run", "check")
"""The parts of wall time: asking and telling the search, and the phases of its measurements."""


def run_search(search: Search, measurer: Measurer, trials: int, time: float | None = None, live: bool = False) -> Trace:
    """Runs a search until it finishes or a bound is reached. A batch that has begun is measured to its end.

    Args:
        search: The search to run.
        measurer: Answers its requests.
        trials: The most evaluations.
        time: The most seconds, of all parts together.
        live: The measurer works while it is waited for. The wall time of a measurement then counts, else what its
            phases say.

    Returns:
        The trace of the run, whose seconds are split by `PARTS`. It raises what the measurer raises.
    """
    trace = Trace(len(PARTS))
    while len(trace) < trials and (time is None or sum(trace.seconds) < time):
        start = clock.perf_counter()
        requests = within(search.ask(BATCH), trace.measurements, trials)
        trace.seconds[0] += clock.perf_counter() - start
        if not requests:
            break
        trace.batch += 1
        batch: list[Trial] = []
        start = clock.perf_counter()
        for request, measurement in zip(requests, measurer.measure(requests), strict=True):
            waited = clock.perf_counter() - start
            phases = _as_waited(measurement.phases, waited) if live else measurement.phases
            for index, part in enumerate(PARTS[1:], start=1):
                trace.seconds[index] += getattr(phases, part)
            batch.append(Trial(request.candidate, measurement))
            trace.record(batch[-1], phases)
            start = clock.perf_counter()
        start = clock.perf_counter()
        search.tell(batch)
        trace.seconds[0] += clock.perf_counter() - start
    trace.converged = search.converged
    if search.finished and search.best in trace.medians:
        trace.lead(search.best)
    return trace


def _as_waited(phases: Phases, waited: float) -> Phases:
    """The phases of a measurement that was waited for, such that they sum up to that time.

    Workers build side by side, so their own seconds are no wall time: what a wait held beside run and check is shared
    between schedule and build as the measurement's own are.
    """
    rest = max(0.0, waited - phases.run - phases.check)
    preparing = phases.schedule + phases.build
    if preparing == 0.0:
        return Phases(run=phases.run + rest, check=phases.check)
    share = rest / preparing
    return Phases(phases.schedule * share, phases.build * share, phases.run, phases.check)
