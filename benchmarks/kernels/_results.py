"""The figures of the kernel benchmark: a row per shape, and a summary of all shapes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from _shapes import COMPUTE, MEMORY

LOWEST = 0.95  # kernels below this ratio of the best peer's time over ours are counted

_NORMAL = 1.96  # standard errors on either side of a 95% interval


def row(entry: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one benched entry: ours, and the fastest of the peers whose output agrees with NumPy's.

    `ratio` is the peer's time over ours; None without a peer. The best of several peers in the same rounds looks a
    little faster than it is, which is at our expense. `share` is the share of the machine's peak for a compute-bound
    kernel, and of its bandwidth for a memory-bound one. If a copy took turns in the same rounds, it is the bandwidth.
    """
    ours, *peers = entry["bench"]["contenders"]
    seconds = ours["seconds"]
    best = min((peer for peer in peers if peer["agrees"]), key=lambda peer: peer["ratio"], default=None)
    gflops, gbs = entry["flops"] / seconds / 1e9, entry["bytes"] / seconds / 1e9
    copy = entry["bench"].get("copy")
    if entry["kind"] == COMPUTE:
        share = gflops / machine["peak_gflops"]
    else:
        share = copy["ratio"] if copy else gbs / machine["bandwidth_gbs"]
    return {
        "name": entry["name"],
        "kind": entry["kind"],
        "in_cache": entry["in_cache"],
        "seconds": seconds,
        "agrees": ours["agrees"],
        "gflops": gflops,
        "gigabytes_per_second": gbs,
        "intensity": entry["flops"] / entry["bytes"],
        "share": share,
        "peer": best["name"] if best else None,
        "ratio": best["ratio"] if best else None,
        "ratio_interval": best["ratio_interval"] if best else None,
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean ratio, the kernels that fall behind, and the median shares of what the machine can do."""
    compared = [row for row in rows if row["ratio"] is not None]
    return {
        "shapes": len(rows),
        "wrong": [row["name"] for row in rows if not row["agrees"]],
        "geometric_mean": geometric_mean(compared),
        "below": [row["name"] for row in compared if row["ratio"] < LOWEST],
        "surely_below": [row["name"] for row in compared if row["ratio_interval"][1] < LOWEST],
        "share_of_peak": _median(rows, COMPUTE, None),
        "share_of_bandwidth": _median(rows, MEMORY, False),
        "share_of_bandwidth_in_cache": _median(rows, MEMORY, True),
    }


def geometric_mean(rows: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """The geometric mean of the ratios with its interval, [estimate, low, high]; None for no rows.

    The interval is that of the measurement of these shapes. It takes the errors of the ratios as independent, and as
    normally distributed on the log scale.
    """
    if not rows:
        return None
    middle = statistics.fmean(math.log(row["ratio"]) for row in rows)
    errors = [math.log(row["ratio_interval"][1] / row["ratio_interval"][0]) / 2 / _NORMAL for row in rows]
    half = _NORMAL * math.hypot(*errors) / len(rows)
    return [math.exp(middle), math.exp(middle - half), math.exp(middle + half)]


def _median(rows: Sequence[Mapping[str, Any]], kind: str, in_cache: bool | None) -> float | None:
    shares = [row["share"] for row in rows if row["kind"] == kind and in_cache in (None, row["in_cache"])]
    return statistics.median(shares) if shares else None
