"""A tuning on a fleet, whose only machine is this one: `python examples/local_fleet.py` (less than a minute).

A fleet is a cluster of Ray. Its nodes with the resource `stormdrop` measure candidates. For a real fleet `ray start`
runs on each machine (docs/how-to/use-a-fleet.md), and `fleet="auto"` finds it in the same way.
"""

from __future__ import annotations

import importlib.util
import logging
import os

import stormdrop as sd


def main() -> None:
    if importlib.util.find_spec("ray") is None:
        print("local_fleet: Ray is not installed, so there is nothing to show: pip install 'stormdrop[ray]'")
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init(
        address="local",
        num_cpus=1,
        resources={"stormdrop": 1},
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        result = sd.tune(sd.operators.matmul(64, 64, 64), trials=6, fleet="auto")
        print(f"{result.trials} trials on the fleet, the fastest: {result.best.config}")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
