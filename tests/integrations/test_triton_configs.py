"""The configurations of Triton's own `autotune`."""

from __future__ import annotations

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
