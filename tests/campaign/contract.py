"""What a campaign is: many short runs, each of which disturbs the program in one way and then checks what it left.

A campaign is a module with two names:

    RUNS          how many runs the whole campaign has
    runs(rng)     draws its cases, without end; the same generator state gives the same cases

A case is cheap to draw and does its work in `run`. Its result is an `Outcome`, which is one line of the ledger.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class Kind(enum.Enum):
    """What is wrong with a run."""

    LOST = "lost"  # an acknowledged record, a finished trial or an artifact is gone, or was measured again
    WRONG = "wrong"  # a status, a model or a number that is not what it must be
    HUNG = "hung"  # a process ran into the hard limit
    TRACEBACK = "traceback"  # the user saw a traceback or a crash of the interpreter
    STRAY = "stray"  # a process, a lock, a descriptor or a temporary folder is left
    OTHER = "other"  # the exit code, the line on standard error, the database's integrity


@dataclass(frozen=True)
class Finding:
    """One rule that a run broke.

    Args:
        kind: The class of the rule.
        text: What was seen, in one line.
    """

    kind: Kind
    text: str


@dataclass
class Outcome:
    """What became of a case.

    Args:
        fault: The fault in a few words. The same words mean the same fault.
        runs: How many runs the case counts for, for instance the candidates of a session.
        findings: The rules that were broken; none if all is well.
        wins: Wins that were claimed where nothing can win.
        skipped: Why the case could not run here; empty if it ran.
        notes: Further values for the ledger.
    """

    fault: str
    runs: int = 1
    findings: list[Finding] = field(default_factory=list)
    wins: int = 0
    skipped: str = ""
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, kind: Kind, text: str) -> None:
        """Adds a finding."""
        self.findings.append(Finding(kind, " ".join(text.split())[:600]))

    def require(self, holds: bool, kind: Kind, text: str) -> None:
        """Adds a finding unless the rule holds."""
        if not holds:
            self.add(kind, text)


class Case(Protocol):
    """One run."""

    def run(self, folder: Path) -> Outcome:
        """Does the run in a folder that is empty, and that is removed afterwards."""


class Campaign(Protocol):
    """A module of this folder."""

    RUNS: int

    def runs(self, rng: random.Random) -> Iterator[Case]:
        """Draws cases without end."""
