"""Fingerprints: they follow what is scheduled, not how the source reads."""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stand_ins.cpus import cpu
from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.contract import AnySketch, Variant
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.sketches.cpu.streaming import Streaming
from stormdrop.sketches.cpu.winograd.sketch import Winograd
from stormdrop.sketches.fingerprint import probes, schedule_digest, space_of
from stormdrop.sketches.registry import cpu_sketches
from stormdrop.space import Categorical, Ordinal, Space

TARGET = cpu("cpu/x86-64-v4")
DENSE = operators.dense(16, 48, 32, bias=1)

SOURCE = """
import stormdrop as sd

STEPS = [1, 2, 4]

@sd.template
def mine(schedule, knobs):
    i, j, k = schedule.get_loops(knobs.reduction())
    schedule.unroll(schedule.split(j, [None, knobs.ordinal("unroll", STEPS)])[1])
    schedule.parallel(i)
"""

SAME = """
import math, os

import stormdrop as sd

FACTORS = [2**power for power in range(3)]

def unrolled(schedule, loop, knobs):
    \"\"\"Unrolls the innermost part of a loop.\"\"\"
    outer, inner = schedule.split(loop, [None, knobs.ordinal("unroll", FACTORS)])
    schedule.unroll(inner)

@sd.template
def mine(plan, decisions):
    \"\"\"Another docstring, other names, another import.\"\"\"
    rows, columns, _ = plan.get_loops(decisions.reduction())
    unrolled(plan, columns, decisions)
    plan.parallel(rows)
"""


def fingerprint(sketch: AnySketch, workload: Workload = DENSE) -> str:
    space = space_of(sketch, workload, TARGET)
    assert space is not None
    return space.fingerprint


def template_of(folder: Path, module: str, source: str, monkeypatch: pytest.MonkeyPatch) -> AnySketch:
    (folder / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    sketch: AnySketch = importlib.import_module(module).mine
    return sketch


def test_how_the_source_reads_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = template_of(tmp_path, "fingerprint_first", SOURCE, monkeypatch)
    moved = template_of(tmp_path, "fingerprint_moved", SAME, monkeypatch)
    assert fingerprint(first) == fingerprint(moved)


@pytest.mark.parametrize(
    ("change", "to"),
    [
        ("[1, 2, 4]", "[1, 2, 8]"),  # the domain of a knob
        ("schedule.parallel(i)", "schedule.unroll(i)"),  # the schedule
        ('"unroll"', '"steps"'),  # the name of a knob: a recorded configuration does not fit any more
    ],
)
def test_what_is_scheduled_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, to: str) -> None:
    name = f"fingerprint_{abs(hash((change, to)))}"
    first = template_of(tmp_path, f"{name}_a", SOURCE, monkeypatch)
    changed = template_of(tmp_path, f"{name}_b", SOURCE.replace(change, to), monkeypatch)
    assert fingerprint(first) != fingerprint(changed)


@dataclasses.dataclass(frozen=True)
class Annotated:
    """Register blocking whose functions hold one more attribute."""

    name: str = "register_blocked"
    max_error: float = 0.0

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        return RegisterBlocked().space(workload, target)

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        variant = RegisterBlocked().apply(workload, target, config)
        return Variant(variant.main.with_attr("changed", 1), variant.transforms)


def test_a_changed_schedule_invalidates_the_records_of_every_version() -> None:
    ours, changed = space_of(RegisterBlocked(), DENSE, TARGET), space_of(Annotated(), DENSE, TARGET)
    assert ours is not None and changed is not None
    assert ours.fingerprint != changed.fingerprint
    # As version 0.1.0 described it.
    recorded = Space(ours.name, ours.knobs, ours.constraints, ours.config(ours.origin), revision="4cee9b93a5f2dd87")
    assert ours.recognises(recorded.fingerprint)
    assert not changed.recognises(recorded.fingerprint)


def test_a_tolerance_is_part_of_it() -> None:
    convolution = operators.conv2d(1, 16, 16, 16, 16, 3, 3, pad=1)
    assert fingerprint(Winograd(2, 1e-4), convolution) != fingerprint(Winograd(2, 1e-3), convolution)


@pytest.mark.compiles
def test_it_is_the_same_in_another_process() -> None:
    program = (
        "from stormdrop import operators\n"
        "from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked\n"
        "from stormdrop.sketches.fingerprint import space_of\nfrom stormdrop.machine.cpu import Target\n"
        "target = Target.parse('cpu/x86-64-v4')\n"
        "print(space_of(RegisterBlocked(), operators.dense(16, 48, 32, bias=1), target).fingerprint)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.strip() == fingerprint(RegisterBlocked())


def test_probes_are_the_origin_and_points_that_differ_in_much() -> None:
    knobs = [Ordinal("a", [1, 2, 4]), Ordinal("b", [1, 2, 4]), Categorical("c", ["x", "y"])]
    space = Space("s", knobs)
    points = probes(space)
    assert points[0] == space.origin
    assert len(set(points)) == 3
    assert all(len({point[at] for point in points}) == 3 for at in (0, 1))
    assert {point[2] for point in points} == {0, 1}
    assert probes(Space("t", [Ordinal("a", [1])])) == [(0,)]


def test_a_point_that_does_not_schedule_has_a_digest_too() -> None:
    class Refusing(Streaming):
        def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
            raise ValueError("no")

    workload = operators.softmax(8, 16)
    space = Streaming().space(workload, TARGET)
    assert space is not None
    assert schedule_digest(Refusing(), space, workload, TARGET) != schedule_digest(Streaming(), space, workload, TARGET)


@pytest.mark.parametrize("sketch", cpu_sketches(), ids=lambda sketch: sketch.name)
def test_a_space_that_goes_to_another_process_keeps_it(sketch: AnySketch) -> None:
    samples = [
        operators.conv2d(1, 16, 16, 16, 16, 3, 3, pad=1),
        operators.attention(2, 16, 16, 8, 8),
        operators.weight_only_dense(1, 64, 64),
        operators.conv2d(1, 16, 16, 16, 16, 3, 3, pad=1, dtype="uint8"),
        operators.dense(16, 16, 32, dtype="bfloat16"),
    ]
    features = ("amx-bf16", "amx-tile", "avx2")  # no dot products of bytes, which some sketches do without
    targets = [dataclasses.replace(cpu("cpu/x86-64-v3"), features=(*features, *more)) for more in ((), ("avxvnni",))]
    tried = ((workload, target) for target in targets for workload in samples)
    space = next(space for workload, target in tried if (space := space_of(sketch, workload, target)) is not None)
    bare = Space(space.name, space.knobs, (), revision=space.revision)
    assert pickle.loads(pickle.dumps(bare)).fingerprint == bare.fingerprint
