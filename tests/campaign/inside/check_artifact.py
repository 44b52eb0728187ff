"""Loads a saved model in a fresh process and compares it with what was expected: exits with 0 if it is right.

python check_artifact.py ARTIFACT EXPECTED.npz [DIGEST]
"""

from __future__ import annotations

import sys

import numpy as np

import stormdrop as sd

WORST = 1e-4
"""The largest error that is right: the largest difference over the largest value."""


def main() -> None:
    """Compares all seeds."""
    folder, expected, *digest = sys.argv[1:]
    model = sd.load(folder, digest=digest[0] or None) if any(digest) else sd.load(folder)
    name = model.inputs[0].name
    with np.load(expected) as arrays:
        seeds = sorted(key.removeprefix("in") for key in arrays.files if key.startswith("in"))
        for seed in seeds:
            (output,) = model.run({name: arrays[f"in{seed}"]}).values()
            right = arrays[f"out{seed}"]
            error = float(np.abs(output - right).max() / np.abs(right).max())
            if not error < WORST:
                sys.exit(f"the error on seed {seed} is {error:.1e}")


if __name__ == "__main__":
    main()
