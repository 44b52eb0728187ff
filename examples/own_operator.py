"""An operator of your own: `python examples/own_operator.py` (some seconds).

`@operator` makes a definition in TVM's tensor expressions an operator, as those of stormdrop are: its arguments are
checked, it can be tuned, and its kernels are compared with what NumPy computes. This is a gated linear unit: half of
each row times the sigmoid of the other half.
"""

from __future__ import annotations

import numpy as np
from tvm import te

import stormdrop as sd
from stormdrop.operators.declare import Definition, operator


@operator("the first half of each row times the sigmoid of the second", "m=8 n=16")
def gated(m: int, n: int, dtype: str = "float32") -> Definition:
    """y[m, n] = x[m, n] * sigmoid(x[m, n + n])."""
    x = te.placeholder((m, 2 * n), dtype, name="x")
    y = te.compute((m, n), lambda i, j: x[i, j] / (1 + te.exp(-x[i, j + n])), name="gated")
    return Definition([x], y)


def main() -> None:
    result = sd.tune(gated(128, 256), trials=8)
    print(f"{result.best.seconds * 1e6:.1f} us with {result.best.sketch}: {result.best.config}")

    x = np.random.default_rng(0).normal(size=(128, 512)).astype("float32")
    expected = x[:, :256] / (1 + np.exp(-x[:, 256:]))
    np.testing.assert_allclose(result.best.kernel(x), expected, rtol=1e-5, atol=1e-6)
    print("equal to NumPy's result")


if __name__ == "__main__":
    main()
