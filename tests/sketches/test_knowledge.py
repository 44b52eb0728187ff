"""What sketches say of themselves, so that nobody has to know their classes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stand_ins.cpus import cpu
from stand_ins.faults import Plain
from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.sketches import registry
from stormdrop.sketches.contract import AnySketch, Bounded, Yielding
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.sketches.cpu.tiles.sketch import Tiles
from stormdrop.sketches.cpu.winograd.sketch import Winograd
from stormdrop.sketches.knowledge import multiplies_bfloat16, speedup_bound

TARGET = parse_machine("cpu/x86-64-v4")


@dataclass(frozen=True)
class Mine(Plain):
    """A sketch of somebody else's, which does seven operations at once and is a little inexact."""

    name: str = "mine"
    max_error: float = 1e-3
    superfluous: bool = False

    def speedup_bound(self, workload: Workload, target: Cpu) -> float:
        return 7.0

    def yields(self, workload: Workload, target: Cpu) -> bool:
        return self.superfluous


@pytest.mark.parametrize(
    ("sketches", "dtype", "bound"),
    [
        ([RegisterBlocked()], "float32", 1.0),
        ([RegisterBlocked()], "bfloat16", 4.0),
        ([RegisterBlocked(), Winograd(4)], "float32", 4.0),
        ([RegisterBlocked(), Tiles()], "int8", 64.0),
        ([RegisterBlocked(), Mine()], "float32", 7.0),
    ],
)
def test_the_bound_is_that_of_the_sketch_that_promises_most(
    sketches: list[AnySketch], dtype: str, bound: float
) -> None:
    assert speedup_bound(sketches, operators.dense(64, 64, 64, dtype=dtype), TARGET) == bound


def plugged(monkeypatch: pytest.MonkeyPatch, sketch: AnySketch) -> None:
    monkeypatch.setattr(registry, "_of_plugins", lambda group: [sketch] if group == "cpu_sketches" else [])


def test_a_sketch_of_a_plugin_yields_and_is_held_to_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = operators.matmul(32, 32, 32)

    def names(max_error: float) -> list[str]:
        return [sketch.name for sketch, _ in registry.sketches_for(workload, TARGET, max_error=max_error)]

    assert issubclass(Mine, Bounded) and issubclass(Mine, Yielding)
    plugged(monkeypatch, Mine())
    assert names(1e-2) == ["register_blocked", "mine"] and names(1e-4) == ["register_blocked"]
    plugged(monkeypatch, Mine(superfluous=True))
    assert names(1e-2) == ["register_blocked"]


@pytest.mark.parametrize(
    ("name", "fast"), [("x86-64-v4", False), ("znver5", True), ("sapphirerapids", True), ("x86-64-v3", False)]
)
def test_which_cpus_multiply_bfloat16(name: str, fast: bool) -> None:
    assert multiplies_bfloat16(cpu(f"cpu/{name}")) is fast
