"""What Python does with native models, each time in a process of its own: a crash of it is an outcome."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import stormdrop
from stormdrop import runtime
from stormdrop.errors import StormdropError

SETS = 16
"""The cases of each size."""

_LIMIT = 120.0  # seconds until a process that yields nothing hangs
_SETTLED = 0.3  # seconds until threads that have ended are gone from /proc
_WHOLE = "program.json"  # stormdrop.load reads it, stormdrop.runtime does not
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["stormdrop.runtime", "stormdrop.cli.output", "stormdrop.records.codec"])


def in_process(function: Callable[..., Iterator[str]], *arguments: Any, limit: float | None = None) -> list[str]:
    """What a function yields in another process, and in the end what went wrong there: a signal, a hang, an exception.

    Args:
        function: Yields texts; it is at the top of a module.
        arguments: Of the function.
        limit: The most seconds until the next one.
    """
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_send_all, args=(sender, function, arguments), daemon=True)
    process.start()
    sender.close()
    yielded = list[str]()
    try:
        while receiver.poll(limit):
            yielded.append(receiver.recv())
        process.kill()
        process.join()
        return [*yielded, "hangs"]
    except EOFError:
        process.join()
    code = process.exitcode or 0
    return [*yielded, *([f"crash: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"] if code else [])]


def write_cases(model: Path, path: Path) -> Iterator[str]:
    """Writes inputs, which are drawn from a seed, and the outputs that the model has for them."""
    path.write_bytes(_bytes_of(_cases(runtime.load(model), SETS)))
    yield "written"


def call_from_threads(folder: Path, path: Path, threads: int, count: int) -> Iterator[str]:
    """Calls a model as the driver in C does, and yields the document that it prints."""
    model = runtime.load(folder)
    cases, wrong, states = _cases(model, SETS), list[int](), list[tuple[int, ...]]()
    if _bytes_of(cases) != path.read_bytes():
        raise RuntimeError("another process computes other bits")

    def call(numbers: Iterator[int]) -> None:
        for number in numbers:
            feeds, right = cases[number % len(cases)]
            found = model.run(feeds).values()
            wrong.extend(number for a, b in zip(found, right, strict=True) if a.tobytes() != b.tobytes())

    for calls in (range(count // 10), range(count // 10, count)):
        numbers = iter(calls)  # the threads share it
        with ThreadPoolExecutor(threads) as pool:
            for caller in [pool.submit(call, numbers) for _ in range(threads)]:
                caller.result()
        time.sleep(_SETTLED)
        states.append((_resident(), *(len([*Path("/proc/self", name).iterdir()]) for name in ("task", "fd"))))
    resident, tasks, files = zip(*states, strict=True)
    yield json.dumps({"wrong": len(wrong), "resident": resident, "threads": tasks, "files": files})


def outcomes_of(folder: Path, file: str, digest: str, cases: Path) -> tuple[str, str]:
    """What loading a folder and a call come to: with the digest that is meant, and without it.

    Args:
        folder: the folder.
        file: the one that was mutated.
        digest: the digest of the model that is meant.
        cases: what that model answers.
    """
    first, *second = in_process(_outcomes, folder, file == _WHOLE, digest, cases, limit=_LIMIT)
    return first, second[0] if second else first


def _outcomes(folder: Path, whole: bool, digest: str, cases: Path) -> Iterator[str]:
    load: Callable[..., Any] = stormdrop.load if whole else runtime.load
    for given in (digest, None):
        try:
            found = _bytes_of(_cases(load(folder, digest=given), 1))
            yield "right" if cases.read_bytes().startswith(found) else "another answer"
        except StormdropError as error:
            yield "refused" if "\n" not in str(error) else f"refused in several lines ({str(error)[:300]!r})"


def _send_all(sender: Any, function: Callable[..., Iterator[str]], arguments: Sequence[Any]) -> None:
    for each in function(*arguments):
        sender.send(each)


def _cases(model: Any, sets: int) -> list[tuple[dict[str, Any], list[Any]]]:
    rng, found = np.random.default_rng(0), []
    for size in itertools.chain.from_iterable(itertools.repeat(tuple(model.sizes), sets)):
        feeds = {info.name: _drawn(rng, info) for info in size.inputs}
        found.append((feeds, list(model.run(feeds).values())))
    return found


def _drawn(rng: np.random.Generator, info: Any) -> Any:
    if info.dtype.startswith(("int", "uint", "bool")):
        return rng.integers(0, 2, info.shape).astype(info.dtype)  # a word, a choice
    return rng.standard_normal(info.shape).astype(info.dtype)


def _bytes_of(cases: Sequence[tuple[dict[str, Any], list[Any]]]) -> bytes:
    return b"".join(each.tobytes() for feeds, outputs in cases for each in [*feeds.values(), *outputs])


def _resident() -> int:
    found = re.search(r"^Rss:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0
