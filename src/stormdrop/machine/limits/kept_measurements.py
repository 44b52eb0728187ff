"""Measurements of this machine that are made once, and kept in files in the user's cache folder.

There is one file per kind of measurement and machine. A measurement that other work has disturbed is kept, too:
otherwise each tuning would measure again on a machine that others use. It never takes the place of an undisturbed one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import platformdirs

from ..sharing.foreign_load import is_quiet
from ..sharing.lock import MachineLock

V = TypeVar("V")

_SHARE = 0.03  # of a tuning's time


def granted(seconds: float | None) -> float:
    """The wall seconds that a tuning may spend on measurements of the machine, all of them together: 3% of its time.

    Args:
        seconds: The wall seconds of the tuning; None is no bound.
    """
    return math.inf if seconds is None else _SHARE * seconds


_measured: dict[Path, Any] = {}
"""What this process has measured, by the file that keeps it: whatever becomes of the file, once is enough."""


def latest(known: V, measured: V) -> V:
    """Of two measurements that were disturbed, the later one."""
    return measured


@dataclass(frozen=True)
class KeptMeasurement(Generic[V]):
    """A measurement of this machine that is kept.

    Attributes:
        path: The file that keeps it, from `kept_file`.
        write: Makes a document of a value, which JSON can hold.
        read: Makes the value of a document. It raises `ValueError`, `KeyError` or `TypeError` if that is damaged.
        undisturbed: Whether nothing else used the machine while a value was measured.
        better: Chooses between two disturbed values: the one that is known, and the one that was measured after it.
    """

    path: Path
    write: Callable[[V], Any]
    read: Callable[[Any], V]
    undisturbed: Callable[[V], bool]
    better: Callable[[V, V], V] = latest

    def known(self) -> V | None:
        """What is kept, or was measured by this process. It measures nothing itself."""
        try:
            return self.read(kept(self.path))
        except (ValueError, KeyError, TypeError):  # never measured, or the file is damaged
            return _measured.get(self.path)

    def get(self, measure: Callable[[], V], refresh: bool = False, deadline: float = math.inf) -> V:
        """What is known, or else what is measured while nobody else measures.

        Args:
            measure: Measures.
            refresh: Measure even if it is known.
            deadline: A reading of `time.perf_counter` after which the machine-wide lock is not waited for any more.

        Raises:
            LockTimeout: The machine was not free before the deadline.
        """
        known = self.known()
        if known is not None and not refresh:
            return known
        with contextlib.closing(MachineLock()) as lock, lock.exclusive(deadline):
            before, known = known, self.known()
            if known is not None and (not refresh or (known != before and self.undisturbed(known))):
                return known  # whoever had the lock before has measured it
            stands = _measured[self.path] = self._standing(known, measure())
        with contextlib.suppress(OSError):  # without a folder that can be written, the next process measures again
            keep(self.path, self.write(stands))
        return stands

    def within(self, measure: Callable[[float], V], cost: float, seconds: float) -> V | None:
        """What is known, or what can be measured within some seconds; None if there is no such thing.

        An undisturbed measurement stands. A disturbed one is measured again if nothing else uses the machine now.

        Args:
            measure: Measures. Its argument is the seconds that it may wait for undisturbed windows, besides `cost`.
            cost: The seconds that it takes, about.
            seconds: The most wall seconds that it may take; infinity is no bound.

        Raises:
            LockTimeout: The machine was not free within this time.
        """
        begin = time.perf_counter()
        known = self.known()
        if cost > seconds or (known is not None and (self.undisturbed(known) or not is_quiet())):
            return known
        deadline = begin + seconds

        def measure_until_then() -> V:
            return measure(max(0.0, deadline - cost - time.perf_counter()))

        return self.get(measure_until_then, refresh=known is not None, deadline=deadline - cost)

    def _standing(self, known: V | None, measured: V) -> V:
        """What is known after a measurement."""
        if known is None or self.undisturbed(measured):
            return measured
        return known if self.undisturbed(known) else self.better(known, measured)


def kept_file(kind: str, identity: Sequence[Any]) -> Path:
    """The file that keeps a measurement.

    Args:
        kind: What was measured, such as "peak": the name of a folder.
        identity: What the measurement depends on, as JSON can hold it.

    Returns:
        An absolute path; a relative one if there is no folder for caches, because the user has no home. `keep` writes
        nothing there.

    Example:
        >>> kept_file("peak", ["a CPU", 2]).suffix
        '.json'
    """
    name = hashlib.sha256(json.dumps(list(identity)).encode()).hexdigest()[:16]
    try:
        return Path(platformdirs.user_cache_dir("stormdrop", appauthor=False)) / kind / f"{name}.json"
    except RuntimeError:  # the system does not know this user
        return Path(f"~/{name}.json")


def keep(path: Path, document: Any) -> None:
    """Writes a measurement, whole or not at all, because another process may be reading.

    Args:
        path: A path from `kept_file`; nothing is written if it is relative.
        document: What JSON can hold.

    Raises:
        OSError: The file cannot be written.
    """
    if not path.is_absolute():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(document) + "\n")
    draft.replace(path)


def kept(path: Path) -> Any:
    """What a file keeps; None if it is not there, is damaged, or its path is relative."""
    if not path.is_absolute():
        return None
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
