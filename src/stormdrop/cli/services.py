"""How a model serves calls: the options of `run` and `bench` that say how it is called, and the table of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from ..report.formatting import plain_ratio
from ..tuning.duration import seconds_of
from . import output

if TYPE_CHECKING:
    from ..bench.service import Load

_SECONDS = 10.0  # for each number of calls at a time, if only that is given

ForOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="30s",
        help="Call the model for this long with each number of --calls, and show throughput and the 50th, 90th and "
        "99th percentile of the latency.",
    ),
]
CallsOption = Annotated[
    str | None,
    typer.Option(
        "--calls",
        metavar="1,2,4",
        help="How many callers call at a time, each as soon as it has its answer; by default 1, 2, and one for each "
        "core, at least 4.",
    ),
]


def load_of(duration: str | None, calls: str | None) -> Load | None:
    """What `--for` and `--calls` say.

    Args:
        duration: The text of `--for`; None if it is not given.
        calls: The text of `--calls`; None if it is not given.

    Returns:
        How the model is called; None if neither is given.

    Raises:
        InputError: One of them has another form.
    """
    if duration is None and calls is None:
        return None
    seconds = seconds_of(duration, "--for")
    from ..bench.service import Load, calls_at_a_time
    from ..machine.threads import usable_cores

    if calls is None:
        counts = calls_at_a_time(usable_cores())
    else:
        words = [word.strip() for word in calls.split(",")]
        if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
            raise InputError(f"--calls {calls}: write how many calls are made at a time, as in --calls 1,2,4")
        counts = tuple(dict.fromkeys(map(int, words)))
    try:
        return Load(seconds or _SECONDS, counts)
    except InputError as error:
        raise InputError(f"--calls: {error}") from None


def say_how_long(load: Load, what: str, each: str = "") -> None:
    """Says on standard error what is going to take so long.

    Args:
        load: How it is called.
        what: What is called.
        each: What takes so long each, if there are several.
    """
    calls, total = ", ".join(map(str, load.calls)), load.seconds * len(load.calls)
    output.say(f"calling {what} for {load.seconds:g} s with each of {calls} calls at a time: {total:g} s{each}")


def print_services(services: Sequence[tuple[str, Mapping[str, Any]]], disturbed: float) -> None:
    """Prints how contenders serve, as a table, and what is to be known about it.

    Args:
        services: The name of each contender, and an entry of its `services` in the document.
        disturbed: The share of the turns in which something else used the machine.
    """
    several = len({name for name, _ in services}) > 1
    ordered = sorted(services, key=lambda each: each[1]["at_a_time"])
    rows = [
        [
            str(entry["at_a_time"]),
            name,
            f"{entry['per_second']:.4g}",
            _interval(entry["per_second_interval"]),
            plain_ratio(entry["ratio"]) if entry["ratio"] else "-",
            *(output.seconds(known and known["seconds"]) for known in entry["percentiles"].values()),
            str(entry["calls"]),
        ]
        for name, entry in ordered
    ]
    headings = ["at a time", "", "calls/s", "95% interval", "times ours", "50%", "90%", "99%", "calls"]
    if not several:
        rows = [[*row[:1], *row[2:4], *row[5:]] for row in rows]
        headings = [*headings[:1], *headings[2:4], *headings[5:]]
    output.table(
        headings,
        rows,
        "throughput, and the latency that 50%, 90% and 99% of the calls do not exceed",
        spare=("95% interval", "calls"),
    )
    if any(known is None for _, entry in services for known in entry["percentiles"].values()):
        output.line(
            "a percentile is left out where too few calls know it: the 99th needs 368, the 90th 36; give a longer --for"
        )
    for name, entry in ordered:
        if len(entry["forms"]) > 1:
            others = ", ".join(
                f"{form}: {rate:.4g}/s" for form, rate in entry["forms"].items() if form != entry["form"]
            )
            output.line(f"{name} with {entry['at_a_time']} calls at a time is best with {entry['form']}; {others}")
    if disturbed:
        output.line(
            f"something else used the machine in {disturbed:.0%} of the turns: the percentiles have its part in them"
        )


def _interval(pair: Sequence[float]) -> str:
    return f"{pair[0]:.4g} to {pair[1]:.4g}"
