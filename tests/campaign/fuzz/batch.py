"""Graphs in a child process: one that crashes it, or hangs, costs this graph only."""

from __future__ import annotations

import contextlib
import os
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from fuzz.drawing import Case
from fuzz.graphs import Tally, draw
from fuzz.judge import Judgement, Verdict, judge
from fuzz.shrink import values_of
from stormdrop.machine.process.child_process import ChildProcess

SECONDS = 60.0
"""A graph that takes longer hangs. A usual one takes less than one second."""

# What takes long to load. Not this module: it loads onnxruntime, which starts a thread, and forks need one thread only.
_LOADS = ("onnx", "stormdrop.model.importer.import_onnx", "stormdrop.model.untuned", "stormdrop.sketches.registry")

_START_SECONDS = 300.0  # that a child may take to load everything on a busy machine


class Judges:
    """A child process that draws and judges graphs. It is replaced if it ends.

    Args:
        faults: A function "module:name" that the child calls first, to plant faults.

    Attributes:
        seconds: The most time that the next graphs may take.
    """

    def __init__(self, faults: str = "") -> None:
        self.seconds, self._faults = SECONDS, faults
        self._child: ChildProcess | None = None

    def draw(self, seed: object, only: str | None = None) -> tuple[Case, Tally]:
        """The graph of a seed, which may be anything that has a `str`."""
        answer: Any = self._asked(("draw", str(seed), only))
        if isinstance(answer, Judgement):
            raise RuntimeError(f"no graph can be drawn with seed {seed}: {answer}")
        case: Case
        tally: Tally
        case, tally = answer
        return case, tally

    def judge(self, case: Case) -> Judgement | None:
        """What the product makes of a graph; None if it is no valid graph, or makes too much of rounding."""
        answer = self._asked(("judge", case))
        assert answer is None or isinstance(answer, Judgement)
        return answer

    def values(self, case: Case, names: list[str]) -> dict[str, Any] | None:
        """Inner values of a graph, as `values_of` computes them; None if it crashes or hangs."""
        answer = self._asked(("values", case, names))
        return answer if isinstance(answer, dict) else None

    def close(self) -> None:
        """Ends the process."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _asked(self, question: tuple[object, ...]) -> object:
        if self._child is None:
            self._child = ChildProcess(f"{__name__}:serve", (self._faults,), loads=_LOADS)
            self._child.answer(_START_SECONDS)  # everything is loaded
        self._child.send(question)
        try:
            answer = self._child.answer(self.seconds)
        except TimeoutError:
            self.close()
            return Judgement(Verdict.HANG, f"more than {self.seconds:g} s")
        if answer is None:
            how, last = self._child.wait(), self._child.last_line()
            self.close()
            return Judgement(Verdict.CRASH, f"{how}: {last}")
        (content,) = answer
        return content


def rng_of(seed: object) -> np.random.Generator:
    """The generator of a seed, which may be anything that has a `str`."""
    return np.random.default_rng(list(str(seed).encode()))


# The child's side


def serve(connection: Connection, faults: str) -> None:
    """Draws and judges graphs until the pipe closes."""
    if faults:
        import importlib

        module, _, name = faults.partition(":")
        getattr(importlib.import_module(module), name)()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        connection.send("ready")
        while True:
            kind, *arguments = connection.recv()
            if kind == "draw":
                seed, only = arguments
                tally = Tally()
                connection.send(((draw(rng_of(seed), tally, only), tally),))
            elif kind == "values":
                connection.send((values_of(*arguments),))
            else:
                connection.send((judge(*arguments),))
    os._exit(0)  # skips the clean-up of TVM and LLVM
