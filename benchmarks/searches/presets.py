"""Each search as its paper prints it beside its default here: what our deviations are worth.

    presets.py [--seeds 10] [--live] [--only droplet,dpansor] [--show] [--fresh]

Without `--live`, all arms run on the recorded GPU spaces of `--data`, 200 evaluations each, under the recorded noise.
Nothing is timed. (`roller` needs a model of the machine, so recordings are no ground for it.) With `--live`, they tune
three kernels of this machine for `--time` seconds each, as in live.py. In the end all results of a kernel race, and the
fastest of them is what they are compared with. Run that on an idle machine.

Every run is one line of benchmarks/out/presets.jsonl (presets_live.jsonl), written as soon as it is done. A run that is
there already is not repeated, so the script can be stopped and started at any time. The seeds are the outer loop: what
is there is balanced. `--show` prints what is there.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, chosen, machine
from _grounds import DATA, caches, geomean, share_cores, table
from live import KERNELS

import stormdrop as sd
from stormdrop.compare import recordings
from stormdrop.compare.grounds import Limits, MachineGround, RecordedGround
from stormdrop.compare.search_spec import parse_searches
from stormdrop.search import needs_prior
from stormdrop.trial import Candidate
from stormdrop.tuning.trace import Trace

ARMS: dict[str, str] = {
    "droplet": "droplet,droplet:preset=paper,droplet:preset=paper:sides=2,droplet:preset=paper:test=ours,"
    "droplet:preset=paper:neighbourhood=all,droplet:preset=paper:origin=default,droplet:preset=paper:whole_set=false,"
    "droplet:preset=paper:candidates=3,droplet:preset=paper:prune=0.5",
    "dpansor": "dpansor:N=100,dpansor:preset=paper:N=100",
    "evolutionary": "evolutionary,evolutionary:preset=paper,evolutionary:preset=paper:moves=any",
    "gradient": "gradient,gradient:preset=paper,gradient:preset=paper:origins=5",
    "nose": "nose,nose:preset=paper",
    "genetic": "genetic,genetic:preset=paper",
    "annealing": "annealing,annealing:preset=paper",
    "grid": "grid,grid:preset=paper",
    "random": "random",
    "storm": "storm",
    "roller": "roller,roller:measured=50",
}
"""The arms by search: its default, its preset, and the preset with single deviations of ours put back."""

MARKS = (25, 50, 100, 200)
TRIALS = 200
_ROUNDS = 9
_TOGETHER = 32  # kernels that race at once: a worker holds 40


def main() -> None:
    parser = campaign_parser(__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of Kernel Tuner caches (%(default)s)")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each arm on each ground (%(default)s)")
    parser.add_argument("--only", default=",".join(ARMS), help="searches, separated by commas (%(default)s)")
    parser.add_argument("--live", action="store_true", help="tune kernels of this machine")
    parser.add_argument("--time", type=float, default=10.0, help="the most seconds of a live run (%(default)s)")
    options = parser.parse_args()
    names = chosen(options.only, ARMS, "search")
    share_cores(2)
    arms = [arm for name in names for arm in ARMS[name].split(",") if options.live or not needs_prior(name)]
    host = machine() if options.live and not options.show else None
    campaign = Campaign(OUT / ("presets_live.jsonl" if options.live else "presets.jsonl"), host, options)
    if not options.show:
        live(campaign, arms, options.seeds, options.time) if options.live else recorded(
            campaign, arms, options.seeds, caches(options.data)
        )
    runs = {(run["ground"], run.get("arm"), run.get("seed")): run for run in campaign.entries}
    if not runs:
        sys.exit(f"{campaign.file} holds no runs yet: run this script without --show")
    show_live(list(runs.values())) if options.live else show_recorded(list(runs.values()))


def recorded(campaign: Campaign, arms: Sequence[str], seeds: int, files: Sequence[Path]) -> None:
    """Runs the arms on recordings."""
    grounds = [RecordedGround(recordings.load(file), Limits(TRIALS)) for file in files]
    for seed in range(seeds):
        for arm in arms:
            for ground in grounds:
                campaign.once(_key(ground.name, arm, seed), partial(_recorded_run, ground, arm, seed))


def _recorded_run(ground: RecordedGround, arm: str, seed: int) -> dict[str, Any]:
    (search,) = parse_searches(arm)
    trace = ground.run(search, seed)
    optimum, (times,) = ground.true_times([trace], race=False)
    assert optimum is not None
    return {**_run(trace), "ratios": dict(zip(MARKS, _at_marks(trace, times, optimum[1]), strict=True))}


def _at_marks(trace: Trace, times: Sequence[float | None], optimum: float) -> Iterator[float | None]:
    """What the search would report after so many evaluations, as a multiple of the optimum."""
    for mark in MARKS:
        latest = [time for lead, time in zip(trace.leads, times, strict=True) if lead.evaluations <= mark]
        yield latest[-1] / optimum if latest and latest[-1] is not None else None


def _key(ground: str, arm: str, seed: int) -> dict[str, Any]:
    return {"ground": ground, "arm": arm, "seed": seed}


def _run(trace: Trace) -> dict[str, Any]:
    return {"evaluations": len(trace), "converged": trace.converged, "version": sd.__version__}


def show_recorded(runs: Sequence[Mapping[str, Any]]) -> None:
    """Prints per arm the geometric mean over the spaces of the ratio to the optimum, at each number of evaluations."""
    grounds = sorted({run["ground"] for run in runs})
    print(f"\nTime over the optimum, {len(grounds)} recorded spaces: {', '.join(grounds)}")
    rows = []
    for arm, of_arm in _by_arm(runs):
        cells = []
        for mark in map(str, MARKS):
            ratios = [run["ratios"][mark] for run in of_arm]
            found = [ratio for ratio in ratios if ratio is not None]
            cells.append(f"{geomean(found):.3f}" + (f" ({len(ratios) - len(found)} none)" if found != ratios else ""))
        last = [run["ratios"][str(MARKS[-1])] for run in of_arm]
        within = statistics.fmean(ratio is not None and ratio <= 1.05 for ratio in last)
        evaluations = statistics.fmean(run["evaluations"] for run in of_arm)
        rows.append([arm, *cells, f"{within:.0%}", f"{evaluations:.0f}", str(len(of_arm))])
    table(["arm", *(f"at {mark}" for mark in MARKS), "within 5%", "evaluations", "runs"], rows)


def _by_arm(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    order = [arm for arms in ARMS.values() for arm in arms.split(",")]
    known = [run for run in runs if run["arm"] in order]
    for arm, group in groupby(sorted(known, key=lambda run: order.index(run["arm"])), key=lambda run: run["arm"]):
        yield arm, list(group)


# On this machine


def live(campaign: Campaign, arms: Sequence[str], seeds: int, seconds: float) -> None:
    """Runs the arms on three kernels, and lets their results race."""
    for name, workload in KERNELS.items():
        pairs = [(arm, seed) for seed in range(seeds) for arm in arms]
        missing = [(arm, seed) for arm, seed in pairs if campaign.known(_key(name, arm, seed)) is None]
        if not missing and campaign.known({"ground": name}, has="raced"):
            continue
        with MachineGround(workload, Limits(1_000_000, seconds)) as ground:
            for arm, seed in missing:
                (search,) = parse_searches(arm)
                trace = ground.run(search, seed)
                end = trace.leads[-1].candidate if trace.leads else None
                point = None if end is None else [end.sketch, list(end.point)]
                campaign.keep({**_key(name, arm, seed), **_run(trace), "end": point, "seconds": sum(trace.seconds)})
            campaign.keep({"ground": name, "raced": _race(campaign, name, ground)})


def _race(campaign: Campaign, name: str, ground: MachineGround) -> list[list[Any]]:
    """The seconds of all results of a kernel, each group of kernels in turns: [sketch, point, seconds]."""
    ends = [run["end"] for run in campaign.usable() if run["ground"] == name and run.get("end")]
    candidates = [Candidate(sketch, tuple(point)) for sketch, point in ends]
    distinct = list(dict.fromkeys(candidates))
    raced: list[list[Any]] = []
    with ground.measurer() as measurer:
        for begin in range(0, len(distinct), _TOGETHER):
            group = distinct[begin : begin + _TOGETHER]
            for candidate, measurement in zip(group, measurer.race(group, _ROUNDS), strict=True):
                seconds = statistics.median(measurement.seconds) if measurement.ok else None
                raced.append([candidate.sketch, list(candidate.point), seconds])
    return raced


def show_live(runs: Sequence[Mapping[str, Any]]) -> None:
    """Prints per arm and kernel the raced time over that of the best result."""
    times = {
        run["ground"]: {(sketch, tuple(point)): seconds for sketch, point, seconds in run["raced"]}
        for run in runs
        if "raced" in run
    }
    if not times:
        sys.exit("no kernel is complete yet: run this script with --live")
    best = {kernel: min(filter(None, raced.values())) for kernel, raced in times.items()}
    rows = []
    for arm, of_arm in _by_arm([run for run in runs if run.get("arm")]):
        cells = []
        for kernel, raced in times.items():
            ends = [run["end"] for run in of_arm if run["ground"] == kernel and run["end"]]
            seconds = [raced.get((sketch, tuple(point))) for sketch, point in ends]
            ratios = [time / best[kernel] for time in seconds if time]
            cells.append(f"{geomean(ratios):.3f}" if ratios else "-")
        rows.append([arm, *cells, f"{statistics.fmean(run['evaluations'] for run in of_arm):.0f}", str(len(of_arm))])
    table(["arm", *times, "evaluations", "runs"], rows)


if __name__ == "__main__":
    main()
