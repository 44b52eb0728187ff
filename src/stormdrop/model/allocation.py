"""Which kernel of a model to tune next: the one whose tuning is expected to shorten the model most.

Ansor's task scheduler (Zheng et al., OSDI 2020, section 6.2), for the latency of one model, f = sum of w_i g_i with
w_i calls of kernel i that take g_i each. The derivative by the effort t_i that is spent on kernel i is estimated as

    df/dt_i = w_i (a (g_i(t_i) - g_i(t_i - D)) / D + (1 - a) min(-g_i / t_i, b C_i / max V_k - g_i))

with a = 0.2 and b = 2: what the last effort D has brought, and the better of two hopes: that as much effort again
takes all of the time away, and that the kernel becomes half as fast as its most efficient sibling (C_i is its work, V_k
are the rates of its siblings, kernels of the same sketches). What is done differently:

- Effort is counted in slices, of wall time, or of trials where these are what is limited. D is the effort of the last
  three.
- The first hope is bounded by the roofline: no more than what lies above the time that peak and bandwidth allow.
- The second fades with every slice that has brought nothing: some kernels are slower than their siblings by nature.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

_RECENT = 0.2  # a
_SIBLINGS = 2.0  # b
_SLICES = 3
_BETTER = 0.99  # times what was known: a slice that brought less brought nothing


@dataclass
class Kernel:
    """A kernel that is tuned slice by slice.

    `calls` in an execution of the model; `work` in any unit that is the same for kernels of a `kind`; `least` are the
    seconds that an execution takes at the machine's limit.
    """

    calls: int
    work: float
    kind: Hashable
    least: float = 0.0
    effort: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def told(self, effort: float, seconds: float) -> None:
        """After so much effort in all the fastest schedule takes so many seconds; infinite where none works."""
        self.effort.append(effort)
        self.seconds.append(seconds)

    @property
    def best(self) -> float:
        """Seconds per execution now; infinite before any schedule worked."""
        return self.seconds[-1] if self.seconds else math.inf

    @property
    def stale(self) -> int:
        """How many of the last slices have brought nothing."""
        count = 0
        for before, after in zip(self.seconds[-2::-1], self.seconds[:0:-1], strict=True):
            if after < _BETTER * before:
                break
            count += 1
        return count


def gains(kernels: Sequence[Kernel], siblings: Sequence[Kernel] = ()) -> list[float]:
    """Seconds of the model's latency that one more slice on each kernel is expected to save; none below 0.

    `siblings` are kernels that are not tuned any more. Of one for which no schedule worked yet nothing is expected.
    """
    rates: dict[Hashable, float] = {}
    for each in (*kernels, *siblings):
        rates[each.kind] = max(rates.get(each.kind, 0.0), each.work / each.best)
    return [max(0.0, each.calls * _gain(each, rates[each.kind])) if each.best < math.inf else 0.0 for each in kernels]


def _gain(kernel: Kernel, rate: float) -> float:
    working = next(at for at, seconds in enumerate(kernel.seconds) if seconds < math.inf)
    first = max(working, len(kernel.effort) - 1 - _SLICES)
    spent = kernel.effort[-1] - kernel.effort[first]
    recent = (kernel.seconds[first] - kernel.best) / spent if spent > 0 else 0.0
    above = max(0.0, kernel.best - kernel.least)
    behind = kernel.best - _SIBLINGS * kernel.work / rate
    hope = max(above / max(kernel.effort[-1], 1e-9), behind / (1 + kernel.stale))
    return _RECENT * recent + (1 - _RECENT) * hope
