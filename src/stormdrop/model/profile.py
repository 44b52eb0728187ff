"""Where the time of a compiled model goes: each kernel as it runs inside, with the caches as they are there."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..machine.lock import MachineLock

if TYPE_CHECKING:
    from ..machine.peak import Peak
    from .artifact import CompiledModel
    from .metadata import Work

_BUILTIN = "vm.builtin."
_ROUNDS = 15


@dataclass(frozen=True)
class KernelTime:
    """What one kernel takes in an execution of the model over all of its `calls`, in seconds, round by round.

    `work` is that of a call; None where no sketch takes it.
    """

    name: str
    calls: int
    rounds: Sequence[float]
    work: Work | None = None

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.rounds)

    def of_roofline(self, limits: Peak) -> float | None:
        """The time that its calls take at a machine's limits, over the time that they take.

        Arrays that stay in the caches are faster than that: then it is above 1.
        """
        if self.work is None:
            return None
        least = max(self.work.flops / limits.flops, self.work.bytes / limits.bandwidth)
        return self.calls * least / self.seconds


@dataclass(frozen=True)
class Profile:
    """An execution of a model: `seconds` in all, its kernels, those that take longest first.

    `seconds` is measured without looking inside, the kernels in other executions, and `machine`, what TVM's virtual
    machine takes for memory between them, too (a microsecond of each of its steps is the watch's).
    """

    seconds: float
    kernels: Sequence[KernelTime]
    machine: float = 0.0

    @property
    def outside(self) -> float:
        """Seconds that are in no kernel: calls, allocation, inputs and outputs."""
        return max(0.0, self.seconds - sum(each.seconds for each in self.kernels))

    @property
    def moving(self) -> float:
        """Seconds of kernels that compute nothing: layouts that change, slices, copies."""
        return sum(each.seconds for each in self.kernels if each.work is not None and not each.work.flops)

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop run --profile`."""
        kernels = [
            {
                "name": each.name,
                "calls": each.calls,
                "seconds": each.seconds,
                "flops": each.work and each.work.flops,
                "bytes": each.work and each.work.bytes,
            }
            for each in self.kernels
        ]
        return {
            "seconds": self.seconds,
            "outside": self.outside,
            "machine": self.machine,
            "moving": self.moving,
            "kernels": kernels,
        }


def profile(model: CompiledModel, feeds: Mapping[str, NDArray[Any]], rounds: int = _ROUNDS) -> Profile:
    """Executes a model so many times with and without a watch on its calls, alone on the machine."""
    (found,) = profiles([model], feeds, rounds)
    return found


def profiles(models: Sequence[CompiledModel], feeds: Mapping[str, NDArray[Any]], rounds: int) -> list[Profile]:
    """The profiles of several forms of a model, in turns."""
    watches = [Watch() for _ in models]
    watched = [model.watched(watch) for model, watch in zip(models, watches, strict=True)]
    whole: list[list[float]] = [[] for _ in models]
    with closing(MachineLock()) as lock, lock.exclusive():
        for at in range(rounds + 1):
            for model, inside, watch, times in zip(models, watched, watches, whole, strict=True):
                inside.run(feeds)
                start = time.perf_counter()
                model.run(feeds)
                times.append(time.perf_counter() - start)
                watch.close(keep=at > 0)  # the first round loads code and memory
    return [
        Profile(statistics.median(times[1:]), watch.kernels(model.metadata.kernels), watch.machine)
        for model, times, watch in zip(models, whole, watches, strict=True)
    ]


class Watch:
    """Told before and after every call of TVM's virtual machine; see `VirtualMachine.set_instrument`."""

    def __init__(self) -> None:
        self._rounds: list[dict[str, float]] = []
        self._calls: Counter[str] = Counter()
        self._now: defaultdict[str, float] = defaultdict(float)
        self._begin = 0.0

    def __call__(self, function: Any, symbol: str, before: bool, *_: Any) -> int:
        now = time.perf_counter()
        if before:
            self._begin = time.perf_counter()
        else:
            self._now[symbol] += now - self._begin
            self._calls[symbol] += 1
        return 0

    def close(self, keep: bool) -> None:
        """Ends an execution."""
        if keep:
            self._rounds.append(dict(self._now))
        else:
            self._calls.clear()
        self._now.clear()

    def kernels(self, work: Mapping[str, Work]) -> list[KernelTime]:
        """What was kept of each kernel, without what the virtual machine does itself."""
        names = [name for name in self._rounds[0] if not name.startswith(_BUILTIN)]
        found = [
            KernelTime(
                name,
                round(self._calls[name] / len(self._rounds)),
                [each[name] for each in self._rounds],
                work.get(name),
            )
            for name in names
        ]
        return sorted(found, key=lambda each: -each.seconds)

    @property
    def machine(self) -> float:
        """Median seconds of what the virtual machine does itself."""
        return statistics.median(
            sum(seconds for name, seconds in each.items() if name.startswith(_BUILTIN)) for each in self._rounds
        )
