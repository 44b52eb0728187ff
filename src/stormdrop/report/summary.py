"""The document of a comparison of searches: its runs, and a summary of each search per ground and over all grounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .differences import differences

Array = NDArray[np.float64]
Document = Mapping[str, Any]

WITHIN = {"1.05": 1.05, "1.10": 1.10}
"""Which multiples of the optimum count as close to it, by their names in a document."""

_FIRST_CHECKPOINT = 25


def comparison_document(
    settings: Document, searches: Sequence[str], grounds: Sequence[Document], runs: Sequence[Document]
) -> dict[str, Any]:
    """The whole document of a comparison.

    Args:
        settings: Fields that are copied into the document. `trials` is the number of evaluations of a run.
        searches: The names of the searches.
        grounds: What the searches are compared on. Each has a `ground` (its name), an `optimum` in seconds or None,
            and `recorded`.
        runs: One entry per search, seed and ground, with `ground`, `search`, `seed`, `trajectory` and its totals.

    Returns:
        The document. `ground` and `optimum` are None if there are several grounds. `summary` is then the mean over the
        grounds, and `differences` pairs the runs of all grounds.
    """
    marks = checkpoints(settings["trials"])
    summarised = []
    for ground in grounds:
        on_ground = [run for run in runs if run["ground"] == ground["ground"]]
        summaries = [
            _summary(search, [run for run in on_ground if run["search"] == search], ground, marks)
            for search in searches
        ]
        summarised.append({**ground, "summary": summaries, "differences": differences(_ends(searches, on_ground))})
    single = summarised[0] if len(summarised) == 1 else None
    return {
        "ground": single["ground"] if single else None,
        "optimum": single["optimum"] if single else None,
        **settings,
        "searches": list(searches),
        "summary": single["summary"] if single else [_mean(summaries) for summaries in _by_search(summarised)],
        "differences": single["differences"] if single else differences(_ends(searches, runs)),
        "grounds": summarised,
        "runs": list(runs),
    }


def name_of_optimum(grounds: Sequence[Document]) -> str:
    """What the best candidates on these grounds are compared with: only a recorded ground has a true optimum."""
    return "optimum" if all(ground["recorded"] for ground in grounds) else "best known"


def checkpoints(trials: int) -> list[int]:
    """The numbers of evaluations that a table of runs of `trials` trials shows: 25, 50, 100 and so on, and the last."""
    marks = []
    mark = _FIRST_CHECKPOINT
    while mark < trials:
        marks.append(mark)
        mark *= 2
    return [*marks, trials]


def best_at(run: Document, optimum: float | None, evaluations: ArrayLike) -> Array:
    """How good the best candidate of a run was after these numbers of evaluations.

    Args:
        run: An entry of the document's `runs`.
        optimum: The optimum of its ground in seconds, or None if no candidate worked on the ground.
        evaluations: One number of evaluations or several. After the end of the run its best candidate counts.

    Returns:
        The best time over the optimum, of the shape of `evaluations`; infinite before a candidate worked.
    """
    return _best_over_optimum(run, optimum, np.asarray(run["trajectory"]["evaluations"], dtype=np.float64), evaluations)


def best_after(run: Document, optimum: float | None, seconds: ArrayLike) -> Array:
    """How good the best candidate of a run was after `seconds` of wall time, all phases included.

    Args:
        run: An entry of the document's `runs`.
        optimum: The optimum of its ground in seconds, or None if no candidate worked on the ground.
        seconds: One wall time or several. After the end of the run its best candidate counts.

    Returns:
        The best time over the optimum, of the shape of `seconds`; infinite before a candidate worked.
    """
    return _best_over_optimum(
        run, optimum, np.sum([run["trajectory"][part] for part in run["phases"]], axis=0), seconds
    )


def _best_over_optimum(run: Document, optimum: float | None, changes: Array, positions: ArrayLike) -> Array:
    """The step function that takes the values of the trajectory at `changes`, evaluated at `positions`."""
    times = run["trajectory"]["best"]
    known = optimum is not None
    ratios = [seconds / optimum if known and seconds is not None else np.inf for seconds in times]
    return np.array([np.inf, *ratios])[np.searchsorted(changes, positions, side="right")]


def _ends(searches: Sequence[str], runs: Sequence[Document]) -> dict[str, list[float]]:
    """Best over optimum at the end of each run. Entry i of all searches has the same ground and seed."""
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
    """Mean and median of best over optimum (None if infinite), and the shares of runs that are close to the optimum."""
    return {
        "best_over_optimum": {"mean": _finite(np.mean(ratios)), "median": _finite(np.median(ratios))},
        "within": {label: float(np.mean(ratios <= factor)) for label, factor in WITHIN.items()},
    }


def _by_search(grounds: Sequence[Document]) -> list[tuple[Document, ...]]:
    return list(zip(*(ground["summary"] for ground in grounds), strict=True))


def _mean(summaries: Sequence[Document]) -> dict[str, Any]:
    """One search over several grounds: the mean of every number, and totals of the counts and seconds by status."""
    totals = {key: _total([summary[key] for summary in summaries]) for key in ("statuses", "status_seconds")}
    averaged = {key: _average([summary[key] for summary in summaries]) for key in summaries[0] if key not in totals}
    return {**averaged, **totals, "runs": sum(summary["runs"] for summary in summaries)}


def _average(values: Sequence[Any]) -> Any:
    """The mean of numbers, and of mappings the mean for each key. None if any value is None. Texts are all equal."""
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _average([value[key] for value in values]) for key in first}
    if isinstance(first, str):
        return first
    return None if None in values else float(np.mean(values))


def _total(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    keys = sorted({key for count in counts for key in count})
    return {key: sum(count.get(key, 0) for count in counts) for key in keys}


def _or_infinite(value: float | None) -> float:
    return np.inf if value is None else value


def _finite(value: float | np.floating[Any]) -> float | None:
    return float(value) if np.isfinite(value) else None
