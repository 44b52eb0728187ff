"""Searches on recorded spaces of GPU kernels: how near to the optimum after 25, 50, 100 and 200 evaluations.

    python benchmarks/searches/recorded.py [--quick]

All searches with their defaults, which are their papers' parameters where these are printed, and beside them, on the
same files, the strategies of Kernel Tuner (kernel_tuner_peers.py) where it is installed. The spaces are exhaustive
caches of Kernel Tuner's (https://github.com/AutoTuningAssociation/benchmark_hub, MIT), read from `--data`.

An evaluation is a distinct candidate measured, a failure too. What counts is the recorded median of what a search would
report then, over the best recorded median. Our searches see samples that are drawn from the recorded ones (`--exact`:
the medians themselves); Kernel Tuner sees the recorded mean, without noise. What searching costs is not measured here
(costs.py).
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata, util
from pathlib import Path
from typing import Any

from grounds import DATA, OUT, save, table

import stormdrop as sd
from stormdrop.compare import recordings
from stormdrop.compare.comparison import compare
from stormdrop.compare.search_spec import parse_searches
from stormdrop.report import curves, style
from stormdrop.report.summary import WITHIN, checkpoints
from stormdrop.search import names
from stormdrop.tuning.result import Progress

Document = Mapping[str, Any]

OURS = "storm"
SEARCHES = [OURS, *(name for name in names() if name != OURS), "dpansor:N=100"]
"""What is compared; dpansor's own N is 300 trials, of which 200 would leave nothing to its droplet."""
APART = "dedispersion_MI250X"
"""The space that the means depend on most: they are also shown without it."""

_QUICK_STRATEGIES = ["adaptive_tabu_greywolf", "pso", "genetic_algorithm"]
_TOLD = ("ground", "search", "seed", "evaluations", "converged", "best", "best_over_optimum", "evaluations_to_within")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of Kernel Tuner caches (%(default)s)")
    parser.add_argument("--seeds", type=int, default=20, help="runs of each search on each space (%(default)s)")
    parser.add_argument("--trials", type=int, default=200, help="evaluations of a run (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side (%(default)s)")
    parser.add_argument("--searches", default=",".join(SEARCHES), help="as for `stormdrop compare` (%(default)s)")
    parser.add_argument("--strategies", help="of Kernel Tuner, separated by commas; all by default, '' for none")
    parser.add_argument("--exact", action="store_true", help="answer our searches with the medians, without noise")
    parser.add_argument("--quick", action="store_true", help="1 seed and 3 strategies, to try it: a minute")
    asked = parser.parse_args()
    seeds = 1 if asked.quick else asked.seeds
    paths = caches(asked.data)
    where = place("numpy", "scipy", "xgboost-cpu", "kernel_tuner")
    share_cores(asked.jobs)

    grounds = [recordings.load(path) for path in paths]
    searches = parse_searches(asked.searches)
    settings: dict[str, Any] = {"seeds": seeds, "trials": asked.trials, "jobs": asked.jobs}
    comparison = compare(grounds, searches, **settings, exact=asked.exact, on_progress=show)
    print(file=sys.stderr)
    if asked.strategies == "" or comparison.interrupted:
        pass
    elif util.find_spec("kernel_tuner") is None:
        print("Kernel Tuner, whose strategies are left out, is installed by: python -m pip install 'kernel_tuner>=1.5'")
    else:
        import kernel_tuner_peers as peers

        strategies = asked.strategies.split(",") if asked.strategies else peers.STRATEGIES
        wanted = _QUICK_STRATEGIES if asked.quick else strategies
        found = peers.runs(dict(zip(paths, grounds, strict=True)), wanted, **settings)
        comparison = replace(
            comparison,
            grounds=[replace(each, runs=[*each.runs, *found[each.name]]) for each in comparison.grounds],
            searches=[*comparison.searches, *map(peers.label, wanted)],
        )
    report("recorded", comparison.to_json(), where)


def caches(data: Path) -> list[Path]:
    """The files in a folder of recorded spaces. Ends the program with a line where there is none."""
    found = sorted(data.glob("*.json.gz")) + sorted(data.glob("*.json"))
    if not found:
        raise SystemExit(
            f"{data} holds no Kernel Tuner caches (.json, .json.gz): name a folder that does with --data; "
            "the collection is https://github.com/AutoTuningAssociation/benchmark_hub"
        )
    return found


def place(*packages: str) -> dict[str, Any]:
    """CPU, cores and versions, without measuring anything; says them, too."""
    target = sd.Target.detect()
    installed = {each.metadata["Name"] for each in metadata.distributions()}
    versions = {name: metadata.version(name) for name in packages if name in installed}
    where = {"cpu": target.cpu, "cores": target.cores, "python": platform.python_version()}
    print(f"{target.cpu}, {target.cores} cores, Python {where['python']}, stormdrop {sd.__version__}, {versions}")
    return {**where, "versions": {"stormdrop": sd.__version__, **versions}}


def share_cores(jobs: int) -> None:
    """One thread of linear algebra for each of several processes to come: more of them wait for one another.

    Two runs of storm side by side took ten times as long with two threads each, on two cores.
    """
    if jobs > 1:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"


def report(name: str, document: Document, where: Document) -> None:
    """Prints the tables of a comparison, draws it, and writes it without what concerns time."""
    grounds = document["grounds"]
    print(f"\n{document['seeds']} seeds; means over spaces are of equal weight; best/optimum after so many evaluations")
    for ground in grounds:
        _table(f"{ground['ground']} (optimum {1e3 * ground['optimum']:.4g} ms)", document, [ground])
    _table(f"all {len(grounds)} spaces", document, grounds)
    others = [ground for ground in grounds if ground["ground"] != APART]
    if 0 < len(others) < len(grounds):
        _table(f"without {APART}", document, others)
    _differences(document)
    figures = {"by_evaluations": curves.by_evaluations(document), "within": curves.within(document)}
    OUT.mkdir(exist_ok=True)
    for kind, figure in figures.items():
        style.save(figure, OUT / f"{name}_{kind}.png")
        print(OUT / f"{name}_{kind}.png")
    print(save(name, {"machine": where, **_untimed(document)}))


def _table(title: str, document: Document, grounds: Sequence[Document]) -> None:
    """One row per search, the best at the end first."""
    marks = [str(mark) for mark in checkpoints(document["trials"])]

    def mean(search: str, *path: str) -> float:
        """Over the grounds, of a figure of their summaries; infinite where one is."""
        values = [next(each for each in ground["summary"] if each["search"] == search) for ground in grounds]
        for key in path:
            values = [value[key] for value in values]
        return math.inf if None in values else statistics.fmean(values)

    rows = []
    for search in sorted(document["searches"], key=lambda search: mean(search, "best_over_optimum", "mean")):
        ratios = [mean(search, "at", mark, "best_over_optimum", kind) for kind in ("mean", "median") for mark in marks]
        shares = [mean(search, "at", mark, "within", label) for label in WITHIN for mark in marks]
        cells = [f"{ratio:.3f}" for ratio in ratios] + [f"{share:.0%}" for share in shares]
        rows.append([search, *cells, f"{mean(search, 'evaluations'):.0f}"])
    heads = ["mean", "median", *(f"within {100 * (factor - 1):.0f}%" for factor in WITHIN.values())]
    print(f"\n{title}")
    columns = [f"{head} {mark}" if mark == marks[0] else mark for head in heads for mark in marks]
    table(["", *columns, "evaluations"], rows)


def _differences(document: Document) -> None:
    """Every other search over ours at the end of the runs, as the document tells all pairs."""
    rows = []
    for each in document["differences"]:
        if OURS not in (each["a"], each["b"]):
            continue
        other, power = (each["b"], -1) if each["a"] == OURS else (each["a"], 1)
        ratio, interval = "-", "-"  # a run found nothing
        if each["ratio"] is not None:
            low, high = sorted(bound**power for bound in each["interval"])
            ratio, interval = f"{each['ratio'] ** power:.3f}", f"{low:.3f} to {high:.3f}"
        rows.append([other, ratio, interval, f"{each['p']:.2g}", "yes" if each["significant"] else "no"])
    if rows:
        print(f"\nTimes over {OURS}'s at the end: geometric mean over pairs of runs; p of Wilcoxon's test after Holm")
        table(["", "ratio", "95% interval", "p", "significant"], rows)


def _untimed(document: Document) -> dict[str, Any]:
    """What it says of quality: its seconds are those of searches that ran side by side, and of other machines."""
    timed = {"search_ms_per_evaluation", "seconds", "phases", "status_seconds"}

    def told(summary: Sequence[Document]) -> list[dict[str, Any]]:
        return [{key: value for key, value in each.items() if key not in timed} for each in summary]

    runs = [
        {key: run[key] for key in _TOLD}
        | {"trajectory": {key: run["trajectory"][key] for key in ("evaluations", "best")}}
        for run in document["runs"]
    ]
    grounds = [{**ground, "summary": told(ground["summary"])} for ground in document["grounds"]]
    return {**document, "summary": told(document["summary"]), "grounds": grounds, "runs": runs}


def show(progress: Progress) -> None:
    """How far a comparison is, on one line of standard error."""
    print(f"\r{progress.message:<28}{progress.trials} evaluations, {progress.elapsed:.0f} s", end="", file=sys.stderr)


if __name__ == "__main__":
    main()
