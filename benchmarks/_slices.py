"""What scripts share that measure on any target, in calls of some minutes each, and go on where the last call ended."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from _common import OUT, RECORDED

from stormdrop import open_store, parse_machine, tune
from stormdrop.errors import StormdropError
from stormdrop.ir.workload import Workload
from stormdrop.machine.contract import CPU, Machine
from stormdrop.records import Filter, Store, StoredTrial
from stormdrop.tuning.result import TuneResult

_Result = TypeVar("_Result", bound=Any)


def add_target(parser: argparse.ArgumentParser, default: str = CPU, minutes: float = math.inf) -> None:
    """Adds the flags of a script that measures on any target, in calls of some minutes.

    Args:
        parser: Takes the flags.
        default: The target.
        minutes: After which a call ends.
    """
    parser.add_argument("--target", default=default, help="cpu, cuda, cuda/NAME or opencl (%(default)s)")
    parser.add_argument("--minutes", type=float, default=minutes, help="after which a call ends (%(default)s)")


def target_here(name: str, only_gpus: bool = False) -> Machine:
    """The machine with a name, on which kernels can be measured. Ends the program with one line if they cannot.

    Args:
        name: The name.
        only_gpus: Whether the script has nothing for CPUs.
    """
    try:
        target = parse_machine(name)
        target.local_device()
    except StormdropError as error:
        sys.exit(str(error))
    if only_gpus and target.device == CPU:
        sys.exit(f"target {name}: this is for GPUs")
    return target


def kept_in(name: str, target: str) -> Path:
    """The file of a campaign: the repository keeps those of CPUs, and there is one for each other kind of device."""
    device = target.partition("/")[0]
    return RECORDED / f"{name}.jsonl" if device == CPU else OUT / f"{name}_{device}.jsonl"


class SliceOver(Exception):
    """The time of a call of a script is over."""


class Slice:
    """The time of a call of a script. What is not done by its end is left to the next call.

        with Slice(minutes=9) as slice_:
            for tuning in tunings:
                slice_.check()
                result = slice_.whole(sd.tune(..., resume=True, on_progress=slice_.progress))

    Args:
        minutes: Its length.

    Attributes:
        finished: After the context: whether everything was done.
    """

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60 * minutes
        self.finished = False

    def __enter__(self) -> Slice:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.finished = kind is None
        if kind is SliceOver:
            print("the time of this call is over: call it again to go on", file=sys.stderr)
        return kind is SliceOver

    @property
    def left(self) -> float:
        """The seconds until its end."""
        return self._end - time.monotonic()

    def check(self) -> None:
        """Raises `SliceOver` if the time is over."""
        if self.left <= 0:
            raise SliceOver

    def progress(self, _: object) -> None:
        """For `on_progress`: interrupts a tuning at the end of the time, so that it can be resumed."""
        if self.left <= 0:
            raise KeyboardInterrupt

    def whole(self, result: _Result) -> _Result:
        """The result of a tuning. Raises `SliceOver` if it was interrupted, by the end of the time or by Ctrl-C."""
        if result.interrupted:
            raise SliceOver
        return result


@dataclass(frozen=True)
class SlicedTuning:
    """A tuning that is finished.

    Attributes:
        result: Its result. Its seconds are those of the last call.
        seconds: The seconds of all calls.
        trials: Its trials.
    """

    result: TuneResult
    seconds: float
    trials: list[StoredTrial]


def tuned(
    slice_: Slice, name: str, workload: Workload, *, seconds: float | None = None, fresh: bool = False, **how: Any
) -> SlicedTuning:
    """Tunes from nothing, or goes on where the last call ended.

    Args:
        slice_: This call.
        name: The name of the tuning. A database in `OUT` has this name, until the tuning is finished.
        workload: The kernel.
        seconds: The time of the tuning in all calls; without a bound by default.
        fresh: Forget what earlier calls have measured.
        how: Other arguments of `stormdrop.tune`.

    Raises:
        SliceOver: The time of this call is over, and the tuning is not finished.
    """
    slice_.check()
    with unfinished(name, fresh) as store:
        spent = seconds_spent(store)
        time_left = None if seconds is None else max(1.0, seconds - spent)  # at least a second, so that it finishes
        result = slice_.whole(
            tune(workload, time=time_left, store=store, resume=True, on_progress=slice_.progress, **how)
        )
        return SlicedTuning(result, spent + result.seconds, _trials(store))


@contextmanager
def unfinished(name: str, fresh: bool = False) -> Iterator[Store]:
    """The database of a tuning that may have begun in an earlier call. It is removed when the tuning is finished.

    Args:
        name: The name of the tuning, which is printed.
        fresh: Whether it begins from nothing.
    """
    print(name, file=sys.stderr, flush=True)
    file = OUT / "tunings" / ("".join(letter if letter.isalnum() else "_" for letter in name) + ".db")
    file.parent.mkdir(parents=True, exist_ok=True)
    parts = [file, *(file.with_name(file.name + end) for end in ("-wal", "-shm"))]
    if fresh:
        for part in parts:
            part.unlink(missing_ok=True)
    with open_store(f"sqlite:///{file}") as store:
        yield store
    for part in parts:
        part.unlink(missing_ok=True)


def seconds_spent(store: Store) -> float:
    """The seconds of a tuning in earlier calls.

    Args:
        store: Its database.
    """
    return max((trial.elapsed for trial in _trials(store)), default=0.0)


def _trials(store: Store) -> list[StoredTrial]:
    return [trial for _, trials in store.dump(Filter()) for trial in trials]
