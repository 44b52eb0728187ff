"""Contenders that take a known time, hang, die or cannot take part."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from stormdrop.bench.contender import ContenderSpec, Unavailable


def contender(kind: type[Sleeper], name: str = "", **arguments: Any) -> ContenderSpec:
    """How a process makes a contender of this module; it is named like its class if no name is given."""
    return ContenderSpec(name or kind.__name__, f"contenders:{kind.__name__}", arguments)


class Sleeper:
    """A contender that takes a known time."""

    versions: Mapping[str, str] = {"sleeper": "1"}

    def __init__(self, threads: int, seconds: float = 1e-3, value: float = 1.0) -> None:
        self.settings = {"threads": threads}
        self._seconds, self._value = seconds, value

    def run(self) -> None:
        time.sleep(self._seconds)

    def outputs(self) -> list[Any]:
        print("what a library prints must not disturb us")
        os.write(1, b"nor what it writes in C\n")
        return [np.full((2, 3), self._value, "float32")]


class Spinner(Sleeper):
    """A contender whose thread pool never rests."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        threading.Thread(target=self._spin, daemon=True).start()

    def _spin(self) -> None:
        while True:
            pass


class Burner(Sleeper):
    """A contender that keeps a core busy."""

    def run(self) -> None:
        end = time.perf_counter() + 5e-3
        while time.perf_counter() < end:
            pass


class Absent(Sleeper):
    """A contender that cannot take part."""

    def __init__(self, threads: int) -> None:
        raise Unavailable("it has no form for this")


class NeedsPackage(Sleeper):
    """A contender whose library is missing."""

    def __init__(self, threads: int) -> None:
        import a_package_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401


class DyingEarly(Sleeper):
    """A contender whose library ends the process while it is prepared."""

    def __init__(self, threads: int) -> None:
        print("illegal instruction", file=sys.stderr, flush=True)
        os._exit(4)


class DyingAtOutputs(Sleeper):
    """A contender that runs, and dies when it is asked for its outputs."""

    def outputs(self) -> list[Any]:
        os._exit(5)


class Dying(Sleeper):
    """A contender that does not survive its third execution."""

    def run(self) -> None:
        self._runs = getattr(self, "_runs", 0) + 1
        if self._runs > 2:
            print("no more", file=sys.stderr, flush=True)
            os._exit(3)
