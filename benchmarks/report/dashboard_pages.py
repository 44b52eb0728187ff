"""How long each page of the dashboard takes with hundreds of sessions and a million trials.

It makes a database of invented tunings (the times are random, the tables are real), asks for each page
several times, and prints the first and the median time. It ends with 1 if a page takes longer than a second. Downloads
are not bounded: they are as long as what is asked for.

    python benchmarks/report/dashboard_pages.py
    python benchmarks/report/dashboard_pages.py --db postgresql://me@localhost/dashboard --trials 100000
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from starlette.testclient import TestClient

from stormdrop.records import Outcome, Problem, Record, Setting, Store, open_store
from stormdrop.records.reading.reader import RecordsReader
from stormdrop.records.reading.session_lines import SessionFilter
from stormdrop.report.dashboard.app import create_app
from stormdrop.trial import Measurement, Phases, Status

OUT = Path(__file__).parents[1] / "out"
LIMIT = 1.0  # seconds
CHUNK = 2000  # trials in one transaction
SKETCH = "register_blocked"
ERRORS = (
    (Status.COMPILE_HOST, "LLVM: out of registers in block 17"),
    (Status.WRONG_ANSWER, "output 0 differs by 3.1e-2"),
    (Status.RUN_TIMEOUT, "still running after 2.0 s"),
)


def sizes(sessions: int, trials: int, rng: np.random.Generator) -> list[int]:
    """How many trials each session has: a few have most of them, as in practice."""
    weights = rng.pareto(1.2, sessions) + 0.05
    return [max(1, int(share)) for share in trials * weights / weights.sum()]


def fill(store: Store, sessions: int, trials: int, seed: int = 0) -> None:
    """Writes invented tunings of the kernels of a few models into a store."""
    rng = np.random.default_rng(seed)
    for number, count in enumerate(sizes(sessions, trials, rng)):
        name = f"conv2d n=1 h={7 * 2 ** (number % 6)} ci={16 * (1 + number % 40)}"
        problem = Problem(
            f"{number % 200:032x}", f"the function {number % 200}", name, "llvm", f"a CPU, {2 + number % 3} cores"
        )
        model = {"name": f"network {number % 12}", "calls": 1 + number % 4}
        method = {
            "batch": 8,
            "model": model,
            "spaces": {SKETCH: [f"a knob of the space {index}" for index in range(40)]},
        }
        search = ("storm", "droplet", "nose")[number % 3]
        session = store.open(problem, Setting(search, number, {SKETCH: "0" * 64}, method=method))
        best = 1e-3
        for begin in range(0, count, CHUNK):
            records = [record(rng, position) for position in range(begin, min(begin + CHUNK, count))]
            best = min([best, *(each.measurement.seconds[0] for each in records if each.measurement.ok)])
            store.append(session, begin // 8, records)
        if number % 20:
            store.finish(session, Outcome(SKETCH, {"rows": 4}, best, (best, 1.1 * best), 2 * best))


def record(rng: np.random.Generator, position: int) -> Record:
    """One invented trial."""
    rows, columns, block = (int(2 ** rng.integers(0, 6)) for _ in range(3))
    config = {
        "rows": rows,
        "columns": columns,
        "block": block,
        "unroll": position % 4,
        "order": "rows",
        "pack": position % 2,
    }
    phases = Phases(0.01, 0.05, 0.02, 0.001)
    if rng.random() < 0.05:
        status, error = ERRORS[position % len(ERRORS)]
        return Record(SKETCH, config, Measurement(status, (), error, phases), 0.1 * position)
    seconds = tuple(float(each) for each in 1e-4 * (1 + rng.exponential(2.0)) * rng.normal(1, 0.01, 3))
    return Record(
        SKETCH, config, Measurement(Status.OK, seconds, "", phases, bool(rng.random() < 0.02)), 0.1 * position
    )


def pages(reader: RecordsReader) -> list[str]:
    """The addresses that are timed."""
    most, *others = reader.sessions(SessionFilter(), "trials", 200)
    model = "/model?name=network+3&machine=a+CPU,+2+cores"
    return [
        "/",
        "/sessions",
        "/sessions?page=4",
        "/sessions?name=ci%3D64&state=finished&sort=fastest",
        f"/sessions/{most.id}",
        f"/sessions/{most.id}?status=wrong_answer",
        f"/sessions/{others[-1].id}",
        f"/difference?a={most.id}&b={others[0].id}",
        "/trials",
        "/trials?status=run_timeout",
        "/trials?text=columns%22:32",
        "/trials?text=nothing+holds+this",
        "/trials?suspect=yes&name=ci%3D64",
        "/models",
        model,
        "/machines",
        "/static/style.css",
    ]


def timed(client: TestClient, address: str, times: int) -> list[float]:
    """Seconds of so many answers."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        answer = client.get(address)
        taken.append(time.perf_counter() - start)
        if answer.status_code != 200:
            sys.exit(f"{address} answers {answer.status_code}")
    return taken


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", help="the database to fill, if it is empty; by default a file in benchmarks/out")
    parser.add_argument("--sessions", type=int, default=300)
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=5, help="how often each page is asked for")
    options = parser.parse_args(arguments)
    OUT.mkdir(exist_ok=True)
    place = options.db or str(OUT / "dashboard_pages.db")
    with open_store(place) as store:
        if not store.sessions():
            fill(store, options.sessions, options.trials)
    reader = RecordsReader(place)
    totals = reader.totals()
    print(f"{totals.sessions} sessions, {totals.trials} trials in {reader.place}")
    slow, results = [], {}
    # A page is timed in an application of its own: what the first look at a session costs is part of it.
    for address in pages(reader):
        client = TestClient(create_app(reader), base_url="http://127.0.0.1")
        taken = timed(client, address, options.times)
        results[address] = taken
        print(f"{taken[0]:8.3f} s first  {statistics.median(taken):8.3f} s median  {address}")
        slow += [address] if max(taken) > LIMIT else []
    document = {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "sessions": totals.sessions,
        "trials": totals.trials,
        "pages": results,
    }
    (OUT / "dashboard_pages.json").write_text(json.dumps(document, indent=2))
    reader.close()
    print(f"slower than {LIMIT:g} s: {', '.join(slow) or 'none'}")
    return bool(slow)


if __name__ == "__main__":
    sys.exit(main())
