"""Documents that pages are made of in tests. Every text of them tries to be HTML."""

from __future__ import annotations

from typing import Any

HOSTILE = "<script>alert('x')</script>\"'><img src=x onerror=alert(1)> $x$ {{ 7 * 7 }}"


def searched(seconds: float = 2e-5, converged: bool = True, **changes: Any) -> dict[str, Any]:
    """What the search of a kernel tried."""
    best = {
        "sketch": "register_blocked",
        "config": {"rows": 6, "tile": [4, 8], "note": HOSTILE},
        "seconds": seconds,
        "interval": [0.9 * seconds, 1.1 * seconds],
        "speedup": [1.5, 1.4, 1.6],
    }
    return {
        "best": best,
        "baseline": {"seconds": 1.5 * seconds},
        "trials": 40,
        "failed": 2,
        "reused": 0,
        "suspect": 0,
        "seconds": 3.0,
        "phases": {"build": 2.0, "run": 1.0},
        "statuses": {"ok": 38, "runtime": 2},
        "converged": converged,
        "interrupted": False,
        "disturbed": False,
        "curve": [[0.5, 2 * seconds], [2.0, seconds]],
        "error": HOSTILE,
        "finalists": [best],
        "by_sketch": [best],
        **changes,
    }


def kernel(flops: float, moved: float, search: dict[str, Any] | None) -> dict[str, Any]:
    """A kernel of a model."""
    tensor = {"name": HOSTILE, "shape": [1, 8], "dtype": "float32"}
    chosen = search["best"] if search else {"sketch": "plain", "config": {}}
    return {
        "workload": {"key": "k", "flops": flops, "bytes": moved, "inputs": [tensor], "outputs": [tensor]},
        "spaces": {"register_blocked": 540},
        "chosen": {"sketch": chosen["sketch"], "config": chosen["config"]},
        "won_inside": False,
        "tir": f"def main(x):  # {HOSTILE}\n    for i in range(8):\n        x[i] = 1.0\n",
        "search": search,
    }


def tuning(**changes: Any) -> dict[str, Any]:
    """A tuned model of three kernels: the second one costs most, and the third was not tuned."""
    return {
        "format": 1,
        "created": "2026-01-02T03:04:05+00:00",
        "command": f"stormdrop tune '{HOSTILE}' --fresh",
        "model": HOSTILE,
        "target": "a CPU, 2 cores",
        "search": "storm",
        "seed": 0,
        "trials": 80,
        "failed": 4,
        "reused": 0,
        "suspect": 3,
        "seconds": 20.0,
        "phases": {"build": 12.0, "run": 6.0, "import": 2.0},
        "latency": {"seconds": 1e-3, "interval": [0.9e-3, 1.1e-3], "disturbed": False},
        "untuned": {"seconds": 2e-3, "interval": [1.9e-3, 2.1e-3]},
        "speedup": [2.0, 1.8, 2.2],
        "verified": {"max_error": 1e-6, "against": HOSTILE},
        "tasks": [
            {"name": "small", "layers": ["net.conv", "net.relu"], "weight": 1, "reason": None},
            {"name": f"large {HOSTILE}", "weight": 1, "reason": None},
            {"name": "plain", "layers": [f"net.{HOSTILE}"], "weight": 2, "reason": HOSTILE},
        ],
        "layers": [
            {"name": "net.conv", "operator": "Conv", "node": "c", "kernels": ["small"]},
            {"name": "net.relu", "operator": "Relu", "node": "r", "kernels": ["small"]},
            {"name": f"net.{HOSTILE}", "operator": HOSTILE, "node": HOSTILE, "kernels": ["plain"]},
            {"name": f"net.flat {HOSTILE}", "operator": "Flatten", "node": "f", "kernels": []},
        ],
        "kernels": [
            kernel(1e6, 1e4, searched()),
            kernel(2e7, 1e4, searched(4e-4, converged=False)),
            kernel(0, 1e4, None),
        ],
        "inside": [],
        "replaced": [],
        "foreign": [{"operators": {HOSTILE: 1}, "reason": HOSTILE, "seconds": 1e-4, "share": 0.1}],
        "sizes": [{"shapes": {HOSTILE: [1, 8]}, "latency": None, "untuned": None, "max_error": 1e-6}],
        "interrupted": False,
        "converged": False,
        "curve": [[5.0, 9e-4], [15.0, 6e-4]],
        "machine": {"name": "cpu", "cpu": HOSTILE, "cores": 2},
        "limits": {"flops": 2e11, "bandwidth": 3e10, "undisturbed": True},
        "profile": {
            "seconds": 1e-3,
            "outside": 1e-4,
            "kernels": [
                {"name": "small", "calls": 1, "seconds": 1e-4, "flops": 1e6, "bytes": 1e4, "task": 0},
                {"name": "large", "calls": 1, "seconds": 6e-4, "flops": 2e7, "bytes": 1e4, "task": 1},
                {"name": "plain", "calls": 2, "seconds": 5e-5, "flops": 0.0, "bytes": 1e4, "task": 2},
            ],
            "layers": [
                {"layers": [], "kernels": ["large"], "seconds": 6e-4},
                {"layers": [f"net.{HOSTILE}"], "kernels": ["plain"], "seconds": 5e-5},
                {"layers": ["net.conv", "net.relu"], "kernels": ["small"], "seconds": 1e-4},
            ],
        },
        **changes,
    }


METADATA: dict[str, Any] = {
    "provenance": {"source": HOSTILE, "sha256": "ab" * 32, "versions": {"numpy": HOSTILE}},
    "stormdrop": "0.2",
    "inputs": [{"name": HOSTILE, "shape": [1, 8], "dtype": "float32"}],
    "outputs": [{"name": "y", "shape": [1, 8], "dtype": "float32"}],
}


def bench() -> dict[str, Any]:
    """A bench of ours and one peer."""
    return {
        "what": HOSTILE,
        "runs": 5,
        "disturbed": 0,
        "contenders": [
            {
                "name": name,
                "seconds": seconds,
                "interval": [0.9 * seconds, 1.1 * seconds],
                "ratio": seconds / 1e-3,
                "ratio_interval": [0.95 * seconds / 1e-3, 1.05 * seconds / 1e-3],
                "gflops": None,
                "max_error": 1e-7,
                "agrees": True,
                "versions": {"lib": HOSTILE},
                "settings": {"threads": 2, "note": HOSTILE},
                "samples": [0.95 * seconds, seconds, 1.02 * seconds, seconds, 1.4 * seconds],
            }
            for name, seconds in (("stormdrop", 1e-3), (f"peer {HOSTILE}", 1.5e-3))
        ],
        "skipped": {HOSTILE: HOSTILE},
    }


def served() -> dict[str, Any]:
    """The same bench with the throughput and the percentiles of one and of two calls at a time."""

    def service(calls: int, per_second: float, last: float | None) -> dict[str, Any]:
        known = {"50": 1e-3, "90": 2e-3, "99": last}
        percentiles = {
            percent: seconds and {"seconds": seconds, "interval": [0.9 * seconds, 1.1 * seconds]}
            for percent, seconds in known.items()
        }
        rate = {"per_second": per_second, "per_second_interval": [0.9 * per_second, 1.1 * per_second]}
        ratio = {"ratio": 0.5, "ratio_interval": [0.4, 0.6], "form": HOSTILE, "forms": {HOSTILE: per_second}}
        return {"at_a_time": calls, "calls": 400, **rate, "percentiles": percentiles, **ratio}

    document = bench()
    for contender in document["contenders"]:
        contender["services"] = [service(1, 812.0, 7e-3), service(2, 1234.0, None)]
    load = {"seconds": 30.0, "calls": [1, 2], "turns": 8, "disturbed": 0.25, "unserved": {HOSTILE: HOSTILE}}
    return {**document, "load": load}


def session(trials: int = 12) -> dict[str, Any]:
    """A finished session, whose every fourth trial failed."""
    config = {"rows": 6, "note": HOSTILE}
    return {
        "id": "0123",
        "problem": {
            "workload_key": "k",
            "workload_text": HOSTILE,
            "workload_name": HOSTILE,
            "target": HOSTILE,
            "machine": HOSTILE,
        },
        "setting": {
            "search": HOSTILE,
            "seed": 3,
            "sketches": {"tiled": "fingerprint", HOSTILE: HOSTILE},
            "options": {"preset": HOSTILE},
            "method": {},
            "versions": {"numpy": HOSTILE},
        },
        "created": "2026-01-02T03:04:05+00:00",
        "state": "finished",
        "outcome": {
            "sketch": "tiled",
            "config": config,
            "seconds": 1e-3,
            "interval": [0.9e-3, 1.1e-3],
            "baseline_seconds": 2e-3,
            "converged": True,
            "extra": {"speedup": [2.0, 1.8, 2.2], "disturbed": False, "phases": {"run": 1.0}},
        },
        "imported": True,
        "trials": [
            {
                "batch": position // 4,
                "position": position,
                "sketch": "tiled",
                "config": {**config, "rows": position},
                "elapsed": 0.1 * position,
                "status": "runtime" if position % 4 == 3 else "ok",
                "seconds": [] if position % 4 == 3 else [1e-3 * (1 + position), 1.1e-3 * (1 + position)],
                "error": HOSTILE if position % 4 == 3 else "",
                "phases": {"schedule": 0.1, "build": 0.1, "run": 0.1, "check": 0.1},
                "suspect": False,
            }
            for position in range(trials)
        ],
    }


NO_KERNEL: dict[str, Any] = {
    **dict.fromkeys(("flops", "bytes", "limits", "tir", "steps")),
    "reason": HOSTILE,
}
