"""How good searches are, and how busy they keep a fleet, if they are asked for 1, 8, 32 or 128 candidates at a time.

    python benchmarks/searches/width.py [--quick]

Each run replays a recorded space of a GPU kernel (`--data`, exhaustive caches of Kernel Tuner) on a fleet of so many
simulated machines. A machine that is free takes the next request; the recorded seconds of its build, its check and its
runs pass before its trial is told. So the time is simulated, and no speed of this machine enters. With "ahead" a search
proposes a batch while the one before it is measured (`GeneratorSearch.ask_ahead`).

The ratio is the recorded median of the best candidate after `--trials` evaluations over the best of the space: the
geometric mean over spaces and seeds. The use is the share of the fleet's time in which its machines measured.
"""

from __future__ import annotations

import heapq
import statistics
from collections import defaultdict
from itertools import count
from typing import Any

import numpy as np
from _grounds import document, geomean, loaded, parser, save, settings_of, share_cores, spread, table

from stormdrop.measure.replay import Recording
from stormdrop.search import GeneratorSearch, Search, create
from stormdrop.trial import Candidate, Request, Trial

WIDTHS = (1, 8, 32, 128)
SEARCHES = ("storm", "random", "genetic", "evolutionary", "nose")
WAYS = ("in turn", "ahead")

Task = tuple[str, str, str, int, int, int]
"""A source, a search, a way, a width, a seed and the number of evaluations."""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--trials", type=int, default=200, help="evaluations of a run (%(default)s)")
    options.add_argument("--searches", default=",".join(SEARCHES), help="separated by commas (%(default)s)")
    arguments = options.parse_args()
    settings = settings_of(arguments)
    share_cores(settings.jobs)
    tasks: list[Task] = [
        (source, search, way, width, seed, arguments.trials)
        for search in arguments.searches.split(",")
        for way in WAYS
        for width in WIDTHS
        for source in settings.sources
        for seed in range(settings.seeds)
    ]
    runs = spread(run, tasks, settings.jobs)
    rows = summary(runs)
    table(("search", "asked", "width", "best / optimum", "within 5%", "use of the fleet"), list(map(_cells, rows)))
    save("width", document(settings, trials=arguments.trials, rows=rows, runs=runs))


def run(task: Task) -> dict[str, Any]:
    """The figures of one run."""
    source, name, way, width, seed, trials = task
    recording = loaded(source)
    search = create(name, recording.spaces, np.random.default_rng(seed))
    if way == "ahead":
        assert isinstance(search, GeneratorSearch)
        search.ask_ahead()
    best, use, evaluations = simulate(search, recording, width, seed, trials)
    return {
        "ground": recording.name,
        "search": name,
        "way": way,
        "width": width,
        "seed": seed,
        "evaluations": evaluations,
        "ratio": best / recording.optimum_seconds,
        "use": use,
    }


def simulate(search: Search, recording: Recording, width: int, seed: int, trials: int) -> tuple[float, float, int]:
    """Replays a search on a fleet of `width` machines.

    Returns:
        The recorded median of the best candidate in seconds, the use of the fleet from 0 to 1, and the evaluations.
    """
    measurer = recording.measurer(np.random.default_rng([seed, 1]))
    queue: list[Request] = []
    running: list[tuple[float, int, Trial]] = []  # the moment of its end, a number, the trial
    numbers = count()
    known: set[Candidate] = set()
    now = busy = 0.0
    while True:
        while len(running) < width:
            if not queue:
                queue = search.ask(width)
            if not queue or (queue[0].candidate not in known and len(known) >= trials):
                break
            request = queue.pop(0)
            known.add(request.candidate)
            (measurement,) = measurer.measure([request])
            busy += measurement.phases.total
            end = now + measurement.phases.total
            heapq.heappush(running, (end, next(numbers), Trial(request.candidate, measurement)))
        if not running:
            break
        now, _, trial = heapq.heappop(running)
        search.tell([trial])
    best = min(seconds for candidate in known if (seconds := recording.truth(candidate)) is not None)
    return best, busy / (width * now), len(known)


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each search, way and width."""
    grouped: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for each in runs:
        grouped[each["search"], each["way"], each["width"]].append(each)
    return [
        {
            "search": search,
            "way": way,
            "width": width,
            "ratio": geomean(each["ratio"] for each in group),
            "within": statistics.fmean(each["ratio"] <= 1.05 for each in group),
            "use": statistics.fmean(each["use"] for each in group),
        }
        for (search, way, width), group in grouped.items()
    ]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    ratio, within, use = f"{row['ratio']:.3f}", f"{row['within']:.0%}", f"{row['use']:.0%}"
    return row["search"], row["way"], str(row["width"]), ratio, within, use


if __name__ == "__main__":
    main()
