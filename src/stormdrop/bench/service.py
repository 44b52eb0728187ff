"""A model as a service: throughput and percentiles of the latency, with one call at a time and with several.

Contenders take turns here, too, a second or two each. A library may serve several calls in more than one form, such as
one session with all cores, or one for each call with a part of them. Each form is timed, and the best one counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InputError, MeasureError
from ..machine.sharing.foreign_load import LoadWatch, read_counters
from ..machine.sharing.lock import MachineLock
from ..measure.timing import Call
from ..statistics import Interval, median_interval, percentile_interval, ratio_interval
from .closed_loop import MOST_CALLS, LoopTimes, closed_loop
from .contender import Unavailable
from .contender_process import LIMITS, ContenderProcess
from .turns import silent

PERCENTS = (50, 90, 99)
"""The percentiles of the latency that are reported."""

_TURN = 2.0  # seconds, if there is time for the fewest turns
_FEWEST_TURNS = 5


@dataclass(frozen=True)
class Load:
    """How a service is called.

    Args:
        seconds: How long each form of each contender is called, for each number of calls at a time, in all turns
            together.
        calls: The numbers of calls at a time.

    Raises:
        InputError: There is no number of calls, or one is below 1 or above `MOST_CALLS`.

    Example:
        >>> Load(30.0, (1, 4)).turns
        15
    """

    seconds: float
    calls: tuple[int, ...]

    def __post_init__(self) -> None:
        for count in self.calls or (0,):
            if not 1 <= count <= MOST_CALLS:
                raise InputError(f"calls at a time: {count} is not a number from 1 to {MOST_CALLS}")

    @property
    def turns(self) -> int:
        """The number of turns of each form."""
        return max(_FEWEST_TURNS, round(self.seconds / _TURN))


def calls_at_a_time(cores: int) -> tuple[int, ...]:
    """The numbers of calls at a time that are tried by default: 1, 2, and one for each core, at least 4.

    Args:
        cores: The number of cores.

    Example:
        >>> calls_at_a_time(2), calls_at_a_time(16)
        ((1, 2, 4), (1, 2, 16))
    """
    return (1, 2, max(4, cores))


@dataclass(frozen=True)
class Service:
    """How one contender serves a number of calls at a time.

    Attributes:
        at_a_time: The number of calls at a time.
        calls: How many calls were timed.
        per_second: The median throughput of its turns.
        interval: A 95% interval of `per_second`.
        percentiles: For each of `PERCENTS` the latency in seconds that so many calls do not exceed, with its 95%
            interval; None where the calls are too few to know it. The interval is that of independent calls. What
            slows a turn down slows many of its calls, so that the percentile of other turns is outside more often.
        ratio: Its throughput over ours, turn by turn: below 1, ours is higher. With a 95% interval. 1 for ours. None
            if ours does not serve so many calls, and where nothing is compared, as by `serve`.
        form: How it serves several calls; empty if there is one form only.
        forms: The median throughput of each form that was tried.
    """

    at_a_time: int
    calls: int
    per_second: float
    interval: tuple[float, float]
    percentiles: Mapping[int, Interval | None]
    ratio: Interval | None = None
    form: str = ""
    forms: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """An entry of `services` in the documents of `stormdrop bench --json` and `stormdrop run --json`."""
        ratio = self.ratio
        return {
            "at_a_time": self.at_a_time,
            "calls": self.calls,
            "per_second": self.per_second,
            "per_second_interval": list(self.interval),
            "percentiles": {
                str(percent): known and {"seconds": known.estimate, "interval": [known.low, known.high]}
                for percent, known in self.percentiles.items()
            },
            "ratio": ratio and ratio.estimate,
            "ratio_interval": ratio and [ratio.low, ratio.high],
            "form": self.form,
            "forms": dict(self.forms),
        }


def service_of(turns: Sequence[LoopTimes], at_a_time: int, form: str = "") -> Service:
    """Sums up the turns of one form.

    Args:
        turns: What the callers have seen in each turn; two turns or more.
        at_a_time: The number of callers.
        form: The name of the form.
    """
    rate = median_interval([turn.rate for turn in turns])
    latencies = [latency for turn in turns for latency in turn.seconds]
    percentiles = {percent: percentile_interval(latencies, percent) for percent in PERCENTS}
    forms = {form: rate.estimate}
    return Service(at_a_time, len(latencies), rate.estimate, (rate.low, rate.high), percentiles, None, form, forms)


@dataclass(frozen=True)
class Services:
    """How all contenders serve.

    Attributes:
        by_contender: For each contender a service for each number of calls at a time that it can serve.
        disturbed: The share of the turns in which something else used the machine. They are kept: what slows a service
            down now and then belongs to its percentiles.
        missing: For each contender that cannot serve all numbers of calls, or failed, the reason, by name.
    """

    by_contender: Sequence[Sequence[Service]]
    disturbed: float
    missing: Mapping[str, str]


def serve(call: Call, cores: int, load: Load, on_phase: Callable[[str], None] = silent) -> tuple[list[Service], float]:
    """Times something in this process as a service.

    Args:
        call: Answers one call; several threads call it at the same time.
        cores: How many cores it uses.
        load: How it is called.
        on_phase: Is told which turn begins.

    Returns:
        A service for each number of calls at a time, and the share of the turns in which something else used the
        machine.

    Raises:
        Exception: Whatever a call raises.
    """
    watch, services, suspect = LoadWatch(cores, LIMITS), list[Service](), list[bool]()
    with closing(MachineLock()) as lock, ThreadPoolExecutor(max(load.calls), "caller") as callers:
        for at_a_time in load.calls:
            turns = []
            for turn in range(load.turns):
                on_phase(_turn(at_a_time, turn, load))
                with lock.exclusive():
                    before = read_counters()
                    turns.append(closed_loop([call] * at_a_time, load.seconds / load.turns, callers))
                    suspect.append(watch.suspect(read_counters() - before))
            services.append(service_of(turns, at_a_time))
    return services, sum(suspect) / len(suspect)


def take_service_turns(
    processes: Sequence[ContenderProcess], load: Load, on_phase: Callable[[str], None] = silent
) -> Services:
    """Times the contenders as services, in turns, one round at a time under the machine-wide lock.

    Args:
        processes: The contenders, ours first.
        load: How they are called.
        on_phase: Is told which turn begins, and whose.

    A peer that fails, or whose process dies, is left out from then on. What it served before is kept.

    Raises:
        MeasureError: Ours failed, or its process died.
    """
    services: list[list[Service]] = [[] for _ in processes]
    missing: dict[str, str] = {}
    failed: set[int] = set()

    def leave_out(index: int, reason: MeasureError) -> None:
        if index == 0:
            raise reason
        failed.add(index)
        missing[processes[index].name] = str(reason)

    disturbed = turns = 0
    for at_a_time in load.calls:
        forms: list[tuple[int, str]] = []
        for index, process in enumerate(processes):
            if index in failed:
                continue
            try:
                forms += [(index, form) for form in process.forms(at_a_time)]
            except Unavailable as reason:
                missing[process.name] = str(reason)
            except MeasureError as reason:
                leave_out(index, reason)
        times: list[list[LoopTimes]] = [[] for _ in forms]
        with closing(MachineLock()) as lock:
            for turn in range(load.turns):
                with lock.exclusive():
                    for position in range(len(forms)):
                        number = (turn + position) % len(forms)
                        index, form = forms[number]
                        if index in failed:
                            continue
                        on_phase(f"{_turn(at_a_time, turn, load)}: {processes[index].name}")
                        try:
                            taken, suspect = processes[index].serve_calls(form, load.seconds / load.turns)
                        except MeasureError as reason:
                            leave_out(index, reason)
                            continue
                        times[number].append(taken)
                        disturbed += suspect
                        turns += 1
        kept = [number for number, (index, _) in enumerate(forms) if index not in failed]
        kept_forms, kept_times = [forms[number] for number in kept], [times[number] for number in kept]
        for index, best in _best_forms(kept_forms, kept_times, at_a_time).items():
            services[index].append(best)
    return Services(services, disturbed / turns if turns else math.nan, missing)


def _turn(at_a_time: int, turn: int, load: Load) -> str:
    """Which turn begins, in words."""
    calls = "1 call" if at_a_time == 1 else f"{at_a_time} calls"
    return f"{calls} at a time, turn {turn + 1} of {load.turns}"


def _best_forms(
    forms: Sequence[tuple[int, str]], times: Sequence[Sequence[LoopTimes]], at_a_time: int
) -> dict[int, Service]:
    """The service of each contender in its best form, that with the highest throughput, by the contender's number."""
    best: dict[int, tuple[Service, Sequence[LoopTimes]]] = {}
    for (index, form), turns in zip(forms, times, strict=True):
        service = service_of(turns, at_a_time, form)
        known, known_turns = best.get(index, (service, turns))
        tried = {**known.forms, **service.forms}
        if service.per_second > known.per_second:
            known, known_turns = service, turns
        best[index] = replace(known, forms=tried), known_turns
    if 0 not in best:
        return {index: service for index, (service, _) in best.items()}
    ours = [turn.rate for turn in best[0][1]]
    return {
        index: replace(service, ratio=ratio_interval([turn.rate for turn in turns], ours))
        for index, (service, turns) in best.items()
    }
