"""Why a search ended: the values of `SearchResult.end`, each in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONVERGED, EXHAUSTED, FINISHED, BUDGET = "converged", "exhausted", "finished", "budget"
"""Why a search ended; see `SearchResult.end`."""

IN_WORDS: Mapping[str, str] = {
    CONVERGED: "converged",
    EXHAUSTED: "ended because every candidate was measured",
    FINISHED: "ended at a limit of its own",
    BUDGET: "ended because its budget was spent",
}
"""The same in words: what the search did."""

_THEREFORE: Mapping[str, str] = {
    CONVERGED: "nothing that it tried is significantly faster, so more time would hardly help",
    EXHAUSTED: "none is faster",
    FINISHED: "another seed or another search may find more",
    BUDGET: "more time may help",
}
"""What follows from it for somebody who wants a faster kernel."""


def end_of(converged: bool, kept: Mapping[str, Any]) -> str:
    """Why a search ended that is known from a document or from the records.

    Args:
        converged: Whether it converged.
        kept: What was kept of it. Up to version 0.3 that was no `end`, but whether it was `exhausted`.

    Returns:
        One of the keys of `IN_WORDS`.

    Example:
        >>> end_of(False, {"exhausted": True}), end_of(False, {"end": "finished"}), end_of(True, {})
        ('exhausted', 'finished', 'converged')
    """
    said = next((end for end in IN_WORDS if end == kept.get("end")), None)
    if said is not None:
        return said
    if converged:
        return CONVERGED
    return EXHAUSTED if kept.get("exhausted") else BUDGET


def sentence(tried: str, converged: bool, kept: Mapping[str, Any]) -> str:
    """What a search has tried, why it ended, and what follows from that.

    Args:
        tried: What it tried.
        converged: Whether it converged.
        kept: What was kept of it, as for `end_of`.

    Returns:
        The sentence.

    Example:
        >>> sentence("40 candidates of 540", False, {"end": "budget"})
        'Its search tried 40 candidates of 540 and ended because its budget was spent: more time may help.'
    """
    end = end_of(converged, kept)
    return f"Its search tried {tried} and {IN_WORDS[end]}: {_THEREFORE[end]}."
