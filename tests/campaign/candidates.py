"""Candidates that fail in every known way, in sessions of good and bad ones. Their statuses equal what was injected."""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import oracle
from contract import Kind, Outcome
from material import shared
from sandbox import INSIDE, check_end, sandbox

RUNS = 1200

_LIMIT = 400.0  # seconds of a session: each hang costs six
_PROCESSES = 4096  # for a fork bomb, if the system counts them


@dataclass(frozen=True)
class Session:
    """A session of candidates.

    Args:
        seed: Draws their faults.
        count: How many there are.
        kinds: The faults to draw from; all if it is empty.
    """

    seed: int
    count: int = 24
    kinds: tuple[str, ...] = ()

    def run(self, folder: Path) -> Outcome:
        outcome = Outcome("a session of faults", runs=self.count)
        with sandbox(folder, shared().machine) as home:
            program: list[str | Path]
            program = [INSIDE / "faulty_candidates.py", home.database, str(self.seed), str(self.count), *self.kinds]
            end = home.start(program, limit=_LIMIT, before=_bound_processes).wait()
            check_end(outcome, end, [0])
            home.check_left(outcome)
            oracle.check_integrity(outcome, home.database)
            lines = [json.loads(line) for line in end.output.splitlines() if line.startswith(("[", "{"))]
        measured = [line for line in lines if isinstance(line, list)]
        for kind, wanted, status, error in measured:
            outcome.require(status == wanted, Kind.WRONG, f"{kind} is {status}, not {wanted}: {error}")
            outcome.require(
                (status == "ok") == (error == ""), Kind.OTHER, f"{kind}: error {error!r} of status {status}"
            )
            outcome.require("\n" not in error, Kind.OTHER, f"{kind}: an error of several lines: {error!r}")
        if end.code == 0:
            outcome.require(len(measured) == self.count, Kind.LOST, f"{len(measured)} of {self.count} were measured")
            winner = lines[-1]["winner"]
            outcome.require(winner == "none", Kind.WRONG, f"a candidate with the fault {winner} has won")
        outcome.notes["kinds"] = sorted({line[0] for line in measured})
        return outcome


def _bound_processes() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    most = _PROCESSES if hard == resource.RLIM_INFINITY else min(_PROCESSES, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, hard))


def runs(rng: random.Random) -> Iterator[Session]:
    """Sessions of two dozen candidates."""
    while True:
        yield Session(rng.randrange(1 << 30))
