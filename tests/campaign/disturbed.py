"""A tuning of a model that is disturbed, then resumed, and then found to be whole."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

import oracle
from contract import Kind, Outcome
from material import Material
from sandbox import End, Process, Sandbox, check_end


@dataclass
class Tuning:
    """A tuning in a sandbox, with the checks after each of its runs.

    Args:
        home: Where it runs.
        material: What is tuned.
        outcome: Takes the findings.
        seed: The seed of the search.
        older: Whether an older artifact is there at the beginning.
    """

    home: Sandbox
    material: Material
    outcome: Outcome
    seed: int = 0
    older: bool = False
    kills: int = 0  # runs that ended in the midst of a measurement, and workers that did
    failures: int = 0  # trials that an injected fault may have cost
    _before: Sequence[oracle.Row] = ()

    def __post_init__(self) -> None:
        if self.older:
            shutil.copytree(self.material.older, self.home.artifact)

    def start(self, *words: str | int, **options: object) -> Process:
        """Starts the tuning, or goes on with it."""
        command = self.material.tune(self.home, "--seed", self.seed, "--resume", *words)
        return self.home.stormdrop(*command, **options)

    def check_run(self, end: End, codes: Sequence[int], *, killed: bool = False, since: float = 0.0) -> None:
        """Checks what a run has left, however it ended.

        Args:
            end: How it ended.
            codes: The exit codes that are right.
            killed: Whether it could not tidy up.
            since: A time of the log. What was committed earlier was removed by the fault itself.
        """
        home, outcome = self.home, self.outcome
        check_end(outcome, end, codes)
        home.check_left(outcome, killed=killed or end.code is None)
        oracle.check_integrity(outcome, home.database)
        rows = oracle.trials(home.database)
        oracle.check_acknowledged(outcome, home.log, rows, since)
        if not since:
            oracle.check_prefix(outcome, self._before, rows)
            oracle.check_measured_once(outcome, home.log, self.kills)
        oracle.check_statuses(outcome, rows, self.failures)
        self._before = rows
        # A save is whole or nothing: a model that was there stays, unless a complete one takes its place.
        oracle.check_artifact(outcome, home, self.material.expected, required=self.older)

    def finish(self, since: float = 0.0, **options: object) -> None:
        """Resumes the tuning without a fault, and checks everything. The other options are those of `start`."""
        end = self.start(**options).wait()
        self.check_run(end, [0], since=since)
        self.home.check_descriptors(self.outcome)
        if end.code == 0:
            document = end.document
            stored = len(oracle.trials(self.home.database))
            if not since:
                self.outcome.require(
                    document["trials"] == stored,
                    Kind.LOST,
                    f"the document says {document['trials']} trials, and {stored} are stored",
                )
            self.outcome.require(self.home.artifact.exists(), Kind.LOST, "there is no artifact in the end")
