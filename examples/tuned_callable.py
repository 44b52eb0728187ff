"""A function that tunes itself: `python examples/tuned_callable.py` (some seconds).

`sd.autotune` decorates a function with a parameter that changes how fast it is, and nothing else. The first call with
arguments of a kind tries values and keeps the fastest; later calls use it. `sd.minimize` searches in the same way for
anything that returns seconds: c_flags.py tunes a compiler's flags with it.
"""

from __future__ import annotations

import numpy as np

import stormdrop as sd


@sd.autotune({"block": [2**power for power in range(8, 18)]}, trials=8)
def smooth(x: np.ndarray, block: int = 1 << 17) -> np.ndarray:
    """The square root of 1 + x^2, a block at a time, so that what is between lies in a cache."""
    y = np.empty_like(x)
    for first in range(0, len(x), block):
        part = x[first : first + block]
        y[first : first + block] = np.sqrt(1 + part * part)
    return y


def main() -> None:
    x = np.linspace(-1, 1, 1 << 18, dtype="float32")
    np.testing.assert_allclose(smooth(x), np.sqrt(1 + x * x), rtol=1e-6)  # this call tunes
    smooth(x[::-1].copy())  # the same shape and type: known
    (result,) = smooth.results.values()
    best = result.best
    print(f"{result.trials} trials, the fastest: {best.config}, {best.seconds * 1e6:.0f} us")
    print(f"{best.speedup[0]:.2f} times as fast as the default" if best.speedup else "no faster than the default")


if __name__ == "__main__":
    main()
