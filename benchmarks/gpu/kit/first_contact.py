"""The first minutes with a GPU: which one it is, what it can do, what of ours works on it, and how fast that is.

    first_contact.py --minutes 9 [--out FILE.jsonl] [--only STEP] [--host]

It runs these steps in this order, each in a process of its own, and each bounded in time:

    gpu            which GPU, its driver and clocks, and the versions of the software
    limits         float32 FLOP/s and the rate of copying, measured, beside the data sheet's
    sketches       schedules of every sketch of every operator: the default and two random ones, right or wrong
    sanitizer      compute-sanitizer over a few kernels
    operators      six operators tuned for 20 s each, beside torch's best forms
    models         SqueezeNet and ResNet-18: compiled, tuned for 60 s, beside torch
    torch_compile  a network by torch.compile(backend="stormdrop"), compared with eager torch and timed beside it
    papers         shapes of `benchmarks/gpu/run.py`, half a minute for each arm, as many as there is time for

What a step finds is a JSON line as soon as it is known, and so is its end: `step`, `status` (ok, failed or skipped),
`seconds` and `reason`. A step that fails does not stop the others. A second call goes on: it leaves out steps that have
ended, ok or failed, and goes on with those that were skipped, for lack of time or of a tool. `--only STEP` goes on with
any step: what it has found is not done again, and what has failed is. With fewer minutes, tunings are shorter, too. A
file is for one kind of GPU: beside another one the program refuses it.

`--host` is a dry run without a GPU, with tiny budgets: kernels run on the cores by OpenCL (PoCL), and their CUDA source
by g++.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from _common import Campaign
from _steps import FULL, STEPS, Kit, Skipped

from stormdrop.errors import one_line
from stormdrop.machine.nvml import visible_gpus

_PARTS = {
    "gpu": 15,
    "limits": 25,
    "sketches": 80,
    "sanitizer": 60,
    "operators": 150,
    "models": 150,
    "torch_compile": 40,
}
"""The most seconds of a step, of nine minutes. The last step takes what is left."""

_LEAST = 5.0  # seconds that a step is begun with
_GRACE = 5.0  # seconds that a step may take longer than it was told


def main() -> None:
    options = _options()
    if options.child:
        print(json.dumps(_result(options)))
        return
    if not options.host:
        _check_gpus(options.out)
    end = time.monotonic() + 60 * options.minutes
    for step in [options.only] if options.only else STEPS:
        key = {"step": step, "item": None, "host": options.host}
        last = Campaign(options.out).latest(key)
        if last is not None and last["status"] != "skipped" and not options.only:
            print(f"{step}: {last['status']} already")
            continue
        begin = time.monotonic()
        limit = end - begin
        if step in _PARTS and not options.only:
            limit = min(limit, max(_LEAST, _PARTS[step] * options.minutes / FULL))
        found = {"status": "skipped", "reason": "no time left"} if limit < _LEAST else _in_child(step, limit, options)
        seconds = round(time.monotonic() - begin, 1)
        Campaign(options.out).keep({**key, **found, "seconds": seconds})
        print(f"{step}: {found['status']} in {seconds:.0f} s: {found['reason']}", flush=True)


def _check_gpus(file: Path) -> None:
    """Ends the program with one line if a file is of other GPUs than those here."""
    found = (entry for entry in Campaign(file).entries if entry["step"] == "gpu" and not entry["host"])
    theirs = {entry["name"] for entry in found if "name" in entry and entry["item"] != "target"}
    here = {info.name for info in visible_gpus()}
    if theirs and theirs != here:
        names = " and ".join(sorted(here)) or "no GPU"
        sys.exit(f"{file} is of {' and '.join(sorted(theirs))}, and here is {names}: choose another file by --out")


def _in_child(step: str, limit: float, options: argparse.Namespace) -> dict[str, Any]:
    """How a step ends in a process of its own, at the latest after the limit. All that it has started ends with it."""
    command = [sys.executable, __file__, f"--child={step}", f"--seconds={limit - _GRACE / 2}"]
    command += [f"--minutes={options.minutes}", f"--out={options.out}", *(["--host"] if options.host else [])]
    command += ["--retries"] if options.only else []
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, start_new_session=True)
        try:
            process.wait(limit + _GRACE)
        except subprocess.TimeoutExpired:
            return {"status": "skipped", "reason": f"ended after {limit + _GRACE:.0f} s: another call goes on"}
        finally:
            with contextlib.suppress(ProcessLookupError):  # it and all that it has started have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        try:
            return dict(json.loads(output.read().splitlines()[-1]))
        except (IndexError, ValueError):
            return {"status": "failed", "reason": f"its process ended with {process.returncode}"}


def _result(options: argparse.Namespace) -> dict[str, Any]:
    """Runs a step in this process. Returns its status, and why."""
    kit = Kit(
        options.child, options.host, Campaign(options.out, retries=options.retries), options.seconds, options.minutes
    )
    try:
        STEPS[kit.step](kit)
    except Skipped as reason:
        return {"status": "skipped", "reason": str(reason)}
    except Exception as error:  # noqa: BLE001  whatever fails: the other steps must not be lost
        traceback.print_exc()
        return {"status": "failed", "reason": one_line(error)}
    return kit.summary()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=FULL, help="that all steps may take (%(default)g)")
    parser.add_argument("--out", type=Path, default=Path("first_contact.jsonl"), help="(%(default)s)")
    parser.add_argument("--only", choices=STEPS, help="one step, also if it has ended; it may take all the minutes")
    parser.add_argument("--host", action="store_true", help="a dry run without a GPU")
    parser.add_argument("--child", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--retries", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
