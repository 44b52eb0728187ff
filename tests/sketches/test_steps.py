"""The steps of schedules, as people read them."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

import stormdrop as sd
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.sketches.registry import sketches_for
from stormdrop.sketches.steps import steps

CPU = sd.parse_machine("cpu/sapphirerapids")


def test_a_dense_layer_by_its_tiles() -> None:
    assert isinstance(CPU, Cpu)
    workload = sd.operators.dense(96, 128, 256, bias=1, act="relu")
    config = {"rows": 24, "columns": 16, "block": 2, "unroll": 4, "order": "rows"}
    lines = steps(RegisterBlocked().apply(workload, CPU, config)).splitlines()
    assert lines[0] == "pack      input 1 once, ahead of time, into 8x256x16"
    assert "split     y0[0] 96 = 4 parallel x 24 unrolled" in lines
    assert "split     y0[1] 128 = 8 x 16 vectorised" in lines
    loops = lines[lines.index("loops") + 1 :]
    assert [re.match(r" *\w+ \d+", loop)[0] for loop in loops[:2]] == ["  parallel 4", "    for 8"]  # type: ignore[index]
    assert any("24x16 float32 in registers or on the stack" in loop for loop in loops)
    assert sum(loop.strip().startswith("unrolled 24") for loop in loops) == 3
    assert sum("+=" in loop for loop in loops) == 1  # the sums, and nothing else


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("conv2d", {"n": 1, "h": 14, "w": 14, "ci": 16, "co": 32, "kh": 3, "kw": 3, "pad": 1}),
        ("softmax", {"m": 16, "n": 64}),
        ("pool2d", {"n": 1, "h": 8, "w": 8, "c": 16, "kh": 2, "kw": 2, "stride": 2}),
        ("attention", {"b": 2, "m": 32, "n": 32, "k": 32, "v": 32}),
        ("reduce", {"shape": "16x64", "axis": 1}),
    ],
)
def test_every_sketch_has_steps(operator: str, arguments: dict[str, object]) -> None:
    workload = sd.operators.create(operator, {name: str(value) for name, value in arguments.items()})
    for sketch, space in sketches_for(workload, CPU):
        lines = steps(sketch.apply(workload, CPU, space.config(space.origin))).splitlines()
        loops = lines[lines.index("loops") + 1 :]
        assert loops and all(re.match(r"  +\S", loop) for loop in loops), space.name
        assert any("=" in loop for loop in loops), space.name
        assert len(loops) <= 401


def test_threads_of_a_gpu() -> None:
    workload, gpu = sd.operators.matmul(128, 128, 64), sd.parse_machine("cuda/a100")
    sketch, space = sketches_for(workload, gpu)[0]
    text = steps(sketch.apply(workload, gpu, space.config(space.origin)))
    assert "on blockIdx.x" in text and "on threadIdx.x" in text and "shared" in text


def test_instructions_by_their_names_and_equal_lines_once() -> None:
    workload = sd.operators.matmul(256, 256, 256)
    for sketch, space in sketches_for(workload, CPU):
        lines = steps(sketch.apply(workload, CPU, space.config(space.origin))).splitlines()
        assert all(one != other for one, other in pairwise(lines)), space.name
        if space.name.startswith("tiles"):
            assert any("calls llvm.x86.tdpbf16ps" in line for line in lines), lines
            break
    else:
        pytest.fail("no sketch has tiles")
