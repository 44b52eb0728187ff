"""What a tuning has brought, in a sentence, and which kernels of a model were left for lack of time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .formatting import ascii_time, in_ascii, ratios
from .layer_label import label_of

_NAMED, _LABEL = 3, 60  # kernels, and characters of the layers of each

_LEFT = ": default schedule"  # how the reason of a kernel ends that could have been tuned

_WHY = {
    "interrupted": "the interruption left {} untuned",
    "no trials left": "no trials were left for {}",
    "no time left": "no time was left for {}",
    "": "nothing was measured of {}",
}
"""What is said of such kernels, by how their reasons begin: what comes first here, if they have several."""


def headline(document: Mapping[str, Any]) -> str:
    """The latency of a tuned model, beside that of the untuned one and that of onnxruntime.

    Args:
        document: The document of `stormdrop tune --json`.

    Example:
        >>> latency = {"seconds": 1e-3, "interval": [1e-3, 1.1e-3], "disturbed": False}
        >>> headline({"latency": latency, "speedup": [2.9, 2.8, 3.0], "peer": {"name": "onnxruntime", "seconds": 2e-3}})
        '1 ms, 2.90 times as fast as untuned (2.80 to 3.00); onnxruntime took 2 ms'
        >>> headline({"latency": latency, "speedup": None, "not_compared": "no time was left"})
        '1 ms; the untuned model was not timed, because no time was left'
    """
    latency, peer = document["latency"], document.get("peer")
    if latency["seconds"] is None or math.isnan(latency["seconds"]):
        return "the latency is not known, because its timing was interrupted"
    words = ascii_time(latency["seconds"]) + _compared(document)
    return words + (f"; {peer['name']} took {ascii_time(peer['seconds'])}" if peer else "")


def _compared(document: Mapping[str, Any]) -> str:
    """How the tuned model compares with the untuned one, as a part of the sentence."""
    speedup, disturbed = document.get("speedup"), document["latency"].get("disturbed")
    if not speedup or any(each is None or math.isnan(each) for each in speedup):
        reason = document.get("not_compared")
        because = f", because {reason}" if reason else ""
        return f"{', measured beside other load' if disturbed else ''}; the untuned model was not timed{because}"
    ratio, low, high = speedup
    between = in_ascii(ratios((low, high)))
    if disturbed:
        return f", {between} times as fast as untuned, measured beside other load"
    if low <= 1 <= high:
        return f", not significantly faster or slower than untuned ({between} times as fast)"
    if high < 1:
        return f", slower than untuned ({between} times as fast); more time may mend it"
    return f", {ratio:.2f} times as fast as untuned ({between})"


def kernel_headline(document: Mapping[str, Any]) -> str:
    """The time of a tuned kernel, beside that of the default schedule.

    Args:
        document: The document of `stormdrop tune-op --json`.

    Example:
        >>> best = {"seconds": 2e-5, "speedup": [2.9, 2.8, 3.0]}
        >>> document = {"best": best, "baseline": {"seconds": 5.8e-5}, "disturbed": False, "compared": None}
        >>> kernel_headline(document)
        '20 us, 2.90 times as fast as the default schedule (2.80 to 3.00)'
        >>> beside_load = {"best": {**best, "speedup": None}, "disturbed": True, "compared": [2.4, 2.1, 2.8]}
        >>> kernel_headline({**document, **beside_load})
        '20 us, 2.10 to 2.80 times as fast as the default schedule, measured beside other load'
    """
    best = document["best"]
    if best is None:
        return "no candidate worked" if document["trials"] else "nothing was measured"
    return ascii_time(best["seconds"]) + _beside_default(document)


def _beside_default(document: Mapping[str, Any]) -> str:
    """How the best schedule of a kernel compares with the default, as a part of the sentence."""
    speedup, compared = document["best"]["speedup"], document.get("compared")
    baseline, disturbed = document["baseline"], document.get("disturbed")
    beside_load = ", measured beside other load" if disturbed else ""
    if speedup:
        return f", {speedup[0]:.2f} times as fast as the default schedule ({in_ascii(ratios(speedup[1:]))})"
    if compared:
        between = f"{in_ascii(ratios(compared[1:]))} times as fast"
        if disturbed:
            return f", {between} as the default schedule{beside_load}"
        return f", faster than the default schedule beyond doubt, but its rounds do not say by how much ({between})"
    kept = " with the default schedule" if document.get("kept_default") else ""
    if baseline.get("failed"):
        return "; there is nothing to compare it with, because the default schedule does not work"
    if baseline["seconds"] is None:
        other = "no other schedule was" if kept else "the default schedule was not"
        return f"{kept}; {other} timed beside it, because {_why_not_timed(document)}"
    if kept:
        return f"{kept}: nothing that was tried is significantly faster{beside_load}"
    return f"; the default schedule took {ascii_time(baseline['seconds'])}{beside_load}"


def _why_not_timed(document: Mapping[str, Any]) -> str:
    """Why no last race has timed the best schedule of a kernel beside the default."""
    if document.get("interrupted"):
        return "the search was interrupted"
    if document.get("disturbed"):
        return "something else had the machine"
    return "no time was left for it, or one of the two failed"


def kernels_left(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of the kernels that were never tuned although they could have been, the costliest first.

    Args:
        document: The document of `stormdrop tune --json`.
    """
    left = [task for task in document["tasks"] if (task["reason"] or "").endswith(_LEFT) and not task.get("seconds")]
    return sorted(left, key=lambda task: -(task.get("untuned") or 0.0))


def never_tuned(document: Mapping[str, Any]) -> str | None:
    """Which kernels were left with their default schedules, and why; None if none was.

    The costliest come first.

    Args:
        document: The document of `stormdrop tune --json`.

    Example:
        >>> reason = "no time left: default schedule"
        >>> task = {"name": "conv", "seconds": None, "untuned": 2e-4, "reason": reason}
        >>> never_tuned({"tasks": [task, {**task, "name": "mean", "untuned": 6e-4}]})
        'no time was left for 2 of 2 kernels: mean (75% of the untuned time), conv (25%)'
        >>> never_tuned({"tasks": [{**task, "reason": "interrupted before its turn: default schedule"}]})
        'the interruption left 1 of 1 kernels untuned: conv (100% of the untuned time)'
        >>> never_tuned({"tasks": []})
    """
    tasks, left = document["tasks"], kernels_left(document)
    if not left:
        return None
    total = sum(task.get("untuned") or 0.0 for task in tasks)
    shares = [f" ({task['untuned'] / total:.0%}" if task.get("untuned") and total else "" for task in left]
    ends = [" of the untuned time)" if position == 0 else ")" for position in range(len(shares))]
    named = [
        label_of(task, _LABEL) + (share + end if share else "")
        for task, share, end in zip(left, shares, ends, strict=True)
    ]
    rest = f", and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    why = next(words for begin, words in _WHY.items() if any(task["reason"].startswith(begin) for task in left))
    return f"{why.format(f'{len(left)} of {len(tasks)} kernels')}: {', '.join(named[:_NAMED])}{rest}"
