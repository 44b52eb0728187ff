"""The gain model: how much one more slice of tuning on a task is expected to shorten the model.

It follows Ansor's task scheduler (Zheng et al., OSDI 2020, section 6.2) for the latency of one model, f = sum of
w_i g_i, in which task i is called w_i times and takes g_i each time. The derivative of f by the effort t_i that is
spent on task i is estimated as

    df/dt_i = w_i (a (g_i(t_i) - g_i(t_i - D)) / D + (1 - a) min(-g_i / t_i, b C_i / max V_k - g_i))

with a = 0.2 and b = 2. The first term is what the last effort D has brought. The second is the better of two hopes:
that as much effort again takes all of the time away, and that the kernel becomes half as fast as its most efficient
sibling. C_i is its work, and V_k are the rates of its siblings, the kernels of the same sketches.

Deviations:

- Effort is counted in slices of wall time, or of trials if these are what is limited. D is the effort of the last
  three slices.
- The first hope is bounded by the roofline: no more time can be saved than lies above what peak and bandwidth allow.
- The second hope fades with every slice that has brought nothing, because some kernels are slower than their siblings
  by nature.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

_RECENT_WEIGHT = 0.2  # a
_SIBLING_FACTOR = 2.0  # b
_RECENT_SLICES = 3
_BETTER = 0.99  # a slice that leaves more than this share of the time has brought nothing


@dataclass
class TaskProgress:
    """How the tuning of a task has gone so far, slice by slice.

    Attributes:
        calls: How often the model calls the kernel.
        work: The work of one call, in any unit that is the same for tasks of one kind.
        kind: Tasks of one kind are siblings.
        least: The seconds that a call takes at the machine's limits.
        effort: The effort after each slice, in slices.
        seconds: The seconds of a call after each slice; infinite as long as no schedule works.
    """

    calls: int
    work: float
    kind: Hashable
    least: float = 0.0
    effort: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, effort: float, seconds: float) -> None:
        """Records that the fastest schedule takes `seconds` after `effort` in all."""
        self.effort.append(effort)
        self.seconds.append(seconds)

    @property
    def best(self) -> float:
        """Seconds of a call now; infinite as long as no schedule works."""
        return self.seconds[-1] if self.seconds else math.inf

    @property
    def idle_slices(self) -> int:
        """How many of the last slices have brought nothing."""
        count = 0
        for before, after in zip(self.seconds[-2::-1], self.seconds[:0:-1], strict=True):
            if after < _BETTER * before:
                break
            count += 1
        return count


def gains(tasks: Sequence[TaskProgress], siblings: Sequence[TaskProgress] = ()) -> list[float]:
    """Seconds of the model's latency that one more slice on each task is expected to save; at least 0.

    Args:
        tasks: The tasks that can be tuned further. Nothing is expected of one for which no schedule works yet.
        siblings: Tasks whose tuning has ended.
    """
    rates: dict[Hashable, float] = {}
    for task in (*tasks, *siblings):
        rates[task.kind] = max(rates.get(task.kind, 0.0), task.work / task.best)
    return [max(0.0, task.calls * _gain(task, rates[task.kind])) if task.best < math.inf else 0.0 for task in tasks]


def _gain(task: TaskProgress, rate: float) -> float:
    working = next(index for index, seconds in enumerate(task.seconds) if seconds < math.inf)
    first = max(working, len(task.effort) - 1 - _RECENT_SLICES)
    spent = task.effort[-1] - task.effort[first]
    recent = max(0.0, task.seconds[first] - task.best) / spent if spent > 0 else 0.0
    above = max(0.0, task.best - task.least)
    behind = task.best - _SIBLING_FACTOR * task.work / rate
    hope = max(above / max(task.effort[-1], 1e-9), behind / (1 + task.idle_slices))
    return _RECENT_WEIGHT * recent + (1 - _RECENT_WEIGHT) * hope
