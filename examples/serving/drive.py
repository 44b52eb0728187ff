"""What batching gains: `python examples/serving/drive.py model.sd --clients 8 --for 10`.

Some clients ask for one row each, back to back. In turns of a second they are answered one by one, as server.py does it
without `--batch`, and in batches. Shown are answers per second, the latency that 50%, 90% and 99% of them do not
exceed, and the ratio of the throughputs with its 95% interval. The clients are coroutines in the process of the model,
so that no time of HTTP is in the figures. Every answer is compared with that of the model alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from batches import Batches

import stormdrop as sd
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.statistics import percentile_interval, ratio_interval

Arrays = Mapping[str, Any]
Predict = Callable[[Arrays], Awaitable[Arrays]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder that `stormdrop tune` wrote, with several numbers of rows")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--for", dest="seconds", type=float, default=10.0, help="seconds of each way")
    parser.add_argument("--wait", type=float, default=2.0, help="milliseconds that a request waits for others")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    document = asyncio.run(driven(sd.load(given.model), given.clients, given.seconds, given.wait / 1000))
    if given.json:
        print(json.dumps(document))
        return
    for name, way in document["ways"].items():
        latency = ", ".join(f"{percent}%: {milliseconds(known)}" for percent, known in way["latency"].items())
        print(
            f"{name:10} {way['per_second']:9.1f} answers/s   {latency}   {way['answers']} answers, {way['wrong']} wrong"
        )
    gain, low, high = document["gain"]
    print(
        f"{given.clients} clients, batches of up to {document['rows']} rows: "
        f"{gain:.2f} ({low:.2f} to {high:.2f}) times as many"
    )


def milliseconds(seconds: float | None) -> str:
    return "too few answers" if seconds is None else f"{1000 * seconds:.2f} ms"


@dataclass
class Way:
    """What the clients have seen of one way to answer them."""

    rates: list[float] = field(default_factory=list)  # answers per second of each turn
    latencies: list[float] = field(default_factory=list)
    wrong: int = 0

    def to_json(self) -> dict[str, Any]:
        known = {percent: percentile_interval(self.latencies, percent) for percent in (50, 90, 99)}
        return {
            "per_second": statistics.median(self.rates),
            "latency": {percent: interval and interval.estimate for percent, interval in known.items()},
            "answers": len(self.latencies),
            "wrong": self.wrong,
        }


async def driven(model: sd.CompiledModel, clients: int, seconds: float, wait: float) -> dict[str, Any]:
    """Both ways, in turns of about a second."""
    fewest = min(model.sizes, key=lambda size: size.inputs[0].shape[0])
    feeds = [{name: value[:1] for name, value in random_feeds(fewest.inputs, seed).items()} for seed in range(clients)]
    right = [model.run(feed) for feed in feeds]
    loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor(40)  # as many as FastAPI has

    async def alone(feed: Arrays) -> Arrays:
        return await loop.run_in_executor(threads, model.run, feed)

    predict: dict[str, Predict] = {"one by one": alone, "in batches": Batches(model, wait)}
    ways = {name: Way() for name in predict}
    turns = max(5, round(seconds))
    for _ in range(turns):
        for name, way in ways.items():
            await turn(predict[name], feeds, right, seconds / turns, way)
    return {
        "clients": clients,
        "rows": max(size.inputs[0].shape[0] for size in model.sizes),
        "gain": list(ratio_interval(ways["in batches"].rates, ways["one by one"].rates)),
        "ways": {name: way.to_json() for name, way in ways.items()},
    }


async def turn(predict: Predict, feeds: Sequence[Arrays], right: Sequence[Arrays], seconds: float, way: Way) -> None:
    """Let all clients ask for some time, after a first answer each."""
    await asyncio.gather(*(predict(feed) for feed in feeds))
    begin, before = time.perf_counter(), len(way.latencies)

    async def client(feed: Arrays, expected: Arrays) -> None:
        while (asked := time.perf_counter()) < begin + seconds:
            outputs = await predict(feed)
            way.latencies.append(time.perf_counter() - asked)
            way.wrong += not all(np.allclose(outputs[name], value, 1e-3, 1e-4) for name, value in expected.items())

    await asyncio.gather(*(client(*pair) for pair in zip(feeds, right, strict=True)))
    way.rates.append((len(way.latencies) - before) / (time.perf_counter() - begin))


if __name__ == "__main__":
    main()
