"""What a tuning is doing now: the spans of its log that have begun and not ended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

_TAIL = 1 << 19  # bytes at the end of the log that are read: spans that began before are long ones


@dataclass(frozen=True)
class OpenSpan:
    """Something that has begun and not ended.

    Attributes:
        where: What it happens to, such as "worker 1".
        what: What it is, such as "build".
        since: When it began, in ISO 8601.
        details: What is known of it.
    """

    where: str
    what: str
    since: str
    details: Mapping[str, Any]


def open_spans(log: Path) -> list[OpenSpan]:
    """The spans that are open at the end of a log, the innermost one of each place.

    A line that is no event of ours is passed over: the last one may be half written.

    Args:
        log: A file that `--log` wrote.

    Raises:
        OSError: The file cannot be read.
    """
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        lines = file.read().splitlines()
    begun: dict[int, OpenSpan] = {}
    for line in lines[1 if size > _TAIL else 0 :]:
        event = _event(line)
        if event is None:
            continue
        if event["what"] == "log":
            begun.clear()  # another run begins
        elif event["event"] == "started":
            details = {name: value for name, value in event.items() if name not in _HEAD}
            begun[event.get("number", 0)] = OpenSpan(
                str(event["where"]), str(event["what"]), str(event.get("time", "")), details
            )
        elif event["event"] == "finished":
            begun.pop(event.get("number", 0), None)
    innermost: dict[str, OpenSpan] = {}
    for span in begun.values():
        outer = innermost.get(span.where)
        details = {**(outer.details if outer else {}), **span.details}
        innermost[span.where] = OpenSpan(span.where, span.what, span.since, details)
    return sorted(innermost.values(), key=lambda span: span.where)


_HEAD = {"time", "clock", "event", "what", "where", "number"}


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return event if isinstance(event, dict) and {"event", "what", "where"} <= event.keys() else None
