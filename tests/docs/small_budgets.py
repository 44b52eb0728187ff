"""Runs the examples of a page with small budgets: `python small_budgets.py page.py`, or `... page.sh`.

An example reads as a user would write it, with minutes of tuning. Here a tuning ends after a few candidates, and a
benchmark after a few rounds; everything else is as it stands in the page. Seconds would not do, because a tuning may
spend them all on waiting for the machine if other tests use it.
"""

from __future__ import annotations

import runpy
import shlex
import sys
from pathlib import Path

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


def _few_rounds(*words: object, **options: object) -> object:
    return _bench(*words, **{"rounds": ROUNDS, **options})


def shell(lines: list[str]) -> None:
    """Runs the commands, one after the other, in this process."""
    for line in lines:
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "stormdrop", f"only stormdrop's commands can be run here: {line}"
        code = run([*words[1:], *FEWER.get(words[1], "").split()])
        assert code == 0, f"exit code {code}: {line}"


if __name__ == "__main__":
    TuneOptions.budget = small_budget  # type: ignore[method-assign]
    _bench, sd.bench = sd.bench, _few_rounds
    page = Path(sys.argv[1])
    if page.suffix == ".py":
        runpy.run_path(str(page), run_name="__main__")
    else:
        shell(page.read_text().splitlines())
