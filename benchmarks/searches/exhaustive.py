"""All configurations of one layer: how points fail, how speeds are distributed, and how searches fare on such a space.

    exhaustive.py [--share 0.1] [--show] [--fresh]

NoSE paper, section V, experiment 1: the layer C12 of Table II (7 x 7, 512 to 512 channels, window of 3 x 3, stride and
padding of 1), every point of one template.

Figure 3           points by error, and the seconds that were spent on them: scheduling, building, running, checking
Figure 4           the speeds of valid points beside an exponential distribution of the same mean
Figures 5 to 8     NoSE, GA, XGB and random on the recorded space: speed against wall time, errors, where time goes

The template is AutoTVM's for CPUs, without constraints (`_spatial_pack.py`): 6,400 points. The paper has AutoTVM's for
CUDA with 844,800 points, of which a quarter is valid. Its searches measured on the GPU; here they run on the recording,
under its noise. Their wall time is the recorded seconds of building, running and checking and the seconds that the
searches take here. In the paper a run takes an hour. Every search is as printed, apart from what a recording does not
have: there is one layer, so XGB has nothing to transfer, and its features are the encodings of the knobs.

Every measurement is kept in benchmarks/out/exhaustive.ledger.jsonl as soon as it is known, and a run that was ended
goes on from there. With `--share`, a random share of the points is measured, and all figures are of that share. The
recording is benchmarks/out/exhaustive.jsonl.gz, which `stormdrop compare` takes, too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from _claims_searches import nose_errors, nose_seconds
from _common import add_to_import_path, campaign_parser
from _grounds import OUT, geomean, machine, save, table
from _spatial_pack import spatial_pack
from matplotlib.figure import Figure
from numpy.typing import NDArray
from record_space import record
from scipy import stats

import stormdrop as sd
from stormdrop.compare import recordings
from stormdrop.compare.comparison import compare
from stormdrop.compare.search_spec import parse_searches
from stormdrop.measure.replay import Recording
from stormdrop.report.plots.costs import statuses, time
from stormdrop.report.plots.curves import by_evaluations, by_seconds
from stormdrop.report.plots.style import COLOURS, legend, panels
from stormdrop.report.plots.style import save as save_figure
from stormdrop.report.summary import best_after
from stormdrop.sketches.fingerprint import space_of

LAYER: dict[str, Any] = {"n": 1, "h": 7, "w": 7, "ci": 512, "co": 512, "kh": 3, "kw": 3, "stride": 1, "pad": 1}
NOSE = "nose:preset=paper"
SEARCHES = (NOSE, "genetic:preset=paper", "annealing:preset=paper", "random")
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Of the wall time of GA's runs: where the searches are compared."""

_NAME = "exhaustive"
_BINS = 40


def main() -> None:
    options = _options()
    workload = sd.operators.conv2d(**LAYER, layout="NCHW")
    recording_file = OUT / f"{_NAME}.jsonl.gz"
    if not options.show:
        add_to_import_path(Path(__file__).parent)  # the workers import the template
        target = sd.Cpu.detect()
        space = space_of(spatial_pack, workload, target)
        assert space is not None
        points = max(1, round(options.share * space.size))
        ledger, seed, fresh = options.file or OUT / f"{_NAME}.ledger.jsonl", options.seed, options.fresh
        sketches = [(spatial_pack, space)]
        record(workload, target, sketches, ledger, recording_file, points=points, seed=seed, fresh=fresh)
    elif not recording_file.exists():
        sys.exit(f"{recording_file} is not there yet: run this script without --show")
    recording = recordings.load(recording_file)
    host = machine()
    print(f"{host['cpu']}, {host['cores']} cores; {recording.name}, {len(recording.recorded)} points")
    results = {
        "points": len(recording.recorded),
        "errors": errors(recording),
        "speeds": speeds(recording, workload.flops),
    }
    settings = {name: getattr(options, name) for name in ("share", "seed", "seeds", "trials")}
    print(save(_NAME, {"machine": host, **settings, **results, **searches(recording, options)}))


# Figure 3


def errors(recording: Recording) -> dict[str, dict[str, float]]:
    """Prints and draws Figure 3; returns the number of points and the seconds by status."""
    counts, seconds = Counter[str](), defaultdict[str, float](float)
    messages: dict[str, Counter[str]] = {}
    for known in recording.recorded.values():
        counts[known.status.value] += 1
        seconds[known.status.value] += known.phases.total
        messages.setdefault(known.status.value, Counter())[known.error.rstrip("0123456789. ")[:60]] += 1
    rows = [
        [
            kind,
            str(count),
            f"{count / len(recording.recorded):.1%}",
            f"{seconds[kind]:.0f}",
            f"{seconds[kind] / sum(seconds.values()):.1%}",
            f"{seconds[kind] / count:.3f}",
            messages[kind].most_common(1)[0][0],
        ]
        for kind, count in counts.most_common()
    ]
    print()
    headings = ["", "points", "share", "seconds", "share of seconds", "seconds each", "most frequent message"]
    table(headings, rows, "Points by error, and the time that they took (Figure 3)")
    bar = {"search": "all points", "statuses": dict(counts), "status_seconds": dict(seconds)}
    save_figure(statuses({"summary": [bar]}), OUT / f"{_NAME}_errors.png")
    return {"points": dict(counts), "seconds": dict(seconds)}


# Figure 4


def speeds(recording: Recording, flops: float) -> dict[str, Any]:
    """Prints and draws Figure 4; returns the fit and the quantiles, in GFLOP/s.

    An exponential distribution from 0 on has one parameter, its mean, which is fitted by maximum likelihood. The
    distance is that of Kolmogorov and Smirnov: the largest difference of both distribution functions.
    """
    times = [recording.truth(candidate) for candidate in recording.recorded]
    rates = np.array(sorted(flops / seconds / 1e9 for seconds in times if seconds is not None))
    fit = exponential(rates)
    rows = [
        [f"{quantile:.0%}", f"{float(np.quantile(rates, quantile)):.1f}", f"{expected:.1f}"]
        for quantile, expected in zip(QUANTILES, fit["quantiles"], strict=True)
    ]
    print()
    table(["quantile", "GFLOP/s", "exponential"], rows, f"Speeds of {len(rates)} valid points (Figure 4)")
    print(f"mean {fit['mean']:.1f} GFLOP/s; distance to the exponential {fit['distance']:.3f}")
    best = float(rates[-1])
    near = {f"within {limit:.0%}": float(np.mean(rates >= (1 - limit) * best)) for limit in (0.05, 0.1, 0.25)}
    print("of the valid points, " + ", ".join(f"{share:.2%} {words} of the best" for words, share in near.items()))
    save_figure(_histogram(rates, fit["mean"]), OUT / f"{_NAME}_speeds.png")
    return {**fit, "valid": len(rates), "observed": np.quantile(rates, QUANTILES).tolist(), "near": near}


def exponential(rates: NDArray[np.float64]) -> dict[str, Any]:
    """The exponential distribution from 0 on that fits rates best: its mean, its quantiles, and how far off it is."""
    _, mean = stats.expon.fit(rates, floc=0)
    fitted = stats.expon(scale=mean)
    # The largest of so many values is not the quantile of 1, which is infinite.
    shares = [quantile if quantile < 1 else 1 - 1 / (len(rates) + 1) for quantile in QUANTILES]
    return {
        "mean": float(mean),
        "distance": float(stats.kstest(rates, fitted.cdf).statistic),
        "quantiles": fitted.ppf(shares).tolist(),
    }


def _histogram(rates: NDArray[np.float64], mean: float) -> Figure:
    figure, (axis,) = panels(["speeds of all valid points"])
    edges = np.linspace(0, rates[-1], _BINS + 1)
    axis.hist(rates, edges.tolist(), color=COLOURS[5], label="points")
    expected = len(rates) * stats.expon(scale=mean).pdf(edges) * (edges[1] - edges[0])
    axis.plot(edges, expected, color=COLOURS[1], label="exponential distribution of the same mean")
    axis.set_xlabel("GFLOP/s")
    axis.set_ylabel("points")
    legend(figure, axis)
    return figure


# Figures 5 to 8


def searches(recording: Recording, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the searches on the recording, prints how they fare, and draws their curves."""
    specs = parse_searches(",".join(SEARCHES))
    trials = min(options.trials, len(recording.recorded))
    document = compare([recording], specs, seeds=options.seeds, trials=trials, jobs=options.jobs).to_json()
    over_optimum = _over_optimum(document)
    runs = {(run["ground"], run["search"], run["seed"]): run for run in document["runs"]}
    results = {
        "comparison": document,
        "over_optimum": over_optimum,
        "parts": nose_seconds(runs, SEARCHES),
        "kinds": nose_errors(runs, [recording], SEARCHES),
    }
    for name, draw in (
        ("evaluations", by_evaluations),
        ("seconds", by_seconds),
        ("kinds", statuses),
        ("time", time),
    ):
        save_figure(draw(document), OUT / f"{_NAME}_{name}.png")
    return results


def _over_optimum(document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Figures 5 and 8 for one layer: the seeds' geometric means of the kernel time over the optimum, by moment."""
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for run in document["runs"]:
        runs.setdefault(run["search"], []).append(run)
    whole = statistics.fmean(run["seconds"] for run in runs["genetic:preset=paper"])
    moments = {f"{share:.0%}": share * whole for share in SHARES}

    def level(group: Sequence[Mapping[str, Any]], moment: float) -> float:
        reached = (float(best_after(run, document["optimum"], moment)) for run in group)
        return geomean(ratio for ratio in reached if np.isfinite(ratio))

    levels = {
        search: {share: level(group, moment) for share, moment in moments.items()} for search, group in runs.items()
    }
    rows = [
        [
            search,
            *(f"{value:.3f}" for value in levels[search].values()),
            *(f"{levels[search][share] / levels[NOSE][share]:.3f}" for share in moments),
        ]
        for search in SEARCHES
    ]
    print()
    headings = ["", *(f"at {share}" for share in moments), *(f"/ NoSE at {share}" for share in moments)]
    title = f"Kernel time over the optimum (Figures 5 and 8) at shares of {whole:.0f} s, the wall time of GA's runs"
    table(headings, rows, title)
    return levels


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="the share of the points to measure (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the points and their order (%(default)s)")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each search (%(default)s)")
    parser.add_argument("--trials", type=int, default=2000, help="the most evaluations of a run (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes of the searches (%(default)s)")
    options = parser.parse_args()
    if not 0 < options.share <= 1:
        parser.error(f"--share {options.share}: must be above 0 and at most 1")
    return options


if __name__ == "__main__":
    main()
