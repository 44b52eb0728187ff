"""Many processes write to one database while some of them are killed and the network fails: are the counts exact?

    python benchmarks/store/writers.py [--writers 16] [--trials 10000] [--kills 10] [--cuts 3]

A PostgreSQL server is started for it on this machine (PostgreSQL and `stormdrop[postgresql]` are needed). The writers
reach it through a proxy. Each of them writes a session of its own, one trial per transaction, as a tuning does. Some
are ended by SIGKILL in the midst of it: another process then resumes the session. From time to time the proxy cuts all
connections for a second, or lets nothing pass. In the end the database is read by SQL alone: every session must hold
each of its trials once, in order, whoever wrote it, and its own count must agree. A writer notes in a file what the
database has taken; a process that resumes must find all of that.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from stand_ins.network import Proxy
from stand_ins.postgresql import Server, Unavailable, server
from stormdrop.errors import StoreError
from stormdrop.records import BufferedStore, Filter, Outcome, State, buffered_store, open_store
from stormdrop.testing.stores import PROBLEM, SETTING, timed

LOST = 3
"""The exit code of a writer that finds less than the database had taken."""

_CUT_SECONDS = 1.0
_TRIAL_SECONDS = 0.1  # what a trial takes while the database fails; otherwise all would be in memory at once
_LONGEST = 900.0  # seconds for all


@dataclass(frozen=True)
class Counts:
    """What was done and what was found.

    Attributes:
        killed: writers that were killed while they wrote.
        cuts: times that the network failed.
        sessions: sessions in the database, and how many of them are finished.
        finished: sessions that are finished.
        trials: rows of trials in the database.
        counted: the sum of what the sessions say of their trials.
        distinct: distinct trials in the database.
        gaps: sessions whose trials are not 0, 1, 2, ... in this order.
        lost: writers that found less than the database had taken.
    """

    killed: int
    cuts: int
    sessions: int
    finished: int
    trials: int
    counted: int
    distinct: int
    gaps: int
    lost: int

    def exact(self, writers: int, trials: int) -> bool:
        """Whether the database holds these trials of these writers, each once, and nothing else."""
        found = (self.sessions, self.finished, self.trials, self.counted, self.distinct, self.gaps, self.lost)
        return found == (writers, writers, trials, trials, trials, 0, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--trials", type=int, default=10_000, help="of all writers together (%(default)s)")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--cuts", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    each = arguments.trials // arguments.writers
    try:
        with server() as running:
            counts = disturb(running, arguments.writers, each, arguments.kills, arguments.cuts, arguments.seed)
    except Unavailable as error:
        sys.exit(str(error))
    for name, value in dataclasses.asdict(counts).items():
        print(f"{name:9} {value}")
    exact = counts.exact(arguments.writers, each * arguments.writers)
    print("exact" if exact else f"NOT EXACT: {arguments.writers} sessions of {each} trials were written")
    sys.exit(not exact)


def disturb(
    running: Server, writers: int, each: int, kills: int, cuts: int, seed: int = 0, retry: float = 1.0
) -> Counts:
    """Starts the writers, disturbs them at random, waits for them and counts.

    Args:
        running: the server, whose database is empty.
        writers: how many processes write at one time.
        each: the trials of each writer.
        kills: how many of them are killed.
        cuts: how often the network fails.
        seed: of the random numbers that choose whom, when and how.
        retry: seconds for which a writer leaves the database alone after a failure.
    """
    rng = random.Random(seed)
    total = writers * each
    marks = rng.sample(range(total // 20, total * 7 // 10), kills + cuts)  # the trials at which something happens
    events = sorted((mark, "kill" if index < kills else "cut") for index, mark in enumerate(marks))
    open_store(running.url).close()
    killed = cut = lost = 0
    deadline = time.monotonic() + _LONGEST
    with tempfile.TemporaryDirectory() as name, Proxy(running.port) as proxy:
        notes = [Path(name) / str(number) for number in range(writers)]

        def start(number: int) -> subprocess.Popen[bytes]:
            words = [running.at(proxy.port), number, each, notes[number], retry]
            return subprocess.Popen([sys.executable, __file__, "--write", *map(str, words)])

        processes = {number: start(number) for number in range(writers)}
        try:
            while processes and time.monotonic() < deadline:
                taken = {number: _taken(notes[number]) for number in range(writers)}
                if events and sum(taken.values()) >= events[0][0]:
                    kind = events[0][1]
                    busy = [number for number in processes if 0 < taken[number] < each]
                    if kind == "cut" or busy:
                        events.pop(0)
                    if kind == "cut":
                        cut += 1
                        proxy.cut() if cut % 2 else proxy.silence()
                        time.sleep(_CUT_SECONDS)
                        proxy.mend()
                    elif busy:
                        victim = processes[rng.choice(busy)]
                        victim.kill()
                        killed += victim.wait() == -9
                for number, process in list(processes.items()):
                    if process.poll() is None:
                        continue
                    lost += process.returncode == LOST
                    if process.returncode == -9:
                        processes[number] = start(number)
                    else:
                        del processes[number]
                time.sleep(0.01)
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
    return _count(running, killed, cut, lost)


def write(url: str, number: int, trials: int, note: Path, retry: float) -> int:
    """Writes the session of one writer from where it stands to its end. Returns the exit code."""
    buffered_store.RETRY_SECONDS = retry
    buffered_store.RETRY_FACTOR = 0.0
    setting = dataclasses.replace(SETTING, seed=number)
    while True:
        try:
            store = open_store(url)
            break
        except StoreError:  # the network fails just now
            time.sleep(0.1)
    with closing(store), BufferedStore(store, say=lambda _: None) as buffered:
        while True:
            try:
                if any(session.seed == number for session in buffered.sessions(Filter(state=State.FINISHED))):
                    return 0
                unfinished = buffered.unfinished(PROBLEM, setting)
                session = buffered.resume(unfinished[0]) if unfinished else buffered.open(PROBLEM, setting)
                done = len(store.records(session)) if unfinished else 0
                break
            except StoreError:
                time.sleep(0.1)
        if done < _taken(note):
            return LOST
        with note.open("a") as notes:
            for position in range(done, trials):
                buffered.append(session, position, [timed("packed", (number, position), 1.0)])
                if buffered.missing:
                    time.sleep(_TRIAL_SECONDS)
                    continue
                notes.write(f"{position}\n")
                notes.flush()
        buffered.finish(session, Outcome())
    return 0


def _taken(note: Path) -> int:
    """How many trials of a writer the database has certainly taken."""
    lines = note.read_text().split() if note.exists() else []
    return int(lines[-1]) + 1 if lines else 0


def _count(running: Server, killed: int, cuts: int, lost: int) -> Counts:
    with psycopg.connect(running.url) as connection:
        sessions = connection.execute("SELECT number, seed, state, trials FROM stormdrop_session").fetchall()
        rows = connection.execute(
            "SELECT session, position, config FROM stormdrop_trial ORDER BY session, position"
        ).fetchall()
    seeds = {number: seed for number, seed, _, _ in sessions}
    found: dict[int, list[str]] = {number: [] for number in seeds}
    for number, _, config in rows:
        found[number].append(config)
    wanted = {
        number: [f'"tile":[{seed},{position}]' for position in range(len(found[number]))]
        for number, seed in seeds.items()
    }
    gaps = sum(
        any(part not in config.replace(" ", "") for part, config in zip(wanted[number], found[number], strict=True))
        for number in seeds
    )
    return Counts(
        killed=killed,
        cuts=cuts,
        sessions=len(sessions),
        finished=sum(state == State.FINISHED.value for _, _, state, _ in sessions),
        trials=len(rows),
        counted=sum(trials for _, _, _, trials in sessions),
        distinct=len({(seeds[number], config) for number, _, config in rows}),
        gaps=gaps,
        lost=lost,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        place, writer, count, path, pause = sys.argv[2:]
        sys.exit(write(place, int(writer), int(count), Path(path), float(pause)))
    main()
