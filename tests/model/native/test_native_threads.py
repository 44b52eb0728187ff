"""Many threads that call a native model at once, with and without what finds faults of memory and of threads."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import native_models
from native_models import chain, kernels_object, write_model
from stormdrop.machine.threads import usable_cores
from stormdrop.runtime import load

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "models"))

from _native_driver import SANITIZER_ENVIRONMENT, SANITIZERS, build_driver, drive, sanitizer_flags

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(native_models.compiler() is None, reason="there is no C compiler"),
]

SETS = 50


def model_and_cases(folder: Path, flags: Sequence[str] = ()) -> tuple[Path, Path]:
    """A model of four sizes, y = 2 (2 x + c), and a file of inputs with the right outputs."""
    constants = np.arange(4 * 16, dtype=np.float32)
    program = chain(("twice", "add", "copy", "spacious", "twice"), rows=(1, 2, 3, 4), constant=True)
    model = write_model(folder / "m", program, [kernels_object(folder, flags)], constants, flags=flags)
    with (folder / "cases").open("wb") as file:
        for seed, rows in itertools.product(range(SETS), (1, 2, 3, 4)):
            x = np.arange(rows * 16, dtype=np.float32) + np.float32(131 * seed)
            file.write(x.tobytes() + (2 * (2 * x + constants[: rows * 16])).tobytes())
    return model, folder / "cases"


def test_eight_threads_get_the_right_values(tmp_path: Path) -> None:
    done = drive([build_driver(tmp_path)], *model_and_cases(tmp_path), "calls", 8, 100_000)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_wrong_values_and_errors_are_seen(tmp_path: Path) -> None:
    driver, (model, cases) = build_driver(tmp_path), model_and_cases(tmp_path)
    data = bytearray(cases.read_bytes())
    data[-1] ^= 1  # the last case of the largest size
    cases.write_bytes(data)
    done = drive([driver], model, cases, "calls", 8, 8 * SETS)
    assert done.returncode == 1 and '"wrong": 2,' in done.stdout
    (model / "weights.bin").write_bytes(b"evil")
    done = drive([driver], model, cases, "loads", 1, 1)
    assert done.returncode == 1 and done.stderr.endswith("is damaged: it has 4 bytes, not 256\n")


def test_calls_together_have_no_more_threads_than_there_are_cores(tmp_path: Path) -> None:
    model = load(write_model(tmp_path / "m", chain(["crowded"]), [kernels_object(tmp_path)]))
    most: list[float] = []

    def call() -> None:
        most.extend(model(np.zeros((1, 16), np.float32))[0, 0] for _ in range(200))

    threads = [threading.Thread(target=call) for _ in range(2 * usable_cores() + 3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(most) == 200 * len(threads), "no call waits for ever"
    assert 1 <= max(most) <= usable_cores()


@pytest.mark.parametrize("what", ["calls", "loads"])
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_sanitizers_find_nothing(tmp_path: Path, sanitizer: str, what: str) -> None:
    flags = sanitizer_flags(tmp_path, sanitizer)
    if flags is None:
        pytest.skip(f"this compiler has no sanitizer of {sanitizer}")
    driver, (model, cases) = build_driver(tmp_path, flags), model_and_cases(tmp_path, flags)
    done = drive([driver], model, cases, what, 8, {"calls": 6000, "loads": 100}[what], **SANITIZER_ENVIRONMENT)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
