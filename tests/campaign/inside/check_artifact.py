"""Loads a saved model in a process of its own, which has no kernel yet, and compares it with what was expected."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import stormdrop as sd

WORST = 1e-4
"""The largest error that is right: the largest difference over the largest value."""


def serve(connection: Connection, folder: str, expected: str, digest: str) -> None:
    """Compares all seeds, and sends what is wrong, or "".

    Args:
        connection: The pipe to the parent.
        folder: The artifact.
        expected: A file with the inputs and outputs of some seeds.
        digest: The digest that the artifact must have; "" if that is not known.
    """
    try:
        connection.send(_difference(sd.load(folder, digest=digest or None), expected))
    except sd.StormdropError as error:
        connection.send(f"{type(error).__name__}: {error}")


def _difference(model: Any, expected: str) -> str:
    name = model.inputs[0].name
    with np.load(expected) as arrays:
        seeds = sorted(key.removeprefix("in") for key in arrays.files if key.startswith("in"))
        for seed in seeds:
            (output,) = model.run({name: arrays[f"in{seed}"]}).values()
            right = arrays[f"out{seed}"]
            error = float(np.abs(output - right).max() / np.abs(right).max())
            if not error < WORST:
                return f"the error on seed {seed} is {error:.1e}"
    return ""
