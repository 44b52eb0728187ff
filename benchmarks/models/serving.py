"""A model that several threads call at once: are all answers right, how many are there, and what does waiting cost?

    python benchmarks/models/serving.py --time 60s

Throughput: one thread and four threads call one model, with different inputs, in turns with onnxruntime. Every answer
is compared with the one that a single thread got, to the last bit.

Waiting: processes that run the model never, ten times and a hundred times a second, with TVM's threads as stormdrop
sets them, with those that never spin and with those of TVM's default, which spin for 130 ms after each kernel. Shown
are the CPU time of a process, and the latency of calls back to back.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import _graphs
import numpy as np
import onnx
import psutil

import stormdrop as sd
from stormdrop.machine.threads import SPINS
from stormdrop.model.inputs.samples import random_feeds

sys.path.insert(0, str(Path(__file__).parents[1]))
from _common import OUT, machine, save

CALLERS = 4
INPUTS = 16
TURN = 3.0  # seconds of one contender, before the next one has its turn
VARIABLE = "TVM_THREAD_POOL_SPIN_COUNT"
CPU_SECONDS = 5.0  # of each rate

Call = Callable[[dict[str, Any]], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="squeezenet", help="one of the graphs of benchmarks/models/_graphs.py")
    parser.add_argument("--time", default="60s", help="how long the model is tuned")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each contender runs, in turns")
    parser.add_argument("--waiting", action="store_true", help=argparse.SUPPRESS)  # the process whose CPU time counts
    given = parser.parse_args()
    artifact, source = OUT / f"serving-{given.model}.sd", OUT / f"serving-{given.model}.onnx"
    if given.waiting:
        wait(artifact)
        return
    OUT.mkdir(exist_ok=True)
    onnx.save(_graphs.graph(given.model), source)
    with sd.open_store(str(OUT / "serving.db")) as store:
        sd.tune_model(source, time=given.time, store=store, out=artifact)
    document = {
        "machine": machine(),
        "model": given.model,
        "throughput": throughput(artifact, source, given.seconds),
        "waiting": waiting(["--model", given.model]),
    }
    print_tables(document)
    print(save("serving", document))


def throughput(artifact: Path, source: Path, seconds: float) -> list[dict[str, Any]]:
    """Calls per second of each contender, with the number of answers that were wrong."""
    model, single = sd.load(artifact), sd.load(artifact, threads=1)
    contenders: dict[str, Call] = {"stormdrop": model.run, "stormdrop, threads=1": single.run}
    contenders |= onnxruntime_sessions(source, model.threads)
    feeds = [random_feeds(model.inputs, seed) for seed in range(INPUTS)]
    right = {name: [first_output(call(feed)) for feed in feeds] for name, call in contenders.items()}
    rows: dict[tuple[str, int], dict[str, Any]] = {
        (name, callers): {"contender": name, "callers": callers, "calls": 0, "wrong": 0, "rates": []}
        for name in contenders
        for callers in (1, CALLERS)
    }
    for _ in range(max(1, round(seconds / TURN))):
        for (name, callers), row in rows.items():
            calls, wrong, wall = turn(contenders[name], feeds, right[name], callers)
            row["calls"] += calls
            row["wrong"] += wrong
            row["rates"].append(calls / wall)
            time.sleep(0.05)  # the threads of the one before go to sleep
    return [{**row, "per_second": statistics.median(row["rates"])} for row in rows.values()]


def onnxruntime_sessions(source: Path, threads: int) -> dict[str, Call]:
    """onnxruntime with all cores and with one per call; nothing if it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return {}
    sessions: dict[str, Call] = {}
    for count in (threads, 1):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = count, 3
        session = onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        name = "onnxruntime" if count == threads else f"onnxruntime, {count} intra-op thread"
        sessions[name] = partial(session.run, None)
    return sessions


def turn(call: Call, feeds: Sequence[Any], right: Sequence[Any], callers: int) -> tuple[int, int, float]:
    """Let some threads call for `TURN` seconds. Returns the calls, the wrong answers, and the wall seconds."""
    calls, wrong = [0] * callers, [0] * callers
    end = time.perf_counter() + TURN

    def caller(number: int) -> None:
        order = np.random.default_rng(number)
        while time.perf_counter() < end:
            index = int(order.integers(len(feeds)))
            wrong[number] += not np.array_equal(first_output(call(feeds[index])), right[index])
            calls[number] += 1

    begin = time.perf_counter()
    threads = [threading.Thread(target=caller, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(calls), sum(wrong), time.perf_counter() - begin


def first_output(outputs: Any) -> Any:
    return next(iter(outputs.values())) if isinstance(outputs, dict) else outputs[0]


def waiting(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """What processes that mostly wait cost, for several numbers of spins."""
    children = {
        spins: subprocess.Popen(
            [sys.executable, __file__, "--waiting", *arguments],
            env={**os.environ, VARIABLE: str(spins)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for spins in (SPINS, 0, 300_000)
    }

    def ask(spins: int, rate: float) -> Any:
        child = children[spins]
        assert child.stdin is not None and child.stdout is not None
        print(rate, file=child.stdin, flush=True)
        answer = json.loads(child.stdout.readline())
        time.sleep(0.3)
        return answer

    latencies: dict[int, list[float]] = {spins: [] for spins in children}
    for _ in range(10):
        for spins in children:
            latencies[spins] += ask(spins, -1)
    rows = [
        {
            "spins": spins,
            "fastest": min(latencies[spins]),
            "latency": statistics.median(latencies[spins]),
            "cores": {str(rate): ask(spins, rate) for rate in (0, 10, 100)},
        }
        for spins in children
    ]
    for child in children.values():
        child.communicate()
    return rows


def wait(artifact: Path) -> None:
    """Answer the rates on standard input: the cores that calls at this rate keep busy; latencies if it is negative."""
    model, me = sd.load(artifact), psutil.Process()
    feeds = random_feeds(model.inputs, 0)
    for line in sys.stdin:
        rate = float(line)
        model.run(feeds)
        if rate < 0:
            print(json.dumps([timed(lambda: model.run(feeds)) for _ in range(30)]), flush=True)
            continue
        before, begin, calls = me.cpu_times(), time.perf_counter(), 0
        while (elapsed := time.perf_counter() - begin) < CPU_SECONDS:
            if rate:
                model.run(feeds)
                calls += 1
                elapsed = time.perf_counter() - begin
            time.sleep(max(0.0, min(calls / rate if rate else CPU_SECONDS, CPU_SECONDS) - elapsed))
        spent = me.cpu_times()
        print(json.dumps((spent.user + spent.system - before.user - before.system) / elapsed), flush=True)


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def print_tables(document: dict[str, Any]) -> None:
    print(f"{'':32}{'callers':>8}{'calls/s':>10}{'calls':>9}{'wrong':>7}")
    for row in document["throughput"]:
        print(f"{row['contender']:32}{row['callers']:8}{row['per_second']:10.1f}{row['calls']:9}{row['wrong']:7}")
    print(f"\n{'spins':>8}{'fastest':>12}{'median':>12}{'idle':>8}{'10 Hz':>8}{'100 Hz':>8}   (cores that are busy)")
    for row in document["waiting"]:
        cores = "".join(f"{row['cores'][rate]:8.3f}" for rate in ("0", "10", "100"))
        print(f"{row['spins']:8}{1e3 * row['fastest']:9.2f} ms{1e3 * row['latency']:9.2f} ms{cores}")


if __name__ == "__main__":
    main()
