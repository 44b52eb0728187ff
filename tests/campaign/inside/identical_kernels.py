"""Races identical kernels and prints, for each race, whether a win was claimed.

python identical_kernels.py RACES OPERATOR NAME=VALUE ...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stormdrop import operators
from stormdrop.machine.cpu import Cpu
from stormdrop.measure.contract import KernelSetup
from stormdrop.measure.local import LocalMeasurer
from stormdrop.sketches.registry import sketches_for
from stormdrop.space import Categorical, Space
from stormdrop.trial import Candidate, Request
from stormdrop.tuning.race import FINALISTS, RACE_SECONDS, decide


@dataclass(frozen=True)
class Copies:
    """The default schedule of another sketch, several times under different names."""

    inner: Any
    name: str = "copies"
    max_error: float = 0.0

    def space(self, workload: Any, target: Any) -> Space:
        return Space(self.name, [Categorical("copy", tuple(range(FINALISTS + 1)))])

    def apply(self, workload: Any, target: Any, config: Mapping[str, Any]) -> Any:
        space = self.inner.space(workload, target)
        return self.inner.apply(workload, target, space.config(space.origin))


def main() -> None:
    """Races as a session does: the default first, then its challengers."""
    count, name, *words = sys.argv[1:]
    workload = operators.create(name, dict(word.split("=", 1) for word in words))
    target = Cpu.detect()
    sketch = Copies(sketches_for(workload, target)[0][0])
    space = sketch.space(workload, target)
    candidates = [Candidate(sketch.name, space.point({"copy": copy})) for copy in range(FINALISTS + 1)]
    with LocalMeasurer(KernelSetup(workload, target, [(sketch, space)])) as measurer:
        first = next(iter(measurer.measure([Request(candidates[0], 3)])))
        for _ in range(int(count)):
            raced = measurer.race_for(candidates, [min(first.seconds)] * len(candidates), RACE_SECONDS)
            samples = {candidate: found.seconds for candidate, found in zip(candidates, raced, strict=True) if found.ok}
            disturbed = any(found.suspect for found in raced)
            result = decide(candidates[0], samples, disturbed=disturbed)
            claimed = result is not None and result.winner != candidates[0] and result.speedup is not None
            speedup = result.speedup.low if claimed and result is not None and result.speedup is not None else None
            print(json.dumps({"working": len(samples), "disturbed": disturbed, "speedup": speedup}), flush=True)


if __name__ == "__main__":
    main()
