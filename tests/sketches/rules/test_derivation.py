"""Derivation: which sketches a workload has, how they are called, and that rules of users take part."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass

import pytest
from tvm import te

from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.rules import CPU_RULES, Annotation, Applies, Nest, Rule, State, blocks, derive
from stormdrop.testing.sketches import check_sketch

TARGET = Cpu.detect()


def names(workload: Workload) -> list[str]:
    return [sketch.name for sketch in derive(workload, TARGET)]


def transposition(rows: int, columns: int) -> Workload:
    x = te.placeholder((columns, rows), "float32", name="x")
    y = te.compute((rows, columns), lambda i, j: x[j, i] + 1.0, name="y")
    return Workload.create("transposition", te.create_prim_func([x, y]))


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (
            operators.matmul(64, 64, 64),
            ["rules.cache_write.tile_fuse.pack", "rules.tile.pack", "rules.cache_write.tile_fuse", "rules.tile"],
        ),
        (operators.dense(64, 64, 64, bias=1, act="relu"), ["rules.tile_fuse", "rules.tile"]),
        (operators.conv2d(1, 28, 28, 32, 64, 3, 3, pad=1, bias=1, act="relu"), ["rules.tile_fuse", "rules.tile"]),
        (operators.pool2d(1, 14, 14, 32, 2, 2, stride=2), ["rules"]),
        (operators.reduce((65536,), 0), ["rules.rfactor", "rules.lanes"]),
        (operators.reduce((65536, 64), 1), ["rules"]),
        (operators.softmax(1000, 7), ["rules"]),
        (operators.elementwise((64, 64)), ["rules"]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_workload_has_these_sketches(workload: Workload, expected: list[str]) -> None:
    assert names(workload) == expected


@pytest.mark.compiles
def test_derivation_is_the_same_in_another_process() -> None:
    program = (
        "from stormdrop import operators\nfrom stormdrop.sketches.rules import derive\n"
        "from stormdrop.machine.cpu import Target\nworkload, target = operators.softmax(8, 4096), Target.detect()\n"
        "print(*(sketch.name + sketch.space(workload, target).fingerprint for sketch in derive(workload, target)))"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    workload = operators.softmax(8, 4096)
    spaces = [sketch.space(workload, TARGET) for sketch in derive(workload, TARGET)]
    assert output.split() == [space.name + space.fingerprint for space in spaces if space is not None]


def test_sketches_travel() -> None:
    workload = operators.matmul(16, 16, 16)
    for sketch in derive(workload, TARGET):
        copy = pickle.loads(pickle.dumps(sketch))
        space, other = sketch.space(workload, TARGET), copy.space(workload, TARGET)
        assert space is not None and other is not None and space.fingerprint == other.fingerprint


@dataclass(frozen=True)
class SquareTiles(Rule):
    """Square tiles for a block that writes along one axis and reads along another."""

    name = "squares"
    most: int = 16

    def applies(self, state: State, block: str) -> Applies:
        store, loads = blocks.store_of(state.schedule, block), blocks.reads(state.schedule, block)
        transposed = [load for load in loads if blocks.same(load.indices, store.indices[::-1])]
        return Applies.MAY if transposed and len(store.indices) == 2 else Applies.NO

    def apply(self, state: State, block: str) -> None:
        tiles = []
        for loop in blocks.own_loops(state.schedule, block):
            size = blocks.largest_divisor(loop.extent, self.most)
            factors = state.knobs.tile(f"{block}_{loop.name}", loop.extent, 2, default=(loop.extent // size, size))
            tiles.append(state.schedule.split(loop.loop, list(factors)))
        outer, inner = [tile[0] for tile in tiles], [tile[1] for tile in tiles]
        state.schedule.reorder(*outer, *inner)
        state.nests[block] = Nest(outer, [outer[-1]])


@dataclass(frozen=True)
class Noted(Annotation):
    """An annotation that the derivation may leave out."""

    name = "noted"

    def applies(self, state: State, block: str) -> Applies:
        return Applies.MAY

    def apply(self, state: State, block: str) -> None:
        state.schedule.annotate(state.schedule.get_sblock(block), "noted", 1)


@pytest.mark.compiles
def test_a_rule_of_the_users_own_takes_part() -> None:
    workload = transposition(48, 32)
    assert names(workload) == ["rules"]
    sketches = derive(workload, TARGET, rules=(SquareTiles(), *CPU_RULES))
    assert [sketch.name for sketch in sketches] == ["rules.squares", "rules"]
    space = sketches[0].space(workload, TARGET)
    assert space is not None and space.config(space.origin)["s0_i0"] == (3, 16)
    for sketch in sketches:
        check_sketch(sketch, workload, TARGET)


def test_what_a_rules_parameters_change_is_part_of_the_fingerprint() -> None:
    workload = transposition(48, 32)
    first, second = (
        derive(workload, TARGET, rules=(SquareTiles(most), *CPU_RULES))[0].space(workload, TARGET) for most in (16, 8)
    )
    assert first is not None and second is not None
    assert first.fingerprint != second.fingerprint


def test_annotations_that_may_be_left_out_are_told_in_the_name() -> None:
    sketches = derive(operators.elementwise((8, 8)), TARGET, rules=(*CPU_RULES, Noted()))
    assert [sketch.name for sketch in sketches] == ["rules.noted", "rules"]


def test_names_tell_blocks_apart_where_rules_do_not() -> None:
    sketches = derive(operators.pool2d(1, 4, 4, 8, 3, 3, pad=1), TARGET, rules=(*CPU_RULES, Noted()))
    assert [sketch.name for sketch in sketches] == [
        "rules.noted_s1.noted_s0",
        "rules.noted_s0",
        "rules.noted_s1",
        "rules",
    ]
