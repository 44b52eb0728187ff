"""Options that are out of their range are named as an argument of a function, and as one of the command line."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from stormdrop.errors import InputError, OptionError
from stormdrop.tuning.options import TuneOptions, whole_number


@pytest.mark.parametrize(
    ("given", "says", "on_command_line"),
    [
        ({"trials": 0}, "trials=0 must be 1 or more", "--trials 0: must be 1 or more"),
        ({"seed": -1}, "seed=-1 must be 0 or more", "--seed -1: must be 0 or more"),
        ({"seed": "{x}"}, "seed='{x}' must be a whole number", "--seed {x}: must be a whole number"),
        (
            {"max_error": 1.5},
            "max_error=1.5 must be from 0 to less than 1",
            "--max-error 1.5: must be from 0 to less than 1",
        ),
        (
            {"resume": True, "fresh": True},
            "resume and fresh exclude each other: continue a session, or tune as if nothing were known",
            "--resume and --fresh exclude each other: continue a session, or tune as if nothing were known",
        ),
    ],
)
def test_one_check_has_two_messages(given: dict[str, Any], says: str, on_command_line: str) -> None:
    with pytest.raises(OptionError) as raised:
        TuneOptions(**given)
    assert isinstance(raised.value, InputError)
    for error in (raised.value, pickle.loads(pickle.dumps(raised.value))):  # as one that a process sends to another
        assert (str(error), error.on_command_line()) == (says, on_command_line)


def test_a_whole_number_is_one_of_python() -> None:
    assert type(whole_number("seed", np.int64(3), 0)) is int
