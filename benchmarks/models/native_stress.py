"""Native models in conditions that wear programs out: few files, many threads, many loads, damage, another CPU.

    native_stress.py [MODEL ...] [--checks NAMES] [--calls N] [--loads N] [--mutations N] [--show] [--fresh]
                     [--file PATH]

MODEL is a name of `_graphs.py`, which is compiled with default schedules, or the folder of a native model.

    libraries    what model.so needs: libc, libm, ld-linux, libpthread, linux-vdso, and nothing else
    chroot       the model runs where there is nothing but its folder, a driver in C and these libraries
    valgrind     no finding of memcheck while threads call the model, compiled for x86-64-v3, which valgrind knows
    address      none of AddressSanitizer and UndefinedBehaviorSanitizer in the runtime; kernels are not instrumented
    thread       none of ThreadSanitizer in the runtime
    calls        eight threads in C: memory is flat, and all answers are right bit for bit
    python       the same with eight threads in Python, by stormdrop.runtime
    loads        the library is loaded and unloaded again and again: memory, threads, files and mappings are flat
    mutations    files truncated, extended, altered, missing, or those of another model: each is refused in one line
    cpu          a CPU without the instructions is refused, by QEMU; one that has them runs the model

Right is what one call at a time answers in Python. Each check prints a line with its figures. What is done stands in
benchmarks/out/native_stress.jsonl, and a second run goes on. The exit code is 1 if a check fails. A check that needs a
program which is not installed (valgrind, qemu-x86_64) or object files which a folder no longer has says so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, chosen, versions
from _native_driver import SANITIZER_ENVIRONMENT, SANITIZERS, drive
from _native_forms import Failed, Skipped, Subject
from _native_in_python import SETS, call_from_threads, in_process, outcomes_of
from _native_mutations import CODE, KINDS, UNREAD, digest_of, mutate

import stormdrop

THREADS = 8
WITH_AND_WITHOUT = ("with the digest", "without")
FLAT = 1024  # kilobytes that a process may grow by, as allocators keep some
LATE = 4  # mappings more: the memory of a thread that works late, as few calls of many have all cores


def main() -> None:
    options = _options()
    target = stormdrop.Cpu.detect()
    host = {"cpu": target.cpu, "cores": target.cores, "versions": versions()}
    campaign = Campaign(OUT / "native_stress.jsonl", host, options, retries=True)
    failed = False
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            subject = Subject(name, Path(folder))
            for check in options.checks:
                entry = _entry(campaign, subject, check, options)
                failed = failed or "failed" in entry
                print(_line(entry), flush=True)
    sys.exit(failed)


def _entry(campaign: Campaign, subject: Subject, check: str, options: argparse.Namespace) -> dict[str, Any]:
    """What is known of a check, or what comes out now. That it was skipped is not kept."""
    key, work = {"name": subject.name, "check": check}, CHECKS[check]
    setting = {"count": getattr(options, COUNTS[check])} if check in COUNTS else {}
    if options.show:
        return campaign.latest(key) or {**key, "skipped": "not done yet"}
    if known := campaign.known(key, setting):
        return known
    begin = time.perf_counter()
    try:
        found = {"says": work(subject, *setting.values())}
    except Skipped as reason:
        return {**key, "skipped": str(reason)}
    except Failed as reason:
        found = {"failed": str(reason)}
    return campaign.keep({**key, **setting, **found, "seconds": time.perf_counter() - begin})


def _line(entry: dict[str, Any]) -> str:
    state = next(state for state in ("failed", "skipped", "says") if state in entry)
    seconds = f" ({entry['seconds']:.0f} s)" if "seconds" in entry else ""
    return f"{entry['name']:<16} {entry['check']:<10} {state if state != 'says' else 'good'}: {entry[state]}{seconds}"


# The checks.


def _check_libraries(subject: Subject) -> str:
    needed = [Path(line.split()[0]).name for line in _libraries(subject.model / "model.so")]
    allowed = re.compile(r"(linux-vdso|libc|libm|libpthread|ld-linux[\w-]*)\.so\.\d+")
    return _unless([name for name in needed if not allowed.fullmatch(name)], "needs", ", ".join(needed))


def _check_chroot(subject: Subject) -> str:
    root = subject.folder / "root"
    shutil.copytree(subject.model, root / "model.sd")
    shutil.copy(subject.cases(subject.model), root / "cases")
    shutil.copy(subject.driver, root / "driver")
    for line in _libraries(subject.driver) + _libraries(subject.model / "model.so"):
        for path in re.findall(r"(/\S+) \(", line):
            (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, root / path[1:])
    enter = ["chroot"] if os.geteuid() == 0 else ["unshare", "-r", "chroot"]
    if subprocess.run([*enter, "/", "true"], capture_output=True, check=False).returncode:
        raise Skipped("this user may not call chroot, and may not make a namespace")
    done = drive([*enter, root, "/driver"], "/model.sd", "/cases", "calls", THREADS, 20 * SETS)
    files = sum(path.is_file() for path in root.rglob("*"))
    return _driven(done, f"{20 * SETS} calls in a root of {files} files, answers as outside")


def _check_valgrind(subject: Subject) -> str:
    if not shutil.which("valgrind"):
        raise Skipped("no valgrind")
    model, calls = subject.model_for_v3, THREADS
    tool = [
        "valgrind",
        "-q",
        "--error-exitcode=9",
        "--leak-check=full",
        "--errors-for-leak-kinds=all",
        "--fair-sched=try",
    ]
    done = drive([*tool, subject.driver], model, subject.cases(model), "calls", THREADS, calls)
    if "this CPU lacks" in done.stderr:
        raise Skipped(f"valgrind: {textwrap.shorten(done.stderr, 80, placeholder=' ...')}")
    return _driven(done, f"{calls} calls from {THREADS} threads and their end, no finding")


def _check_sanitizer(sanitizer: str, subject: Subject) -> str:
    model, driver = subject.sanitized(sanitizer)
    cases = subject.cases(subject.model)
    said = []
    for what, count in (("calls", 1000), ("loads", 100)):
        done = drive([driver], model, cases, what, THREADS, count, **SANITIZER_ENVIRONMENT)
        said.append(_driven(done, f"{count} {what}"))
    return f"{' and '.join(said)}, no finding"


def _check_calls(subject: Subject, count: int) -> str:
    done = drive([subject.driver], subject.model, subject.cases(subject.model), "calls", THREADS, count)
    return _flat(_driven(done, f"{count:,} calls from {THREADS} threads"), done.stdout)


def _check_python(subject: Subject, count: int) -> str:
    found = in_process(call_from_threads, subject.model, subject.cases(subject.model), THREADS, count)
    if not found[-1].startswith("{"):
        raise Failed(found[-1])
    return _flat(f"{count:,} calls from {THREADS} threads", found[-1])


def _check_loads(subject: Subject, count: int) -> str:
    done = drive([subject.driver], subject.model, subject.cases(subject.model), "loads", 1, count)
    return _flat(_driven(done, f"{count:,} loads"), done.stdout)


def _check_cpu(subject: Subject) -> str:
    qemu = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    if platform.machine() != "x86_64" or not qemu:
        raise Skipped("no qemu-x86_64")
    model, v3 = subject.model, subject.model_for_v3
    lacking = drive([qemu, "-cpu", "Nehalem", subject.driver], model, subject.cases(model), "calls", 1, 1)
    said = lacking.stderr.strip()
    if lacking.returncode != 1 or "this CPU lacks" not in said or "\n" in said:
        raise Failed(f"Nehalem: exit code {lacking.returncode}: {said or lacking.stdout.strip()}")
    text = f"Nehalem: {textwrap.shorten(said, 80, placeholder=' ...')}"
    done = drive([qemu, "-cpu", "max", subject.driver], v3, subject.cases(v3), "calls", 1, 1)
    if "this CPU lacks" in done.stderr:
        return f"{text}; QEMU has no CPU that runs it"
    return _driven(done, f"{text}; a CPU that has them (max, x86-64-v3): the right answer")


def _check_mutations(subject: Subject, count: int) -> str:
    """Loads mutated folders by Python, each in a process of its own, and by C where the constants are mutated."""
    cases, mutated, rng = subject.cases(subject.model), subject.folder / "mutated.sd", np.random.default_rng(0)
    files = sorted(path.name for path in subject.model.iterdir())
    found, bad = Counter[str](), list[str]()
    for number, (file, kind) in enumerate(itertools.islice(itertools.cycle(itertools.product(files, KINDS)), count)):
        if not mutate(subject.model, subject.other, mutated, file, kind, rng):
            found[f"{file} {kind} for the same"] += 1
            continue
        outcomes = dict(zip(WITH_AND_WITHOUT, outcomes_of(mutated, file, digest_of(subject.model), cases), strict=True))
        if file == "weights.bin":
            done = drive([subject.driver], mutated, cases, "calls", 1, 1)
            refused = done.returncode == 1 and done.stderr.count("\n") == 1
            outcomes["in C"] = "refused" if refused else f"exit code {done.returncode}: {done.stderr}"
        for how, outcome in outcomes.items():
            found[_sort_of(file, kind, how, outcome)] += 1
            if not _is_fine(file, kind, how, outcome):
                bad.append(f"{number}: {file} {kind}: {outcome} {how}")
    if bad:
        raise Failed(f"{len(bad)} of {count} mutations: {'; '.join(bad[:8])}")
    return f"{count} mutations: " + "; ".join(f"{times} {what}" for what, times in sorted(found.items()))


def _is_fine(file: str, kind: str, how: str, outcome: str) -> bool:
    """Whether a mutation may come to this. Nobody can refuse code that was forged, if no digest says which is meant."""
    forged = kind == "forged" and how == WITH_AND_WITHOUT[1]
    harmless = file in UNREAD or (forged and file == "metadata.json")
    return outcome == "refused" or (forged and file in CODE) or (harmless and outcome == "right")


def _sort_of(file: str, kind: str, how: str, outcome: str) -> str:
    if file in UNREAD:
        return f"{outcome}, as loading does not read {file}"
    forged = kind == "forged" and how == WITH_AND_WITHOUT[1]
    return f"{outcome} {how}, {file} forged" if forged else f"{outcome} {how}"


CHECKS: dict[str, Callable[..., str]] = {
    "libraries": _check_libraries,
    "chroot": _check_chroot,
    "valgrind": _check_valgrind,
    "address": lambda subject: _check_sanitizer(SANITIZERS[0], subject),
    "thread": lambda subject: _check_sanitizer(SANITIZERS[1], subject),
    "calls": _check_calls,
    "python": _check_python,
    "loads": _check_loads,
    "mutations": _check_mutations,
    "cpu": _check_cpu,
}
COUNTS = {"calls": "calls", "python": "calls", "loads": "loads", "mutations": "mutations"}
"""The option that says how much a check does."""


def _libraries(file: Path) -> list[str]:
    return subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout.splitlines()


def _unless(wrong: Sequence[str], says: str, text: str) -> str:
    if wrong:
        raise Failed(f"{says} {', '.join(wrong)}")
    return text


def _driven(done: subprocess.CompletedProcess[str], text: str) -> str:
    """The text, if the driver found all answers right and nothing else had something to say."""
    if done.returncode or done.stderr:
        said = [line for line in done.stderr.splitlines() if line.strip()] or [done.stdout.strip()]
        raise Failed(f"{text}: exit code {done.returncode}: {' | '.join(said[:8])}")
    return text


def _flat(text: str, document: str) -> str:
    """The text and what the process had after a tenth and at the end, if that is flat."""
    found = json.loads(document)
    (before, after), changes = found.pop("resident"), []
    wrong = found.pop("wrong")
    text += f", {wrong} wrong, {before / 1024:.2f} MB resident after a tenth, {after / 1024:.2f} at the end"
    changes += ["answers are wrong"] if wrong else []
    for name, (first, last) in found.items():
        text += f", {last} {name}"
        most = first + (LATE if name == "mappings" else 0)
        changes += [f"{first} {name} after a tenth"] if last > most else []
    if after - before > FLAT:
        changes.append("memory grows")
    if changes:
        raise Failed(f"{text}: {', '.join(changes)}")
    return text


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("models", nargs="*", default=["squeezenet"], help="names of _graphs.py, or folders")
    parser.add_argument("--checks", default=",".join(CHECKS), help="some of them, with commas")
    parser.add_argument("--calls", type=int, default=200_000, help="calls from eight threads")
    parser.add_argument("--loads", type=int, default=10_000, help="loads of a library")
    parser.add_argument("--mutations", type=int, default=300, help="mutated folders")
    options = parser.parse_args()
    options.checks = chosen(options.checks, CHECKS, "check")
    return options


if __name__ == "__main__":
    main()
