"""Requests that come at about the same time, computed together.

A model that was tuned for several numbers of rows (`--shape x=1,4,8x64`) computes eight rows in less time than eight
times one row, because it reads its weights once. `Batches` collects requests until the largest size is full, or the
oldest of them has waited long enough, and hands each one its rows of the outputs. While a batch is computed, the next
one collects: under load nobody waits for the clock. Without load a request waits for `wait` seconds at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

try:
    import stormdrop as sd
except ModuleNotFoundError:  # the image of the Dockerfile runs native models only
    import stormdrop_runtime as sd  # type: ignore[import-not-found,no-redef]

Arrays = Mapping[str, Any]


@dataclass
class Request:
    feeds: Arrays
    rows: int
    due: float  # on the clock of the event loop
    answer: asyncio.Future[Arrays]


class Batches:
    """Answers requests in batches. All calls come from one event loop."""

    def __init__(self, model: sd.CompiledModel, wait: float = 2e-3) -> None:
        if set(model.metadata.batched) != {info.name for info in model.inputs}:
            raise sd.InputError(
                f"{model.metadata.name} cannot be batched: tune it for several numbers of rows, all inputs"
            )
        self._model, self._wait = model, wait
        self._most = max(size.inputs[0].shape[0] for size in model.sizes)
        self._waiting: deque[Request] = deque()
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, feeds: Arrays) -> Arrays:
        """The outputs for some rows, as `model.run` gives them. Raises `InputError` for rows that no batch takes."""
        loop, rows = asyncio.get_running_loop(), self._checked_rows(feeds)
        request = Request(feeds, rows, loop.time() + self._wait, loop.create_future())
        self._waiting.append(request)
        self._look()
        return await request.answer

    def _checked_rows(self, feeds: Arrays) -> int:
        """The rows of a request. What is wrong with it is said here, so that it does not fail the others of a batch."""
        inputs = self._model.inputs
        if feeds.keys() != {info.name for info in inputs}:
            names, given = ", ".join(info.name for info in inputs), ", ".join(feeds) or "nothing"
            raise sd.InputError(f"the inputs are {names}; the request has {given}")
        for info in inputs:
            shape, dtype = np.shape(feeds[info.name]), feeds[info.name].dtype
            if dtype != info.dtype or len(shape) != len(info.shape) or shape[1:] != info.shape[1:]:
                wanted = ("N", *info.shape[1:])
                raise sd.InputError(
                    f"input {info.name!r} is {dtype} {shape}, not {info.dtype} ({', '.join(map(str, wanted))})"
                )
        rows = {feeds[info.name].shape[0] for info in inputs}
        if len(rows) > 1 or not 1 <= min(rows) <= self._most:
            raise sd.InputError(f"a request has from 1 to {self._most} rows, the same number in all inputs")
        return int(min(rows))

    def _look(self) -> None:
        """Begins a batch if the model is free, and the batch is full or its oldest request is due."""
        if self._running is not None or not self._waiting:
            return
        loop = asyncio.get_running_loop()
        left = self._waiting[0].due - loop.time()
        if left > 0 and sum(request.rows for request in self._waiting) < self._most:
            loop.call_later(left, self._look)
            return
        batch = [self._waiting.popleft()]
        rows = batch[0].rows
        while self._waiting and rows + self._waiting[0].rows <= self._most:
            batch.append(self._waiting.popleft())
            rows += batch[-1].rows
        self._running = loop.create_task(self._run(batch))

    async def _run(self, batch: list[Request]) -> None:
        try:
            feeds = {name: np.concatenate([request.feeds[name] for request in batch]) for name in batch[0].feeds}
            outputs = await asyncio.to_thread(self._model.run, feeds)
            begin = 0
            for request in batch:
                if not request.answer.done():  # whoever asked may be gone
                    end = begin + request.rows
                    request.answer.set_result({name: value[begin:end] for name, value in outputs.items()})
                begin += request.rows
        except Exception as error:  # noqa: BLE001  whatever it is, those who asked get it
            for request in batch:
                if not request.answer.done():
                    request.answer.set_exception(error)
        finally:
            self._running = None
            self._look()
