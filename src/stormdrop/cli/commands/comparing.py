"""`stormdrop compare` and `stormdrop landscape`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import InputError
from ...optional_packages import PLOTS, require
from ...tuning.options import whole_number
from .. import completion, options, output
from ..options import JsonOption, SeedOption
from ..progress import Reporter
from ..signals import INTERRUPTED
from ..status_line import telling
from .reporting import PageOption, check_page, command_line, write_page

if TYPE_CHECKING:
    from ...ir.workload import Workload
    from ...measure.replay import Recording

_MOST_MARKS = 6  # numbers of evaluations in a table

GroundArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="OPERATOR NAME=VALUE...|SPACE-FILE",
        help="What to search: an operator, which is measured here; or recorded spaces, each a Kernel Tuner cache "
        "(.json, .json.gz), exported records (.jsonl) or analytic:NAME.",
    ),
]
SearchesOption = Annotated[
    str,
    typer.Option(
        "--search",
        metavar="NAME[:OPTION=VALUE]...,...",
        autocompletion=completion.searches,
        help=f"Searches, separated by commas: {options.SEARCHES_HELP}.",
    ),
]


def compare(
    what: GroundArgument,
    search: SearchesOption = "storm,droplet,random",
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", help="How many runs each search makes on a space.")
    ] = 10,
    trials: Annotated[int, typer.Option("--trials", metavar="N", help="The most candidates of a run.")] = 200,
    time: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="T", help="The most wall time of a run, as recorded or as spent here: 90s, 3m, 1h."
        ),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Let recordings answer without noise.")] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", metavar="N", help="How many runs on recordings go on side by side.")
    ] = 1,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The folder for plots.")] = None,
    report: PageOption = None,
    as_json: JsonOption = False,
) -> int:
    """Compare searches side by side, on an operator or on recorded spaces."""
    for name, value in (("seeds", seeds), ("trials", trials), ("jobs", jobs)):
        whole_number(name, value, 1)
    budget = options.duration(time)
    check_page(report, "--report")
    if out is not None:
        require(PLOTS, f"--out {out}")
    folder = None if out is None else _folder(out)
    with output.stdout_for_json(as_json):
        opening = f"comparing {search} from {seeds} seeds, {trials} trials each at most"
        with telling(opening, "loading what is searched"):
            from ...compare.comparison import compare as run
            from ...compare.search_spec import parse_searches

            searches = parse_searches(search)
            grounds = _grounds(what)
        most = seeds * trials * len(searches) * (len(grounds) if isinstance(grounds, list) else 1)
        limits: dict[str, Any] = {"seeds": seeds, "trials": trials, "time": budget, "exact": exact, "jobs": jobs}
        with Reporter(most, opening) as progress:
            try:
                comparison = run(grounds, searches, **limits, on_progress=progress)
            except KeyboardInterrupt:
                output.say("stormdrop: interrupted before every search had finished its first seed")
                return INTERRUPTED
        document = comparison.to_json()
        with telling(opening, "drawing the result"):
            document["files"] = [] if folder is None else _plot_comparison(document, folder)
            if report is not None:
                from ...report.pages.comparison_page import comparison_page

                chosen = {"search": search, "seeds": seeds, "trials": trials, "time": time, "exact": exact}
                write_page(comparison_page(document, command_line("compare", *what, **chosen)), report)
                document["files"].append(str(report))
    if as_json:
        output.emit(document)
    else:
        print_comparison(document)
    return INTERRUPTED if comparison.interrupted else 0


def landscape(
    what: GroundArgument,
    knobs: Annotated[str, typer.Option("--knobs", metavar="A,B", help="The two knobs that vary.")],
    search: Annotated[
        str,
        typer.Option(
            "--search",
            metavar="NAME[:OPTION=VALUE]...",
            autocompletion=completion.searches,
            help="The search that runs on it.",
        ),
    ] = "droplet",
    seed: SeedOption = 0,
    trials: Annotated[int, typer.Option("--trials", metavar="N", help="The most candidates of the search.")] = 200,
    fixed: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="KNOB=VALUE,...",
            help="Values of other knobs; by default those of the best recorded candidate or of the default schedule.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.png", help="The file of the picture.")] = Path(
        "landscape.png"
    ),
    report: PageOption = None,
    as_json: JsonOption = False,
) -> int:
    """Draw the times over two knobs of a space, and the path of a search on this plane."""
    whole_number("trials", trials, 1)
    whole_number("seed", seed, 0)
    if out.suffix != ".png":
        raise InputError(f"--out {out}: must end in .png")
    require(PLOTS, "a landscape")
    options.writable_file(out, "--out")
    check_page(report, "--report")
    values = options.arguments(_words(fixed or ""))
    with output.stdout_for_json(as_json):
        opening = f"measuring every point of {knobs}"
        with telling(opening, "loading what is searched"):
            from ...compare.landscape import landscape as run
            from ...compare.search_spec import parse_searches
            from ...report.plots.landscape import heat_map
            from ...report.plots.style import save

            searches = parse_searches(search)
            if len(searches) != 1:
                raise InputError(f"--search {search}: a landscape shows one search")
            grounds = _grounds(what)
        if isinstance(grounds, list) and len(grounds) != 1:
            raise InputError(f"{what[1]}: a landscape shows one space")
        ground = grounds[0] if isinstance(grounds, list) else grounds
        with Reporter(None, opening) as progress:
            try:
                result = run(
                    ground, _words(knobs), searches[0], fixed=values, trials=trials, seed=seed, on_progress=progress
                )
            except KeyboardInterrupt:
                output.say("stormdrop: interrupted before every point was measured, so nothing is drawn")
                return INTERRUPTED
        document = {**result.to_json(), "file": str(out)}
        with telling(opening, "drawing the result"):
            save(heat_map(document), out)
            if report is not None:
                from ...report.pages.landscape_page import landscape_page

                chosen = {"knobs": knobs, "search": search, "seed": seed, "trials": trials, "at": fixed}
                write_page(landscape_page(document, command_line("landscape", *what, **chosen)), report)
    if as_json:
        output.emit(document)
        return 0
    best, ratio = document["best"], document["best_over_optimum"]
    output.line(f"{document['ground']}: the best of the plane takes {output.seconds(document['optimum'])}")
    ending = "nothing worked" if ratio is None else f"ends at {output.seconds(best)}, {ratio:.3f} times the best"
    output.line(f"{document['search']}: {document['evaluations']} evaluations, {ending}")
    if document["suspect"]:
        output.line(f"something else used the machine during {document['suspect']} measurements")
    for file in (out, report):
        if file is not None:
            output.line(f"saved: {file}")
    return 0


def print_comparison(document: Mapping[str, Any]) -> None:
    """Prints the document of a comparison: a table per ground, one over all, and how the searches differ."""
    from ...report.differences import verdict
    from ...report.summary import name_of_optimum

    grounds = document["grounds"]
    seeds = ""
    for ground in grounds:
        seeds = f"{ground['summary'][0]['runs']} seeds"
        aim = name_of_optimum([ground])
        known = output.seconds(ground["optimum"])
        _print_summary(f"{ground['ground']} ({aim} {known})", f"time / {aim}", seeds, ground["summary"])
        print()
    if len(grounds) > 1:
        _print_summary(f"mean over {len(grounds)} spaces", "time / optimum", seeds, document["summary"])
        print()
    for line in verdict(document):
        output.line(line)
    suspect = sum(run["suspect"] for run in document["runs"])
    if suspect:
        output.line(f"something else used the machine during {suspect} measurements")
    if document["interrupted"]:
        output.line("interrupted: these are the seeds that every search had finished")
    for file in document["files"]:
        output.line(f"saved: {file}")


def _print_summary(title: str, what: str, seeds: str, summary: Sequence[Mapping[str, Any]]) -> None:
    marks = [*summary[0]["at"]][-_MOST_MARKS:]
    rows = []
    for entry in summary:
        reached = [entry["at"][mark]["best_over_optimum"] for mark in marks]
        rows.append(
            [
                entry["search"],
                *(f"{_ratio(ratio['mean'])} ({_ratio(ratio['median'])})" for ratio in reached),
                *(f"{share:.0%}" for share in entry["within"].values()),
                f"{entry['evaluations']:.0f}",
                f"{entry['search_ms_per_evaluation']:.2g}",
            ]
        )
    headings = ["", *(f"at {mark}" for mark in marks), "within 5%", "10%", "evaluations", "search ms each"]
    output.line(f"{title}: {what} after a number of evaluations, mean (median) of {seeds}")
    output.table(headings, rows, spare=("search ms each", "10%", "evaluations", *headings[1 : len(marks) - 1]))


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _grounds(words: Sequence[str]) -> list[Recording] | Workload:
    """Recordings, or one operator. Raises `InputError`, also if both are named."""
    files = [word for word in words if _is_source(word)]
    if files:
        from ...compare.recordings import load

        for word in words:
            if word not in files:
                raise InputError(f"{word}: give one operator with its arguments, or space files, but not both")
        return [load(word) for word in words]
    from ... import operators

    return operators.create(words[0], options.arguments(words[1:]))


def _is_source(word: str) -> bool:
    path = Path(word.partition("#")[0])
    return (
        word.startswith("analytic:")
        or path.suffix in {".json", ".jsonl", ".gz"}
        or "/" in word.partition("=")[0]
        or path.is_file()
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _folder(path: Path) -> Path:
    """A folder to write to, which is created if it is missing. Raises `InputError` before the work, not after it."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {path}: the folder cannot be created: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise InputError(f"--out {path}: nothing can be written there")
    return path


def _plot_comparison(document: Mapping[str, Any], folder: Path) -> list[str]:
    """Writes the document and its plots; returns the files."""
    from ...report.plots import costs, curves
    from ...report.plots.style import save

    figures = {
        "best_by_evaluations": curves.by_evaluations,
        "best_by_seconds": curves.by_seconds,
        "within": curves.within,
        "time": costs.time,
        "statuses": costs.statuses,
    }
    written = folder / "comparison.json"
    written.write_text(json.dumps(document, allow_nan=False))
    for name, figure in figures.items():
        save(figure(document), folder / f"{name}.png")
    return [str(written), *(str(folder / f"{name}.png") for name in figures)]
