"""Constants that are fetched ahead: for which kernels, and that every line of the next panel is fetched."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from tvm import tirx
from tvm.ir.prim.expr import IntImm
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx import AttrStmt, BufferStore, Evaluate, For, ForKind, IfThenElse, SeqStmt

from stand_ins.cpus import cpu
from stormdrop import operators
from stormdrop.ir.expressions import children, loads_in, raveled, substitute
from stormdrop.ir.stages import intermediate, shape_of, variable
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.contract import AnySketch
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.sketches.cpu.prefetch import PREFETCH, fetch_statements
from stormdrop.sketches.cpu.winograd.sketch import Winograd
from stormdrop.space import Space
from stormdrop.testing.sketches import check_points
from stormdrop.trial import Point

LINE = 16  # float32 numbers


def small(target: Cpu) -> Cpu:
    """A machine with a second cache that holds none of the weights of these tests, which have several panels there."""
    return replace(target, l2=1024, lanes=min(target.lanes, 8))


HERE, NAMED = small(Cpu.detect()), small(replace(cpu("cpu/x86-64-v3"), features=("avx2",)))
"""This machine, which runs kernels, and one of which spaces and schedules are known."""


def has_knob(sketch: AnySketch, workload: Workload, target: Cpu = NAMED) -> bool:
    space = sketch.space(workload, target)
    assert space is not None
    return PREFETCH in {knob.name for knob in space.knobs}


def test_large_constants_can_be_fetched_ahead() -> None:
    convolution = operators.conv2d(1, 8, 8, 16, 32, 3, 3, pad=1)
    assert has_knob(RegisterBlocked(), operators.dense(8, 32, 64))
    assert has_knob(RegisterBlocked(), convolution) and has_knob(Winograd(2), convolution)
    assert not has_knob(RegisterBlocked(), operators.dense(8, 32, 64), replace(NAMED, l2=1 << 17))
    assert not has_knob(RegisterBlocked(), operators.dense(8, 32, 64), replace(NAMED, l2=0)), "nothing is known of it"
    assert not has_knob(RegisterBlocked(), operators.matmul(8, 32, 64)), "no constant: it was just written"
    assert not has_knob(RegisterBlocked(), operators.depthwise_conv2d(1, 13, 13, 8, 5, 5, layout="NCHW"))


@pytest.mark.parametrize(
    ("elements", "steps"), [(512, 64), (512, 32), (512, 31), (512, 7), (512, 1), (24, 1000), (24, 5), (100, 3)]
)
def test_all_steps_together_fetch_each_line_of_a_panel(elements: int, steps: int) -> None:
    panel, step = intermediate("panel", [elements], "float32"), variable("step")
    statements = fetch_statements(lambda position: panel[position], elements, steps, step)
    lines = set()
    for number in range(steps):
        for statement in statements:
            (load,) = loads_in(statement.value)
            (index,) = load.indices
            lines.add(int(Analyzer().simplify(substitute(index, {step: IntImm("int32", number)}))) // 16)
    needed = -(-elements // 16)
    assert set(range(needed)) <= lines
    assert max(lines) < 2 * needed + len(statements), "little else is fetched"


MADE: dict[str, Callable[[], Workload]] = {
    "dense": lambda: operators.dense(49, 40, 96, bias=1, act="relu"),
    "window": lambda: operators.conv2d(1, 9, 9, 24, 40, 3, 3, stride=2, pad=1),
    "groups": lambda: operators.conv2d(2, 7, 7, 32, 48, 3, 3, pad=1, groups=2),
    "pixels": lambda: operators.conv2d(1, 7, 7, 96, 40, 1, 1),
    "bytes": lambda: operators.dense(5, 48, 96, dtype="uint8"),
    "codes": lambda: operators.weight_only_dense(m=3, n=48, k=96, bits=8, group=32, zero_points=0),
}


@pytest.mark.any_cpu
@pytest.mark.parametrize("order", ["columns", "rows", "mixed"])
@pytest.mark.parametrize(("name", "steps"), [("dense", 96), ("window", 9 * 24), ("groups", 9 * 16)])
def test_the_next_panel_is_fetched_while_one_is_read(name: str, steps: int, order: str) -> None:
    check_fetches(RegisterBlocked(), MADE[name](), {"order": order}, "packed", steps)


@pytest.mark.any_cpu
@pytest.mark.parametrize("order", ["fused", "tiles", "columns"])
def test_the_next_weights_are_fetched_by_winograd(order: str) -> None:
    check_fetches(Winograd(2), operators.conv2d(1, 6, 6, 16, 24, 3, 3, pad=1), {"order": order}, "U", 16)


def check_fetches(sketch: Any, workload: Workload, fixed: Mapping[str, Any], operand: str, steps: int) -> None:
    """Walks through the loops of a schedule, and checks that each line of panel p + 1 is fetched while p is read."""
    space, (point,) = some_points(sketch, workload, NAMED, fixed, 1)
    config: Mapping[str, Any] = space.config(point)
    main, size = sketch.apply(workload, NAMED, config).main, steps * config["columns"]
    buffer = next(parameter for parameter in main.params if parameter.name == operand)
    present, fetched, checked = -1, set[int](), 0
    begun = set[int]()  # fetched since the last read: at the beginning of the step to which the next read belongs
    for is_fetch, address in accesses(main.body, buffer)({}):
        if is_fetch:
            begun.add(address // LINE)
            continue
        if (panel := address // size) != present:
            if panel == present + 1 > 0:
                assert fetched >= set(range(panel * size // LINE + 1, (panel + 1) * size // LINE)), f"panel {panel}"
                checked += 1
            present, fetched = panel, set()
        fetched |= begun
        begun = set()
    assert checked >= 2, "panels follow each other"


At = dict[Any, int]
"""The value of each variable at a point of the walk."""


def accesses(node: Any, buffer: Any) -> Callable[[At], Iterator[tuple[bool, int]]]:
    """What a statement reads of a buffer, or fetches (True), in its order: positions in the flat buffer.

    Of loops over lanes and of unrolled loops only the first iteration runs. Each statement becomes a Python function
    once, because it runs thousands of times.
    """
    if isinstance(node, SeqStmt):
        parts = [
            (number(each.value), each.var, accesses(each, buffer))
            if isinstance(each, tirx.Bind)
            else (None, None, accesses(each, buffer))
            for each in node.seq
        ]

        def sequence(at: At) -> Iterator[tuple[bool, int]]:
            at = dict(at)
            for bound, variable, statement in parts:
                if bound is not None:
                    at[variable] = bound(at)
                yield from statement(at)

        return sequence
    if isinstance(node, For):
        serial = int(node.kind) in (int(ForKind.SERIAL), int(ForKind.PARALLEL))
        body, counter, extent = accesses(node.body, buffer), node.loop_var, int(node.extent) if serial else 1
        return lambda at: chain.from_iterable(body({**at, counter: index}) for index in range(extent))
    if isinstance(node, SBlockRealize):
        body = accesses(node.block.body, buffer)
        axes = [(axis.var, number(value)) for axis, value in zip(node.block.iter_vars, node.iter_values, strict=True)]
        return lambda at: body({**at, **{axis: value(at) for axis, value in axes}})
    if isinstance(node, AttrStmt):
        return accesses(node.body, buffer)
    if isinstance(node, IfThenElse):
        return accesses(node.then_case, buffer)
    if isinstance(node, Evaluate | BufferStore):
        is_fetch, shape = isinstance(node, Evaluate), shape_of(buffer)
        positions = [
            number(raveled(load.indices, shape)) for load in loads_in(node.value) if load.source.same_as(buffer)
        ]
        return lambda at: ((is_fetch, position(at)) for position in positions)
    return lambda at: iter(())


_OPERATIONS: dict[str, Callable[..., int]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Min": min,
    "Max": max,
    "LT": operator.lt,
    "LE": operator.le,
    "EQ": operator.eq,
    "And": lambda x, y: x and y,
    "Select": lambda condition, x, y: x if condition else y,
    "Cast": int,
}


def number(value: Any) -> Callable[[At], int]:
    """A function that computes an expression of integers."""
    if isinstance(value, IntImm):
        known = int(value)
        return lambda at: known
    if isinstance(value, tirx.Var):
        return lambda at: at[value]
    operation, operands = _OPERATIONS[type(value).__name__], [number(operand) for operand in children(value)]
    return lambda at: operation(*(operand(at) for operand in operands))


@pytest.mark.compiles
@pytest.mark.parametrize("order", ["columns", "rows", "mixed"])
@pytest.mark.parametrize("name", MADE)
def test_results_are_right(name: str, order: str) -> None:
    check_some(RegisterBlocked(), MADE[name](), {"order": order})


@pytest.mark.compiles
@pytest.mark.parametrize("order", ["fused", "tiles", "columns"])
@pytest.mark.parametrize("m", [2, 4])
def test_results_by_winograd_are_right(m: int, order: str) -> None:
    check_some(Winograd(m), operators.conv2d(1, 9, 11, 24, 40, 3, 3, pad=1), {"order": order})


def check_some(sketch: Any, workload: Workload, fixed: Mapping[str, Any]) -> None:
    space, points = some_points(sketch, workload, HERE, fixed, 3)
    check_points(sketch, workload, HERE, space, points)


def some_points(
    sketch: Any, workload: Workload, target: Cpu, fixed: Mapping[str, Any], count: int
) -> tuple[Space, list[Point]]:
    """The space of a sketch, and points of it that fetch ahead."""
    space = sketch.space(workload, target)
    rng, wanted = np.random.default_rng(0), {**fixed, PREFETCH: 1}
    points = [
        point for point in (space.sample(rng) for _ in range(2_000)) if wanted.items() <= space.config(point).items()
    ]
    assert len(points) >= count
    return space, points[:count]
