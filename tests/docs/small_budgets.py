"""Runs the examples of a page with small budgets.

An example reads as a user would write it, with minutes of tuning. Here a tuning ends after a few candidates, and a
benchmark after a few rounds; everything else is as it stands in the page. Seconds would not do, because a tuning may
spend them all on waiting for the machine if other tests use it.

A page runs in the process of the tests: a process of its own would load TVM for each page, and once more for its
workers. That a program of a user's runs by itself is what tests/docs/test_example_scripts.py and tests/cli say.
"""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path

import pytest

import stormdrop as sd
from stormdrop.cli import run
from stormdrop.tuning.options import DEFAULT_MODEL_SECONDS, TuneOptions

KERNEL_TRIALS = 3
MODEL_TRIALS = 6
PATIENCE = 30.0
ROUNDS = 3
FEWER = {"bench": f"--rounds {ROUNDS}", "compare": "--seeds 1 --trials 3"}
"""Options that are appended to a command: of an option that is given twice the last one counts."""


def small_budget(self: TuneOptions, default: float) -> float | None:
    """In the place of `TuneOptions.budget`: a few candidates, and more than enough seconds."""
    few = MODEL_TRIALS if default == DEFAULT_MODEL_SECONDS else KERNEL_TRIALS
    object.__setattr__(self, "trials", few if self.trials is None else min(self.trials, few))
    return PATIENCE


def run_page(page: Path) -> None:
    """Runs a program in Python, or the lines of a shell, in the folder where it stands and with its own records."""
    bench = sd.bench
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(page.parent)
        patch.syspath_prepend(str(page.parent))
        patch.setenv("XDG_DATA_HOME", str(page.parent / "data"))
        patch.setattr(TuneOptions, "budget", small_budget)
        patch.setattr(sd, "bench", lambda *words, **options: bench(*words, **{"rounds": ROUNDS, **options}))
        if page.suffix == ".py":
            runpy.run_path(str(page), run_name="__main__")
        else:
            _shell(page.read_text().splitlines())


def _shell(lines: list[str]) -> None:
    for line in lines:
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "stormdrop", f"only stormdrop's commands can be run here: {line}"
        code = run([*words[1:], *FEWER.get(words[1], "").split()])
        assert code == 0, f"exit code {code}: {line}"
