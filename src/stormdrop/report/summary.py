"""The document of a comparison: its runs, and what they come to per search, on each ground and over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .differences import differences

Array = NDArray[np.float64]
Document = Mapping[str, Any]

WITHIN = {"1.05": 1.05, "1.10": 1.10}
"""Times the optimum that count as close to it."""

_FIRST_CHECKPOINT = 25


def document(
    settings: Document, searches: Sequence[str], grounds: Sequence[Document], runs: Sequence[Document]
) -> dict[str, Any]:
    """The whole document; `grounds` hold their `optimum`, `runs` their `ground`, `search` and `trajectory`.

    `ground` and `optimum` are null where there are several. What is said over all grounds is the mean over them,
    differences excepted, which pair all runs.
    """
    marks = checkpoints(settings["trials"])
    described = []
    for ground in grounds:
        own = [run for run in runs if run["ground"] == ground["ground"]]
        summaries = [_summary(search, [r for r in own if r["search"] == search], ground, marks) for search in searches]
        described.append({**ground, "summary": summaries, "differences": differences(_ends(searches, own))})
    single = described[0] if len(described) == 1 else None
    return {
        "ground": single["ground"] if single else None,
        "optimum": single["optimum"] if single else None,
        **settings,
        "searches": list(searches),
        "summary": single["summary"] if single else [_mean(each) for each in _by_search(described)],
        "differences": single["differences"] if single else differences(_ends(searches, runs)),
        "grounds": described,
        "runs": list(runs),
    }


def reference(grounds: Sequence[Document]) -> str:
    """What the best is compared with, in words."""
    return "optimum" if all(ground["recorded"] for ground in grounds) else "best known"


def checkpoints(trials: int) -> list[int]:
    """The numbers of evaluations that a table shows: 25, 50, 100 and so on, and the last."""
    marks = []
    mark = _FIRST_CHECKPOINT
    while mark < trials:
        marks.append(mark)
        mark *= 2
    return [*marks, trials]


def best_at(run: Document, optimum: float | None, evaluations: ArrayLike) -> Array:
    """Best over optimum after these numbers of evaluations; infinite before anything worked.

    After the run has ended it stays what it was.
    """
    return _held(run, optimum, np.asarray(run["trajectory"]["evaluations"], dtype=np.float64), evaluations)


def best_after(run: Document, optimum: float | None, seconds: ArrayLike) -> Array:
    """Best over optimum after this much wall time, everything in it; infinite before anything worked."""
    return _held(run, optimum, np.sum([run["trajectory"][part] for part in run["phases"]], axis=0), seconds)


def _held(run: Document, optimum: float | None, changes: Array, at: ArrayLike) -> Array:
    times = run["trajectory"]["best"]
    known = optimum is not None
    ratios = [seconds / optimum if known and seconds is not None else np.inf for seconds in times]
    return np.array([np.inf, *ratios])[np.searchsorted(changes, at, side="right")]


def _ends(searches: Sequence[str], runs: Sequence[Document]) -> dict[str, list[float]]:
    """Best over optimum at the end of each run, runs of the same ground and seed at the same place."""
    ordered = sorted(runs, key=lambda run: (run["ground"], run["seed"]))
    return {
        search: [
            np.inf if run["best_over_optimum"] is None else run["best_over_optimum"]
            for run in ordered
            if run["search"] == search
        ]
        for search in searches
    }


def _summary(search: str, runs: Sequence[Document], ground: Document, marks: Sequence[int]) -> dict[str, Any]:
    ends = np.array([best_at(run, ground["optimum"], marks) for run in runs])
    evaluations = sum(run["evaluations"] for run in runs)
    parts = runs[0]["phases"]
    return {
        "search": search,
        "runs": len(runs),
        **_quality(ends[:, -1]),
        "at": {str(mark): _quality(ends[:, column]) for column, mark in enumerate(marks)},
        "evaluations": evaluations / len(runs),
        "evaluations_to_within": {
            label: _finite(np.median([_or_infinite(run["evaluations_to_within"][label]) for run in runs]))
            for label in WITHIN
        },
        "search_ms_per_evaluation": 1e3 * sum(run["search_seconds"] for run in runs) / max(evaluations, 1),
        "seconds": float(np.mean([run["seconds"] for run in runs])),
        "phases": {part: float(np.mean([run["phases"][part] for run in runs])) for part in parts},
        "statuses": _total([run["statuses"] for run in runs]),
        "status_seconds": _total([run["status_seconds"] for run in runs]),
        "converged": float(np.mean([run["converged"] for run in runs])),
    }


def _quality(ratios: Array) -> dict[str, Any]:
    """Mean and median of best over optimum, null where it is infinite, and the shares of runs close to the optimum."""
    return {
        "best_over_optimum": {"mean": _finite(np.mean(ratios)), "median": _finite(np.median(ratios))},
        "within": {label: float(np.mean(ratios <= factor)) for label, factor in WITHIN.items()},
    }


def _by_search(grounds: Sequence[Document]) -> list[tuple[Document, ...]]:
    return list(zip(*(ground["summary"] for ground in grounds), strict=True))


def _mean(summaries: Sequence[Document]) -> dict[str, Any]:
    """One search over several grounds: the mean of every figure, but totals of counts and of seconds by status."""
    totals = {key: _total([each[key] for each in summaries]) for key in ("statuses", "status_seconds")}
    averaged = {key: _average([each[key] for each in summaries]) for key in summaries[0] if key not in totals}
    return {**averaged, **totals, "runs": sum(each["runs"] for each in summaries)}


def _average(values: Sequence[Any]) -> Any:
    """Of numbers their mean, of mappings each key's; null where any is null; what is no number is the same in all."""
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _average([value[key] for value in values]) for key in first}
    if isinstance(first, str):
        return first
    return None if None in values else float(np.mean(values))


def _total(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    keys = sorted({key for each in counts for key in each})
    return {key: sum(each.get(key, 0) for each in counts) for key in keys}


def _or_infinite(value: float | None) -> float:
    return np.inf if value is None else value


def _finite(value: float | np.floating[Any]) -> float | None:
    return float(value) if np.isfinite(value) else None
