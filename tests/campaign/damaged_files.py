"""Damaged files: ONNX models, space files and records, as `bad_files` damages and reads them, and artifacts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contract import Kind, Outcome
from material import shared
from sandbox import INSIDE, sandbox

RUNS = 5000

_BAD_FILES = Path(__file__).with_name("bad_files.py")
_LIMIT = 900.0  # seconds for the files of a run, of which some take long by purpose


@dataclass(frozen=True)
class Files:
    """Some files of one kind.

    Args:
        kind: What they are.
        seed: Damages them.
        count: How many.
    """

    kind: str
    seed: int
    count: int = 50

    def run(self, folder: Path) -> Outcome:
        outcome, material = Outcome(f"damaged files: {self.kind}", runs=self.count), shared()
        with sandbox(folder, material.machine) as home:
            results = home.folder / "results"
            words: list[str | Path]
            if self.kind == "artifact":
                words = [INSIDE / "damaged_artifacts.py", material.older, results, str(self.seed), str(self.count)]
            else:
                words = [_BAD_FILES, "--out", results, "--kind", self.kind]
                words += ["--seed", str(self.seed), "--count", str(self.count)]
            end = home.start(words, limit=_LIMIT).wait()
            if end.code is None:
                outcome.add(Kind.HUNG, f"the reader ran into the hard limit at {end.errors[-200:]}")
            # It ends with 1 if there are findings, which come one by one below.
            outcome.require(
                end.code in (0, 1, None), Kind.TRACEBACK, f"the reader ended: {end.code} {end.errors[-300:]}"
            )
            home.check_left(outcome)
            file = results / f"{self.kind}-{self.seed}.jsonl"
            lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        for line in lines:
            if line["outcome"] == "finding":
                crash = Kind.HUNG if line["error"] == "hang" else Kind.TRACEBACK
                outcome.add(crash, f"{self.kind} {line['number']} ({line['how']}): {line['error']}: {line['message']}")
        outcome.require(len(lines) == self.count, Kind.LOST, f"{len(lines)} of {self.count} files were read")
        return outcome


def runs(rng: random.Random) -> Iterator[Files]:
    """All kinds in turns. ONNX models are half of them, because they are the largest door."""
    while True:
        for kind in ("onnx", "space", "onnx", "records", "onnx", "artifact"):
            yield Files(kind, rng.randrange(1 << 30))
