"""The page of all records: which sessions there are, and what they gained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .page import render

_MOST = 2_000
"""Sessions that a page shows, the newest: it stays below 2 MB."""


def records_page(sessions: Sequence[Mapping[str, Any]], report: str) -> str:
    """Renders the page of all records.

    Args:
        sessions: The sessions of the document of `stormdrop db list --json`, newest first.
        report: The command that makes the page of a session, with SESSION in the place of its id.

    Returns:
        The page.
    """
    return render(
        "records.html",
        sessions=sessions[:_MOST],
        left=max(0, len(sessions) - _MOST),
        trials=sum(each["trials"] for each in sessions),
        failed=sum(each["failed"] for each in sessions),
        states=Counter(each["state"] for each in sessions).most_common(),
        machines=Counter(each["machine"] for each in sessions).most_common(),
        report=report,
    )
