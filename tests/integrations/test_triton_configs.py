"""The configurations of Triton's own `autotune`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

import stormdrop as sd  # noqa: E402
from stormdrop.errors import InputError  # noqa: E402
from stormdrop.integrations.triton_configs import configs_of, untuned  # noqa: E402


def configs() -> list[object]:
    return [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 128) for warps in (2, 4)]


def test_configurations_become_what_autotune_takes() -> None:
    found = configs_of(configs())
    assert found[0] == {"BLOCK": 64, "num_warps": 2, "num_stages": 3}
    tried = []

    @sd.autotune(found, trials=9)
    def launch(n: int, **config: int) -> None:
        tried.append((config["BLOCK"], config["num_warps"], config["num_stages"]))

    launch(7)
    assert set(tried) == {(64, 2, 3), (64, 4, 3), (128, 2, 3), (128, 4, 3)}


def test_a_kernel_with_autotune_is_read_and_unwrapped() -> None:
    def kernel(x, n, BLOCK):  # type: ignore[no-untyped-def]
        pass

    inner = triton.JITFunction(kernel)
    tuned = triton.runtime.Autotuner(inner, inner.arg_names, configs(), ["n"], None, None)
    assert configs_of(tuned) == configs_of(configs())
    assert untuned(tuned) is inner
    with pytest.raises(InputError, match=r"untuned takes a kernel with triton.autotune, not triton\.runtime\.jit"):
        untuned(inner)


def test_what_cannot_be_read_is_one_line() -> None:
    with pytest.raises(InputError, match=r"takes a kernel with triton\.autotune or configurations, not builtins.int"):
        configs_of(3)
    with pytest.raises(InputError, match="a configuration with a pre_hook is not supported"):
        configs_of([triton.Config({"BLOCK": 64}, pre_hook=print)])
    with pytest.raises(InputError, match="'SPLIT' is set in some configurations only"):
        configs_of([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 64, "SPLIT": 2})])


_PARTIAL = """
import torch, triton
import triton.language as tl
import stormdrop as sd

@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, at < n, 0.0), at < n)

def reference(x, y):
    torch.mul(x, 2, out=y)

@sd.autotune({"BLOCK": [8, 16, 32]}, trials=3, search="grid", check=reference)
def launch(x, y, BLOCK=8):
    scale[(len(x) // BLOCK,)](x, y, len(x), BLOCK=BLOCK)

launch.config(torch.ones(24), torch.full((24,), 2.0))
(result,) = launch.results.values()
print(result.best.config, result.failed)
"""


def test_a_grid_without_the_remainder_never_wins(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    program = tmp_path / "partial.py"
    program.write_text(_PARTIAL)
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.stdout == "{'BLOCK': 8} 2\n", done.stderr
