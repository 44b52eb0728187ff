"""How storm's constants were chosen: one option at a time, cross-validated over families of kernels.

    python benchmarks/searches/constants.py [OPTION=VALUE,VALUE,...]... [--quick]

Every value runs on all recorded spaces from the same seeds, all other options at their defaults. The score of a run is
best/optimum, averaged over what it would have reported after 50, 100 and 200 evaluations; that of a family (convolution
and so on) is the mean over its spaces and seeds. A value that is best on average may be best by chance, or for
these kernels only. So each family in turn is left out: which value would the others have chosen, and what does the
family that had no say get by it, against the default?

The interval of a difference to the default is from the seeds (twice the standard error of the mean over families): it
tells of these spaces only.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from grounds import DATA, OUT, save, table
from numpy.typing import NDArray
from recorded import caches, place, share_cores, show

from stormdrop.compare import recordings
from stormdrop.compare.comparison import compare
from stormdrop.compare.search_spec import SearchSpec, parse_searches
from stormdrop.report import style
from stormdrop.report.summary import best_at
from stormdrop.search import options_of

Array = NDArray[np.float64]
Scores = Mapping[str, Mapping[str, Array]]
"""By search and family: the score of each seed, shape `(seeds,)`."""

SEARCH = "storm"
GRID = (
    "opening=6,10,16",
    "look=200,500,1000",
    "soft=0.25,0.5,1.0",
    "floor=0.4,0.6,0.8",
    "length=0.3,0.5,1.0",
    "alignments=true,false",
)
MARKS = (50, 100, 200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grid", nargs="*", metavar="OPTION=VALUE,...", help=f"by default {' '.join(GRID)}")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of Kernel Tuner caches (%(default)s)")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each value on each space (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side (%(default)s)")
    parser.add_argument("--exact", action="store_true", help="answer with the recorded medians, without noise")
    parser.add_argument("--quick", action="store_true", help="1 seed and 1 option, to try it: a minute")
    asked = parser.parse_args()
    seeds = 1 if asked.quick else asked.seeds
    grid = {option.partition("=")[0]: values(option) for option in asked.grid or (GRID[:1] if asked.quick else GRID)}
    grounds = [recordings.load(path) for path in caches(asked.data)]
    where = place("numpy", "scipy")
    share_cores(asked.jobs)

    others = [each for column in grid.values() for each in column if each.label != SEARCH]
    entrants = [*parse_searches(SEARCH), *others]
    run = compare(
        grounds, entrants, seeds=seeds, trials=MARKS[-1], exact=asked.exact, jobs=asked.jobs, on_progress=show
    )
    scores = _scores(run.to_json())
    results = {option: _option(option, column, scores) for option, column in grid.items()}
    families = list(scores[SEARCH])
    print(f"\n\n{seeds} seeds; best/optimum, mean of what it is after {', '.join(map(str, MARKS))} evaluations")
    _show_values(results, families)
    _show_choices(results)
    document = {"machine": where, "spaces": [ground.name for ground in grounds], "seeds": seeds, "exact": asked.exact}
    per_seed = {label: {family: each.tolist() for family, each in own.items()} for label, own in scores.items()}
    print(save("constants", {**document, "options": results, "scores": per_seed}))
    print(_draw(results, families))


def values(text: str) -> list[SearchSpec]:
    """The search with each value of an option, as in `opening=6,10,16`; with its default it is the search as it is."""
    option, _, listed = text.partition("=")
    default = dataclasses.asdict(options_of(SEARCH)())
    found = [each for value in listed.split(",") for each in parse_searches(f"{SEARCH}:{option}={value}")]
    changed = [each for each in found if each.options[option] != default[option]]
    plain = SearchSpec(SEARCH, SEARCH, {option: default[option]})
    return sorted([plain, *changed], key=lambda each: float(each.options[option]))


def _scores(document: Mapping[str, Any]) -> Scores:
    optima = {ground["ground"]: ground["optimum"] for ground in document["grounds"]}
    runs: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
    for run in document["runs"]:
        family = run["ground"].partition("_")[0]
        score = float(best_at(run, optima[run["ground"]], MARKS).mean())
        runs[run["search"], family, run["seed"]].append(score)
    found: dict[str, dict[str, Array]] = {}
    for search, family, _ in runs:
        seeds = sorted(seed for other, of, seed in runs if (other, of) == (search, family))
        each = [statistics.fmean(runs[search, family, seed]) for seed in seeds]
        found.setdefault(search, {})[family] = np.array(each)
    return found


def _option(option: str, column: Sequence[SearchSpec], scores: Scores) -> dict[str, Any]:
    """What each value came to, and what each family would have got by the value that the others choose."""
    families = list(scores[SEARCH])
    by_value = []
    for each in column:
        own = scores[each.label]
        gaps = np.mean([own[family] - scores[SEARCH][family] for family in families], axis=0)
        spread = 2 * float(np.std(gaps, ddof=1)) / len(gaps) ** 0.5 if len(gaps) > 1 else None
        by_value.append(
            {
                "value": each.options[option],
                "default": each.label == SEARCH,
                "families": {family: float(own[family].mean()) for family in families},
                "mean": statistics.fmean(float(own[family].mean()) for family in families),
                "difference": float(gaps.mean()),
                "interval": spread,
            }
        )
    default = next(each for each in by_value if each["default"])
    choices = []
    for left_out in families:
        rest = [family for family in families if family != left_out] or families
        chosen = min(by_value, key=lambda each: statistics.fmean(each["families"][family] for family in rest))
        score, usual = chosen["families"][left_out], default["families"][left_out]
        choices.append({"left_out": left_out, "chosen": chosen["value"], "score": score, "default": usual})
    return {"values": by_value, "choices": choices}


def _show_values(results: Mapping[str, Any], families: Sequence[str]) -> None:
    rows = []
    for option, result in results.items():
        for each in result["values"]:
            spread = "" if each["interval"] is None else f" +- {each['interval']:.4f}"
            difference = "default" if each["default"] else f"{each['difference']:+.4f}{spread}"
            scores = [f"{each['families'][family]:.4f}" for family in families]
            rows.append([f"{option}={each['value']}", *scores, f"{each['mean']:.4f}", difference])
    table(["", *families, "mean", "over the default's"], rows)


def _show_choices(results: Mapping[str, Any]) -> None:
    print(
        "\nLeave one family out: the value that the others choose, and what the family gets by it, over the default's"
    )
    rows = []
    for option, result in results.items():
        gaps = [each["score"] - each["default"] for each in result["choices"]]
        cells = [f"{each['chosen']} ({gap:+.4f})" for each, gap in zip(result["choices"], gaps, strict=True)]
        rows.append([option, *cells, f"{statistics.fmean(gaps):+.4f}"])
    left_out = [each["left_out"] for each in next(iter(results.values()))["choices"]]
    table(["", *left_out, "mean"], rows)


def _draw(results: Mapping[str, Any], families: Sequence[str]) -> str:
    figure, axes = style.panels([f"{option}: score over the default's" for option in results])
    for axis, result in zip(axes, results.values(), strict=True):
        default = next(each for each in result["values"] if each["default"])
        ticks = [str(each["value"]) for each in result["values"]]
        for at, family in enumerate(families):
            gaps = [each["families"][family] - default["families"][family] for each in result["values"]]
            axis.plot(ticks, gaps, marker="o", markersize=3, linewidth=1.2, label=family, **style.line_style(at))
        gaps = [each["difference"] for each in result["values"]]
        errors = [each["interval"] or 0.0 for each in result["values"]]
        axis.errorbar(ticks, gaps, errors, color="black", linewidth=2, capsize=3, label="mean of the families")
    style.legend(figure, axes[0])
    OUT.mkdir(exist_ok=True)
    style.save(figure, OUT / "constants.png")
    return str(OUT / "constants.png")


if __name__ == "__main__":
    main()
