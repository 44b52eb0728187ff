"""What the tables of models say: the best peer of a model, its predicted latency, and a summary of all of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any


def best_peer(entry: Mapping[str, Any]) -> Any:
    """The fastest peer whose outputs agree with ours, as `bench` describes it; None if there is none."""
    peers = [peer for peer in entry["bench"]["contenders"][1:] if peer["agrees"]] if "bench" in entry else []
    return min(peers, key=lambda peer: peer["ratio"], default=None)


def predicted_seconds(tuned: Mapping[str, Any]) -> float | None:
    """The latency of a model as the tuned times of its kernels predict it; None if one of them was not measured."""
    seconds = [(task["seconds"], task["weight"]) for task in tuned["tasks"]]
    return None if any(each is None for each, _ in seconds) else sum(each * weight for each, weight in seconds)


def summary(entries: Mapping[str, Mapping[str, Any]], lowest: float) -> dict[str, Any]:
    """The geometric mean of the best peers' times over ours, and the models below `lowest`."""
    best = {name: best_peer(entry) for name, entry in entries.items() if "failed" not in entry}
    ratios = {name: peer["ratio"] for name, peer in best.items() if peer is not None}
    return {
        "models": len(ratios),
        "failed": [name for name, entry in entries.items() if "failed" in entry],
        "geometric_mean": math.exp(statistics.fmean(map(math.log, ratios.values()))) if ratios else None,
        "below": [name for name, ratio in ratios.items() if ratio < lowest],
    }
