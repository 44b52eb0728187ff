"""Two threads of one process tune, or call one model. Prints a line of JSON.

python two_threads.py tune DATABASE SEED
python two_threads.py model ARTIFACT EXPECTED.npz
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Callable

import numpy as np

import stormdrop as sd


def tune(database: str, seed: int) -> list[str]:
    """Two tunings of different kernels, with stores of their own on one database."""
    faults: list[str] = []

    def one(size: int) -> None:
        from stormdrop.records import open_store

        with open_store(database) as store:
            result = sd.tune(
                sd.operators.matmul(size, 32, 32), search="random", trials=4, seed=seed, store=store, fresh=True
            )
        a, b = np.ones((2, size, 32), "float32")[:, :, :32]
        if result.best is None or result.trials < 1:
            faults.append(f"{size}: nothing was found: {result}")
            return
        c = result.best.kernel(a, b[:32])
        if not np.array_equal(c, np.full((size, 32), 32.0, "float32")):
            faults.append(f"{size}: the kernel is wrong")

    _both(one, [32, 64], faults)
    return faults


def call(artifact: str, expected: str) -> list[str]:
    """Both threads call one model again and again, with inputs of their own."""
    faults: list[str] = []
    model = sd.load(artifact)
    name = model.inputs[0].name
    arrays = np.load(expected)

    def one(seed: int) -> None:
        right = arrays[f"out{seed}"]
        for _ in range(200):
            (output,) = model.run({name: arrays[f"in{seed}"]}).values()
            error = float(np.abs(output - right).max() / np.abs(right).max())
            if not error < 1e-4:
                faults.append(f"the error on seed {seed} is {error:.1e}")
                return

    _both(one, [0, 2], faults)
    return faults


def _both(work: Callable[[int], None], arguments: list[int], faults: list[str]) -> None:
    def guarded(argument: int) -> None:
        try:
            work(argument)
        except BaseException:  # noqa: BLE001  reported by the main thread
            faults.append(traceback.format_exc()[-400:])

    threads = [threading.Thread(target=guarded, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Does what the first argument says."""
    what, first, second = sys.argv[1:]
    print(json.dumps(tune(first, int(second)) if what == "tune" else call(first, second)))


if __name__ == "__main__":
    main()
