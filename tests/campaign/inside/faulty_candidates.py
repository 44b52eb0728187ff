"""Tunes a kernel whose candidates fail on purpose, and prints what became of each as lines of JSON.

python faulty_candidates.py DATABASE SEED COUNT [KIND ...]
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from stand_ins import faults
from stormdrop import operators
from stormdrop.machine.cpu import Cpu
from stormdrop.measure.contract import KernelSetup
from stormdrop.measure.local import Limits, LocalMeasurer
from stormdrop.records import open_store
from stormdrop.space import Categorical, Ordinal, Space
from stormdrop.tuning.tune import tune

_TIMEOUT = 4.0  # seconds of a build or a run; a hang costs one and a half times as much


class Drawn:
    """A space with one point per candidate, whose faults were drawn before.

    Args:
        kinds: The fault of each candidate, or "none".
    """

    name = "drawn"
    max_error = 0.0

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = list(kinds)
        self._tuner = os.getpid()
        self._sketch = faults.ChosenFaults(faults.Plain())

    def space(self, workload: Any, target: Any) -> Space:
        return Space(self.name, [Categorical("candidate", tuple(range(len(self.kinds)))), Ordinal("tile", (8,))])

    def apply(self, workload: Any, target: Any, config: Mapping[str, Any]) -> Any:
        # The tuner itself schedules a few points, for the fingerprint of the space. Only workers are protected.
        fault = "none" if os.getpid() == self._tuner else self.kinds[config["candidate"]]
        return self._sketch.apply(workload, target, {"tile": config["tile"], "fault": fault})


def main() -> None:
    """Tunes with the random search, which measures all of them."""
    database, seed, count, *only = sys.argv[1:]
    rng = random.Random(int(seed))
    chosen = only or list(faults.FAULTS)
    # The first one works: the default is what all others are compared with. So do a third of the rest.
    kinds = ["none", *(rng.choice(chosen) if rng.random() < 2 / 3 else "none" for _ in range(int(count) - 1))]
    sketch, workload, target = Drawn(kinds), operators.matmul(64, 48, 32), Cpu.detect()
    spaces = [sketch.space(workload, target)]
    with (
        open_store(database) as store,
        LocalMeasurer(
            KernelSetup(workload, target, list(zip([sketch], spaces, strict=True))),
            limits=Limits(build_seconds=_TIMEOUT, run_seconds=_TIMEOUT),
        ) as measurer,
    ):
        result = tune(
            workload,
            target=target,
            store=store,
            sketches=[sketch],
            measurer=measurer,
            search="random",
            seed=int(seed),
            trials=int(count),
        )
        (summary,) = store.sessions()
        for trial in store.records(store.session(summary.id)):
            kind = kinds[trial.config["candidate"]]
            wanted = "ok" if kind == "none" else faults.FAULTS[kind].value
            print(json.dumps([kind, wanted, trial.measurement.status.value, trial.measurement.error]))
    assert result.best is not None
    print(json.dumps({"winner": kinds[result.best.config["candidate"]], "trials": result.trials}))


if __name__ == "__main__":
    main()
