"""Contenders side by side: each in a process of its own, taking turns on a machine that nobody else measures on.

Thread pools spin: a pool that has just finished keeps its cores busy for a while, in wait for more work, and takes
the time from whoever comes next. So every contender, ours too, lives in a process of its own, with its thread
settings as its makers chose them, and that process is stopped (SIGSTOP) except in its own turns. In each round every
contender warms up and is then timed; each round begins with another one, so that no order favours any.
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol

import psutil

from ..errors import MeasureError
from ..machine.foreign_load import LoadThresholds, LoadWatch, read_counters
from ..machine.lock import MachineLock
from ..measure.timing import TimingPlan, sample

LIMITS = LoadThresholds(foreign_cores=0.4, stolen_fraction=0.1)
"""When a turn counts as disturbed: the median of five samples survives the odd moment, not a steady competitor."""


# NumPy asks the kernel for huge pages, allocators do not: streams took up to a third longer for whoever had none.
_HUGE_PAGES = "glibc.malloc.hugetlb=1"


class Unavailable(Exception):
    """A contender that cannot take part here; the message says why."""


class Contender(Protocol):
    """What runs in the contender's process: prepared when made, then executed again and again."""

    settings: Mapping[str, Any]  # threads, layouts: what a reader must know to repeat it
    versions: Mapping[str, str]

    def run(self) -> object:
        """One execution, as a user of this library would do it."""

    def outputs(self) -> list[Any]:
        """The arrays of one execution, in the layout of the workload."""


@dataclass(frozen=True)
class Entry:
    """A contender by name: the process calls `maker`, a function "module:name", with `arguments`."""

    name: str
    maker: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """How long a turn is: `repeats` samples, each of as many executions as fill `sample_seconds`."""

    repeats: int = 5
    sample_seconds: float = 10e-3


@dataclass(frozen=True)
class Times:
    """`rounds[i][r]` is the time of contender `i` in round `r`: the median of its samples, seconds per execution.

    `disturbed` counts the rounds in which something else used the machine.
    """

    rounds: list[list[float]]
    disturbed: int


def compete(players: Sequence[Player], rounds: int, turn: Turn = Turn()) -> Times:
    """Lets the contenders take turns, one round at a time under the machine-wide lock.

    A round that foreign load disturbed is played again, `rounds` times in all at most: a competitor for the cores
    hurts one thread pool more than another (a spinning barrier can become ten times slower), so it does not
    cancel in the ratio. Raises `MeasureError` when a contender dies.
    """
    kept: list[list[float]] = [[] for _ in players]
    disturbed, again = 0, rounds
    lock = MachineLock()
    try:
        first = 0
        while len(kept[0]) < rounds:
            with lock.exclusive():
                played, suspect = _round(players, first, turn)
            first += 1
            if suspect and again > 0:
                again -= 1
                continue
            disturbed += suspect
            for times, time in zip(kept, played, strict=True):
                times.append(time)
    finally:
        lock.close()
    return Times(kept, disturbed)


def _round(players: Sequence[Player], first: int, turn: Turn) -> tuple[list[float], bool]:
    """One turn of each, beginning with number `first`; their times, and whether any was disturbed."""
    times = [0.0] * len(players)
    disturbed = False
    for position in range(len(players)):
        index = (first + position) % len(players)
        samples, suspect = players[index].take_turn(turn)
        times[index] = statistics.median(samples)
        disturbed = disturbed or suspect
    return times, disturbed


class Player:
    """A contender's process, seen from outside. Stopped at all times but during its calls. Use as a context."""

    def __init__(self, entry: Entry, threads: int, patience: float = 600.0) -> None:
        """Starts the process and waits until the contender is prepared, `patience` seconds at most.

        Raises `Unavailable` where it cannot take part, `MeasureError` where its process dies.
        """
        self.name = entry.name
        self._patience = patience
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        tunables = ":".join(filter(None, [os.environ.get("GLIBC_TUNABLES"), _HUGE_PAGES]))
        # Libraries are talkative; what they say matters when a process dies. Closed in `close`.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from stormdrop.bench.turns import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, "PYTHONPATH": path, "TVM_NUM_THREADS": str(threads), "GLIBC_TUNABLES": tunables},
        )
        self._handle = psutil.Process(self._process.pid)
        try:
            kind, answer = self._ask((entry, threads))
            if kind == "unavailable":
                raise Unavailable(answer)
            self.settings: dict[str, Any] = answer["settings"]
            self.versions: dict[str, str] = answer["versions"]
            self._handle.suspend()
        except BaseException:
            self.close()
            raise

    def take_turn(self, turn: Turn) -> tuple[list[float], bool]:
        """Samples in seconds per execution, after a warm-up, and whether something else used the machine meanwhile."""
        samples, suspect = self._awake(("time", turn))
        return samples, suspect

    def outputs(self) -> list[Any]:
        """The arrays of one execution."""
        arrays: list[Any] = self._awake(("outputs", None))
        return arrays

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the process has used so far."""
        times = self._handle.cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()  # reaches a stopped process too
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        self._said.close()

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def _awake(self, question: object) -> Any:
        self._handle.resume()
        try:
            kind, answer = self._ask(question)
        finally:
            if self._process.poll() is None:
                self._handle.suspend()
        if kind == "failed":
            raise MeasureError(f"{self.name} failed: {answer}")
        return answer

    def _ask(self, question: object) -> tuple[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(self._patience, self._process.kill)
        watchdog.start()
        try:
            pickle.dump(question, self._process.stdin)
            self._process.stdin.flush()
            kind, answer = pickle.load(self._process.stdout)
            return kind, answer
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            code = self._process.wait()
            raise MeasureError(f"{self.name}: its process ended (exit code {code}){self._last_words()}") from error
        finally:
            watchdog.cancel()


# ---------------------------------------------------------------------------------- the contender's process


def serve() -> None:
    """The contender's process: makes the contender, then answers until its standard input ends."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    questions, answers = _channel()

    def answer(kind: str, value: object) -> None:
        pickle.dump((kind, value), answers)
        answers.flush()

    entry, threads = pickle.load(questions)
    try:
        contender = _maker(entry.maker)(threads=threads, **entry.arguments)
        contender.run()
    except Unavailable as error:
        answer("unavailable", str(error))
        return
    except ImportError as error:
        answer("unavailable", f"{error.name or error} is not installed")
        return
    except Exception as error:  # noqa: BLE001  (a peer's own failure is what is reported, whatever it is)
        answer("unavailable", f"{type(error).__name__}: {_first_line(error)}")
        return
    watch = LoadWatch(threads, LIMITS)
    answer("ready", {"settings": dict(contender.settings), "versions": dict(contender.versions)})
    while True:
        try:
            kind, turn = pickle.load(questions)
        except EOFError:
            return
        try:
            if kind == "time":
                before = read_counters()
                samples = sample(contender.run, TimingPlan(turn.repeats, turn.sample_seconds))
                answer("times", (samples, watch.suspect(read_counters() - before)))
            else:
                answer("outputs", contender.outputs())
        except Exception as error:  # noqa: BLE001  (reported to the parent)
            answer("failed", f"{type(error).__name__}: {_first_line(error)}")


def _channel() -> tuple[BinaryIO, BinaryIO]:
    """Our ends of the two pipes. What libraries print goes to standard error instead of into the pipe."""
    questions: BinaryIO = io.BufferedReader(io.FileIO(os.dup(0)))
    answers: BinaryIO = io.BufferedWriter(io.FileIO(os.dup(1), "w"))
    os.dup2(2, 1)
    return questions, answers


def _maker(name: str) -> Callable[..., Contender]:
    import importlib

    module, _, function = name.partition(":")
    found: Callable[..., Contender] = getattr(importlib.import_module(module), function)
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _die_with_parent() -> None:
    """A stopped process would outlive a parent that was killed: let the kernel (Linux) end it with its parent."""
    if sys.platform == "linux":
        death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(death_signal, signal.SIGKILL)
