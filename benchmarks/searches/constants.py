"""How storm's constants were chosen: one option at a time, cross-validated over families of kernels.

    python benchmarks/searches/constants.py [OPTION=VALUE,VALUE,...]... [--quick]

Every value runs on all recorded spaces from the same seeds; all other options have their defaults. The score of a run
is best/optimum, averaged over what it would have reported after 50, 100 and 200 evaluations. The score of a family
(convolution, for example) is the mean over its spaces and seeds. A value that is best on average may be best by chance,
or only for these kernels. So every family is left out once: which value would the other families have chosen, and how
good is this value for the family that was left out, compared with the default?

The interval of a difference to the default comes from the seeds (twice the standard error of the mean over families).
It says something about these spaces only.
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
from _grounds import DATA, OUT, caches, describe_machine, save, share_cores, show_progress, table
from numpy.typing import NDArray

from stormdrop.compare import recordings
from stormdrop.compare.comparison import compare
from stormdrop.compare.search_spec import SearchSpec, parse_searches
from stormdrop.report.plots import style
from stormdrop.report.summary import best_at
from stormdrop.search import options_of

Array = NDArray[np.float64]
Scores = Mapping[str, Mapping[str, Array]]
"""The scores of all seeds, shape `(seeds,)`, by search and family."""

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
    arguments = parser.parse_args()
    seeds = 1 if arguments.quick else arguments.seeds
    grid = {
        option.partition("=")[0]: values(option) for option in arguments.grid or (GRID[:1] if arguments.quick else GRID)
    }
    grounds = [recordings.load(path) for path in caches(arguments.data)]
    machine = describe_machine("numpy", "scipy")
    share_cores(arguments.jobs)

    others = [spec for specs in grid.values() for spec in specs if spec.label != SEARCH]
    searches = [*parse_searches(SEARCH), *others]
    comparison = compare(
        grounds,
        searches,
        seeds=seeds,
        trials=MARKS[-1],
        exact=arguments.exact,
        jobs=arguments.jobs,
        on_progress=show_progress,
    )
    scores = _scores(comparison.to_json())
    results = {option: _option(option, specs, scores) for option, specs in grid.items()}
    families = list(scores[SEARCH])
    print(f"\n\n{seeds} seeds; best/optimum, mean of its values after {', '.join(map(str, MARKS))} evaluations")
    _show_values(results, families)
    _show_choices(results)
    document = {
        "machine": machine,
        "spaces": [ground.name for ground in grounds],
        "seeds": seeds,
        "exact": arguments.exact,
    }
    per_seed = {
        label: {family: array.tolist() for family, array in of_search.items()} for label, of_search in scores.items()
    }
    print(save("constants", {**document, "options": results, "scores": per_seed}))
    print(_draw(results, families))


def values(text: str) -> list[SearchSpec]:
    """The search with every value of an option, as in `opening=6,10,16`; with the default it is the plain search."""
    option, _, listed = text.partition("=")
    default = dataclasses.asdict(options_of(SEARCH)())
    specs = [spec for value in listed.split(",") for spec in parse_searches(f"{SEARCH}:{option}={value}")]
    changed = [spec for spec in specs if spec.options[option] != default[option]]
    plain = SearchSpec(SEARCH, SEARCH, {option: default[option]})
    return sorted([plain, *changed], key=lambda spec: float(spec.options[option]))


def _scores(document: Mapping[str, Any]) -> Scores:
    optima = {ground["ground"]: ground["optimum"] for ground in document["grounds"]}
    runs: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
    for run in document["runs"]:
        family = run["ground"].partition("_")[0]
        score = float(best_at(run, optima[run["ground"]], MARKS).mean())
        runs[run["search"], family, run["seed"]].append(score)
    scores: dict[str, dict[str, Array]] = {}
    for search, family in dict.fromkeys((search, family) for search, family, _ in runs):
        seeds = sorted(seed for *key, seed in runs if tuple(key) == (search, family))
        means = [statistics.fmean(runs[search, family, seed]) for seed in seeds]
        scores.setdefault(search, {})[family] = np.array(means)
    return scores


def _option(option: str, specs: Sequence[SearchSpec], scores: Scores) -> dict[str, Any]:
    """The scores of all values, and the score of every family with the value that the other families choose."""
    families = list(scores[SEARCH])
    by_value = []
    for spec in specs:
        of_search = scores[spec.label]
        gaps = np.mean([of_search[family] - scores[SEARCH][family] for family in families], axis=0)
        spread = 2 * float(np.std(gaps, ddof=1)) / len(gaps) ** 0.5 if len(gaps) > 1 else None
        by_value.append(
            {
                "value": spec.options[option],
                "default": spec.label == SEARCH,
                "families": {family: float(of_search[family].mean()) for family in families},
                "mean": statistics.fmean(float(of_search[family].mean()) for family in families),
                "difference": float(gaps.mean()),
                "interval": spread,
            }
        )
    default = next(entry for entry in by_value if entry["default"])
    choices = []
    for left_out in families:
        rest = [family for family in families if family != left_out] or families
        chosen = min(by_value, key=lambda entry: statistics.fmean(entry["families"][family] for family in rest))
        score, usual = chosen["families"][left_out], default["families"][left_out]
        choices.append({"left_out": left_out, "chosen": chosen["value"], "score": score, "default": usual})
    return {"values": by_value, "choices": choices}


def _show_values(results: Mapping[str, Any], families: Sequence[str]) -> None:
    rows = []
    for option, result in results.items():
        for entry in result["values"]:
            spread = "" if entry["interval"] is None else f" +- {entry['interval']:.4f}"
            difference = "default" if entry["default"] else f"{entry['difference']:+.4f}{spread}"
            scores = [f"{entry['families'][family]:.4f}" for family in families]
            rows.append([f"{option}={entry['value']}", *scores, f"{entry['mean']:.4f}", difference])
    table(["", *families, "mean", "minus the default's"], rows)


def _show_choices(results: Mapping[str, Any]) -> None:
    print("\nLeave one family out: the value that the others choose, and its score minus the default's")
    rows = []
    for option, result in results.items():
        gaps = [choice["score"] - choice["default"] for choice in result["choices"]]
        cells = [f"{choice['chosen']} ({gap:+.4f})" for choice, gap in zip(result["choices"], gaps, strict=True)]
        rows.append([option, *cells, f"{statistics.fmean(gaps):+.4f}"])
    left_out = [choice["left_out"] for choice in next(iter(results.values()))["choices"]]
    table(["", *left_out, "mean"], rows)


def _draw(results: Mapping[str, Any], families: Sequence[str]) -> str:
    figure, axes = style.panels([f"{option}: score minus the default's" for option in results])
    for axis, result in zip(axes, results.values(), strict=True):
        default = next(entry for entry in result["values"] if entry["default"])
        ticks = [str(entry["value"]) for entry in result["values"]]
        for index, family in enumerate(families):
            gaps = [entry["families"][family] - default["families"][family] for entry in result["values"]]
            axis.plot(ticks, gaps, marker="o", markersize=3, linewidth=1.2, label=family, **style.line_style(index))
        gaps = [entry["difference"] for entry in result["values"]]
        errors = [entry["interval"] or 0.0 for entry in result["values"]]
        axis.errorbar(ticks, gaps, errors, color="black", linewidth=2, capsize=3, label="mean of the families")
    style.legend(figure, axes[0])
    OUT.mkdir(exist_ok=True)
    style.save(figure, OUT / "constants.png")
    return str(OUT / "constants.png")


if __name__ == "__main__":
    main()
