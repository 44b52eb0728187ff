"""The pages of a bench, of a comparison and of a landscape."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from report_documents import HOSTILE, bench
from test_model_page import Elements, assert_shows_only_text

from stormdrop.cli import run
from stormdrop.report.documents import Bench, checked
from stormdrop.report.pages.bench_page import bench_page
from stormdrop.report.plots.ranks import groups, mean_ranks
from stormdrop.report.plots.svg import Numbering, plot


def test_a_bench_says_who_is_faster() -> None:
    page = bench_page(checked(bench(), Bench, "it"), "stormdrop bench x")
    assert_shows_only_text(page)
    assert "ours is 1.43 to 1.57 times as fast" in " ".join(Elements(page).text.split())


@pytest.mark.parametrize(
    ("interval", "expected"), [([0.9, 1.1], "no significant difference"), ([0.5, 0.6], "it is faster")]
)
def test_a_bench_claims_no_more_than_it_knows(interval: list[float], expected: str) -> None:
    document = bench()
    document["contenders"][1]["ratio_interval"] = interval
    assert expected in bench_page(checked(document, Bench, "it"), "stormdrop bench x")


def test_a_comparison_has_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["compare", "analytic:lrw", "--search", "droplet,random", "--seeds", "3", "--trials", "30"]
    assert run([*words, "--report", str(page), "--json"]) == 0
    text = page.read_text()
    assert text.count("<svg") == 7
    assert "stormdrop compare analytic:lrw --search droplet,random --seeds 3 --trials 30" in text
    assert page.stat().st_size < 2_000_000


def test_a_landscape_has_a_surface(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["landscape", "analytic:lrw", "--knobs", "h,w", "--out", str(tmp_path / "plane.png")]
    assert run([*words, "--report", str(page)]) == 0
    text = page.read_text()
    found = re.search(r'<script type="application/json" id="surface-data">(.*?)</script>', text)
    assert found is not None
    surface = json.loads(found[1])
    column, row = surface["best"]
    assert surface["ratios"][row][column] == min(ratio for line in surface["ratios"] for ratio in line if ratio)
    assert surface["path"]


def test_ranks_share_ties_and_count_failures_last() -> None:
    runs = [
        {"ground": "g", "seed": seed, "search": search, "best_over_optimum": best}
        for seed in (0, 1)
        for search, best in (("a", 1.0), ("b", 1.0), ("c", None))
    ]
    assert mean_ranks({"searches": ["a", "b", "c"], "runs": runs}) == {"a": 1.5, "b": 1.5, "c": 3.0}


def test_a_bar_joins_only_what_does_not_differ() -> None:
    names = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    pairs = [("a", "c"), ("a", "d"), ("b", "d")]
    assert groups(names, [{"a": a, "b": b, "significant": True} for a, b in pairs]) == [
        ["a", "b"],
        ["b", "c"],
        ["c", "d"],
    ]
    assert groups(names, []) == [["a", "b", "c", "d"]]


def test_plots_of_a_page_have_names_of_their_own() -> None:
    def figure() -> Figure:
        drawn, axis = plot()
        axis.plot([0, 1], [0, 1])
        return drawn

    numbering = Numbering()
    both = numbering.inline(figure(), HOSTILE) + numbering.inline(figure(), r"\1")
    names = re.findall(r'\sid="([^"]+)"', both)
    assert names
    assert len(set(names)) == len(names)
    assert "<script" not in both
    assert r'aria-label="\1"' in both
    assert "#000000" not in both
