"""What the plots draw, where, and under which name: read from matplotlib's objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from stormdrop.report.plots import costs, curves, style
from stormdrop.report.plots.landscape import heat_map
from stormdrop.report.summary import comparison_document

PARTS = ("search", "schedule", "build", "run", "check")


def comparison(searches: int = 2, grounds: int = 1, recorded: bool = True) -> dict[str, Any]:
    """Search i ends at 1 + i / 10 times the optimum after 10 + i evaluations, having begun at twice the optimum."""
    runs = []
    for ground in range(grounds):
        for search in range(searches):
            for seed in range(3):
                evaluations = [2, 10 + search]
                spent = dict(zip(PARTS, (0.1, 0.0, 3.0, 1.0, 0.2), strict=True))
                runs.append(
                    {
                        "ground": f"ground {ground}",
                        "search": f"a search of some name {search}",
                        "seed": seed,
                        "evaluations": 40,
                        "best_over_optimum": 1 + search / 10,
                        "evaluations_to_within": {"1.05": None, "1.10": None},
                        "search_seconds": 0.1,
                        "seconds": 4.3,
                        "phases": spent,
                        "statuses": {"ok": 30, "runtime": 10 * search},
                        "status_seconds": {"ok": 4.0},
                        "converged": search == 0,
                        "trajectory": {
                            "evaluations": evaluations,
                            "best": [2e-3, 1e-3 * (1 + search / 10)],
                            **{part: [spent[part] * n / 40 for n in evaluations] for part in PARTS},
                        },
                    }
                )
    described = [{"ground": f"ground {index}", "recorded": recorded, "optimum": 1e-3} for index in range(grounds)]
    names = list(dict.fromkeys(str(run["search"]) for run in runs))
    return comparison_document({"trials": 60, "seeds": 3}, names, described, runs)


def lines(figure: Figure, panel: int = 0) -> dict[str, Any]:
    labels = {str(line.get_label()): line for line in figure.axes[panel].lines}
    return {label: line for label, line in labels.items() if not label.startswith("_")}


def names(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_a_curve_is_the_median_and_the_star_where_it_converged() -> None:
    figure = curves.by_evaluations(comparison())
    assert [axis.get_title() for axis in figure.axes] == ["ground 0"]
    drawn = lines(figure)
    assert names(figure) == list(drawn) == ["a search of some name 0", "a search of some name 1"]
    x, y = drawn["a search of some name 1"].get_data()
    assert np.isnan(y[x < 2]).all()
    assert set(y[(x >= 2) & (x < 11)]) == {2.0}
    assert set(np.round(y[x >= 11], 6)) == {1.1}
    assert x[-1] == 60  # flat after its 40 evaluations
    (star,) = [line for line in figure.axes[0].lines if line.get_marker() == "*"]
    assert [float(np.squeeze(coordinate)) for coordinate in star.get_data()] == [40.0, 1.0]


def test_against_seconds_everything_counts() -> None:
    figure = curves.by_seconds(comparison())
    x, y = lines(figure)["a search of some name 0"].get_data()
    reached = 4.3 * 10 / 40
    assert set(y[x < 0.99 * reached]) == {2.0}
    assert set(y[x > 1.01 * reached]) == {1.0}
    assert x[-1] == pytest.approx(4.3)
    assert figure.axes[0].get_xscale() == "log"


def test_with_several_grounds_the_first_panel_is_their_mean() -> None:
    several = comparison(grounds=2)
    for run in several["runs"]:
        if run["ground"] == "ground 1":
            run["trajectory"]["best"] = [4e-3, 3e-3]
    figure = curves.by_evaluations(several)
    assert [axis.get_title() for axis in figure.axes] == ["mean over 2 spaces", "ground 0", "ground 1"]
    ends = [lines(figure, panel)["a search of some name 0"].get_ydata()[-1] for panel in range(3)]
    assert ends == pytest.approx([2.0, 1.0, 3.0])
    assert len(figure.legends) == 1


def test_the_aim_is_named() -> None:
    assert curves.by_evaluations(comparison()).axes[0].get_ylabel() == "best / optimum"
    assert curves.by_evaluations(comparison(recorded=False)).axes[0].get_ylabel() == "best / best known"
    assert curves.within(comparison(recorded=False)).axes[0].get_title() == "within 5% of the best known"


def test_shares_close_to_the_optimum() -> None:
    figure = curves.within(comparison())
    five, ten = (lines(figure, panel) for panel in range(2))
    assert five["a search of some name 0"].get_ydata()[[8, 9]].tolist() == [0.0, 1.0]
    assert five["a search of some name 1"].get_ydata()[-1] == 0.0
    assert ten["a search of some name 1"].get_ydata()[-1] == 1.0


def test_of_many_searches_the_best_are_shown_and_can_be_told_apart() -> None:
    figure = curves.by_evaluations(comparison(searches=15))
    assert names(figure) == [f"a search of some name {index}" for index in range(style.MAX_SEARCHES)]
    looks = {(line.get_color(), line.get_linestyle()) for line in lines(figure).values()}
    assert len(looks) == style.MAX_SEARCHES


def test_bars_are_shares_and_what_no_search_has_is_left_out() -> None:
    figure = costs.time(comparison())
    assert names(figure) == ["search", "build", "run", "check"]
    widths = [[bar.get_width() for bar in bars] for bars in figure.axes[0].containers]
    assert np.sum(widths, axis=0) == pytest.approx([1.0, 1.0])
    assert [text.get_text() for text in figure.axes[0].texts] == ["4.3 s", "4.3 s"]
    figure = costs.statuses(comparison())
    assert names(figure) == ["ok", "runtime"]
    assert [bar.get_width() for bar in figure.axes[0].containers[1]] == pytest.approx([0.0, 0.25])


def test_a_ground_on_which_nothing_worked(tmp_path: Path) -> None:
    """Its panel and the mean over grounds are empty, because a search cannot be compared with anything there."""
    known = comparison(grounds=2)
    for run in known["runs"][6:]:
        run["trajectory"] = {key: [] for key in run["trajectory"]}
        run["best_over_optimum"] = None
    grounds = [{"ground": "ground 0", "recorded": False, "optimum": 1e-3}]
    grounds.append({"ground": "ground 1", "recorded": False, "optimum": None})
    lost = comparison_document({"trials": 60, "seeds": 3}, known["searches"], grounds, known["runs"])
    assert lost["summary"][0]["best_over_optimum"]["mean"] is None
    assert lost["differences"][0]["pairs"] == 3
    for make in (curves.by_evaluations, curves.by_seconds):
        figure = make(lost)
        ends = [lines(figure, panel)["a search of some name 1"].get_ydata()[-1] for panel in range(3)]
        assert ends == pytest.approx([np.nan, 1.1, np.nan], nan_ok=True)
        style.save(figure, tmp_path / "lost.png")


@pytest.mark.long
def test_files_are_pictures(tmp_path: Path) -> None:
    for name, make in (("e", curves.by_evaluations), ("t", costs.time), ("s", costs.statuses)):
        style.save(make(comparison(grounds=2)), tmp_path / f"{name}.png")
        pixels = imread(tmp_path / f"{name}.png")
        assert pixels.shape[1] > 800
        assert pixels[..., :3].std() > 0.02


def plane() -> dict[str, Any]:
    return {
        "ground": "g",
        "sketch": "s",
        "knobs": ["tile", "unroll"],
        "values": [[[3, 8], [6, 4], [24, 1]], [0, 16]],
        "fixed": {"order": "ij"},
        "seconds": [[2.0, 1.0, None], [4.0, 100.0, None]],
        "statuses": [["ok", "ok", "runtime"], ["ok", "ok", None]],
        "optimum": 1.0,
        "optimum_at": [1, 0],
        "search": "droplet",
        "seed": 0,
        "evaluations": 3,
        "best_over_optimum": 1.0,
        "path": [[0, 1], [0, 0], [1, 0]],
        "evaluated": [[0, 1], [0, 0], [1, 0]],
    }


def test_a_landscape() -> None:
    figure = heat_map(plane())
    axis = figure.axes[0]
    drawn = lines(figure)
    assert [label.get_text() for label in axis.get_xticklabels()] == ["3x8", "6x4", "24x1"]
    assert drawn["path"].get_xydata().tolist() == [[0, 1], [0, 0], [1, 0]]
    assert drawn["best"].get_xydata().tolist() == [[1, 0]]
    assert drawn["end"].get_xydata().tolist() == [[1, 0]]
    assert drawn["failed"].get_xydata().tolist() == [[2, 0]]
    assert set(names(figure)) == {
        "failed",
        "evaluated",
        "path",
        "start of the path",
        "end",
        "best",
        "outside the space",
    }
    (image,) = axis.images
    assert (image.norm.vmin, image.norm.vmax) == (1.0, 100.0)
    values: Any = image.get_array()
    assert np.isnan(np.ma.filled(values, np.nan)).sum() == 2
    assert "order=ij" in axis.get_title()


def test_a_landscape_on_which_nothing_was_found(tmp_path: Path) -> None:
    lost = {**plane(), "path": [[2, 0]], "evaluated": [[2, 0]], "best_over_optimum": None}
    figure = heat_map(lost)
    assert "nothing worked" in figure.axes[0].get_title()
    style.save(figure, tmp_path / "lost.png")
    assert imread(tmp_path / "lost.png").shape[0] > 300
