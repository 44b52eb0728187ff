"""What a comparison on recorded spaces comes to: its tables, its figures and its JSON document."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from _grounds import OUT, save, table

from stormdrop.report.plots import curves, style
from stormdrop.report.summary import WITHIN, checkpoints

Document = Mapping[str, Any]

OURS = "storm"
OUTLIER = "dedispersion_MI250X"
"""The space that the means depend on most: they are also shown without it."""

_OF_A_RUN = (
    "ground",
    "search",
    "seed",
    "evaluations",
    "converged",
    "best",
    "best_over_optimum",
    "evaluations_to_within",
)
"""What is written of a run beside its trajectory."""


def report(name: str, document: Document, where: Document) -> None:
    """Prints the tables of a comparison, draws its figures, and writes its document without times."""
    grounds = document["grounds"]
    print(
        f"\n{document['seeds']} seeds; best/optimum after so many evaluations; in the means all spaces weigh the same"
    )
    for ground in grounds:
        _table(f"{ground['ground']} (optimum {1e3 * ground['optimum']:.4g} ms)", document, [ground])
    _table(f"all {len(grounds)} spaces", document, grounds)
    others = [ground for ground in grounds if ground["ground"] != OUTLIER]
    if 0 < len(others) < len(grounds):
        _table(f"without {OUTLIER}", document, others)
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
        """The mean over the grounds of one figure of their summaries; infinite if one of them is infinite."""
        values = [next(entry for entry in ground["summary"] if entry["search"] == search) for ground in grounds]
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
    """Prints how every other search differs from ours at the end of the runs."""
    rows = []
    for pair in document["differences"]:
        if OURS not in (pair["a"], pair["b"]):
            continue
        other, power = (pair["b"], -1) if pair["a"] == OURS else (pair["a"], 1)
        ratio, interval = "-", "-"  # in some run no candidate worked
        if pair["ratio"] is not None:
            low, high = sorted(bound**power for bound in pair["interval"])
            ratio, interval = f"{pair['ratio'] ** power:.3f}", f"{low:.3f} to {high:.3f}"
        rows.append([other, ratio, interval, f"{pair['p']:.2g}", "yes" if pair["significant"] else "no"])
    if rows:
        print(f"\nTimes over {OURS}'s at the end: geometric mean over pairs of runs; p of Wilcoxon's test after Holm")
        table(["", "ratio", "95% interval", "p", "significant"], rows)


def _untimed(document: Document) -> dict[str, Any]:
    """The document without the times of the searches.

    They are not comparable: searches ran side by side, and the recordings are from other machines.
    """
    timed = {"search_ms_per_evaluation", "seconds", "phases", "status_seconds"}

    def without_times(summary: Sequence[Document]) -> list[dict[str, Any]]:
        return [{key: value for key, value in entry.items() if key not in timed} for entry in summary]

    runs = [
        {key: run[key] for key in _OF_A_RUN}
        | {"trajectory": {key: run["trajectory"][key] for key in ("evaluations", "best")}}
        for run in document["runs"]
    ]
    grounds = [{**ground, "summary": without_times(ground["summary"])} for ground in document["grounds"]]
    return {**document, "summary": without_times(document["summary"]), "grounds": grounds, "runs": runs}
