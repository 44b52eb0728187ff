"""What a tuning pays for `--log` and `--trace`: how many events it has, and how long writing one takes.

The share of a tuning's time is small beside the noise of two tunings, so it is not measured as their difference. A
tuning is watched to count its events; then as many events of the same content are written again, and timed.

    python benchmarks/report/watching_cost.py --time 30s
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import stormdrop as sd
from stormdrop import events, operators
from stormdrop.records import open_store
from stormdrop.report.traces.event_log import EventLog
from stormdrop.report.traces.event_trace import EventTrace

OUT = Path(__file__).parents[1] / "out"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", default="30s", help="the wall time of the tuning")
    options = parser.parse_args(arguments)
    told: list[events.Event] = []
    workload = operators.create("matmul", {"m": "128", "n": "128", "k": "128"})
    with events.listening(told.append), open_store("sqlite://") as store:
        result = sd.tune(workload, time=options.time, store=store, fresh=True)
    with tempfile.TemporaryDirectory() as folder:
        writers: list[EventLog | EventTrace]
        writers = [EventLog(Path(folder) / "log", print), EventTrace(Path(folder) / "trace", "a tuning", print)]
        start = time.perf_counter()
        for event in told:
            for writer in writers:
                writer(event)
        seconds = time.perf_counter() - start
        for writer in writers:
            writer.close()
    document = {
        "trials": result.trials,
        "tuning_seconds": result.seconds,
        "events": len(told),
        "writing_seconds": seconds,
        "share": seconds / result.seconds,
    }
    OUT.mkdir(exist_ok=True)
    (OUT / "watching_cost.json").write_text(json.dumps(document, indent=2))
    print(f"{result.trials} trials in {result.seconds:.1f} s, {len(told)} events")
    print(f"written in {seconds:.3f} s: {1e6 * seconds / len(told):.1f} us each, {document['share']:.3%} of the tuning")
    return int(document["share"] > 0.01)


if __name__ == "__main__":
    sys.exit(main())
