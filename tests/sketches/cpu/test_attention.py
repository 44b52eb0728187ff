"""Attention as one kernel: which functions are one, that each point is right, and that few scores exist at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from tvm import te
from tvm.s_tir import SBlockRealize

from stormdrop import operators
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.stages import shape_of
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.operators.rows import softmax_of
from stormdrop.sketches.cpu.attention.chain import find_chain
from stormdrop.sketches.cpu.attention.sketch import Attention
from stormdrop.sketches.registry import sketches_for
from stormdrop.testing.sketches import check_point, check_sketch

TARGET = Cpu.detect()
WIDE = replace(TARGET, lanes=8, registers=16)


def attention(
    scores: Callable[..., Any] = lambda product, *i: product[i],
    weights: Callable[[Any], Any] = softmax_of,
    shared_values: bool = False,
) -> Workload:
    """Attention of 3 heads, 17 rows, 35 keys and 12 values, with other scores and weights than usual."""
    queries, keys = te.placeholder((3, 17, 8), name="q"), te.placeholder((3, 8, 35), name="k")
    values = te.placeholder((35, 12) if shared_values else (3, 35, 12), name="v")
    step, key = te.reduce_axis((0, 8), name="d"), te.reduce_axis((0, 35), name="s")
    product = te.compute((3, 17, 35), lambda h, i, j: te.sum(queries[h, i, step] * keys[h, step, j], axis=step))
    made = weights(te.compute((3, 17, 35), lambda *i: scores(product, *i)))

    def value(h: Any, j: Any) -> Any:
        return values[key, j] if shared_values else values[h, key, j]

    output = te.compute((3, 17, 12), lambda h, i, j: te.sum(made[h, i, key] * value(h, j), axis=key))
    return Workload.create("attention", te.create_prim_func([queries, keys, values, output]))


CHAINS = [
    operators.attention(2, 17, 35, 8, 19, mask=1),
    operators.attention(1, 6, 6, 4, 3),
    operators.attention(5, 1, 40, 16, 16),
    operators.attention(1, 37, 13, 1, 1),
    attention(),
    attention(lambda product, *i: product[i] * 0.5 - 1.0),
    attention(shared_values=True),
]


@pytest.mark.compiles
@pytest.mark.parametrize("workload", CHAINS, ids=lambda workload: workload.name)
def test_every_level_is_right(workload: Workload) -> None:
    check_sketch(Attention(), workload, TARGET)


@pytest.mark.compiles
def test_narrower_vectors() -> None:
    check_sketch(Attention(), operators.attention(2, 17, 35, 8, 19), WIDE, samples=4)


def two_sums() -> Workload:
    """A product of a product: nothing stands between them, and the second one's rows are all rows of the first."""
    x, y = te.placeholder((9, 8), name="x"), te.placeholder((8, 7), name="y")
    z = te.placeholder((9, 5), name="z")
    first, second = te.reduce_axis((0, 8)), te.reduce_axis((0, 9))
    inner = te.compute((9, 7), lambda i, j: te.sum(x[i, first] * y[first, j], axis=first))
    outer = te.compute((7, 5), lambda i, j: te.sum(inner[second, i] * z[second, j], axis=second))
    return Workload.create("two sums", te.create_prim_func([x, y, z, outer]))


def without_maximum(scores: Any) -> Any:
    """A softmax whose weights are computed from the scores themselves."""
    key = te.reduce_axis((0, 35))
    total = te.compute((3, 17), lambda h, i: te.sum(te.exp(scores[h, i, key]), axis=key))
    return te.compute(scores.shape, lambda h, i, j: te.exp(scores[h, i, j]) / total[h, i])


def divided_at_the_end() -> Workload:
    """Attention that divides by the sum of a row after the product with the values."""
    queries, keys = te.placeholder((3, 17, 8), name="q"), te.placeholder((3, 8, 35), name="k")
    values = te.placeholder((3, 35, 12), name="v")
    step, key, other = (te.reduce_axis((0, extent)) for extent in (8, 35, 35))
    product = te.compute((3, 17, 35), lambda h, i, j: te.sum(queries[h, i, step] * keys[h, step, j], axis=step))
    raised = te.compute((3, 17, 35), lambda *i: te.exp(product[i]))
    total = te.compute((3, 17), lambda h, i: te.sum(raised[h, i, other], axis=other))
    made = te.compute((3, 17, 12), lambda h, i, j: te.sum(raised[h, i, key] * values[h, key, j], axis=key))
    output = te.compute((3, 17, 12), lambda h, i, j: made[h, i, j] / total[h, i])
    return Workload.create("divided at the end", te.create_prim_func([queries, keys, values, output]))


def along_the_columns() -> Workload:
    """Attention whose softmax runs over the queries."""

    def weights(scores: Any) -> Any:
        query = te.reduce_axis((0, 17))
        total = te.compute((3, 35), lambda h, j: te.sum(te.exp(scores[h, query, j]), axis=query))
        return te.compute(scores.shape, lambda h, i, j: te.exp(scores[h, i, j]) / total[h, j])

    return attention(weights=weights)


@pytest.mark.parametrize(
    "workload",
    [
        operators.matmul(8, 8, 8),
        operators.attention_scores(2, 8, 8, 8),
        operators.softmax(8, 8),
        two_sums(),
        along_the_columns(),
        attention(weights=lambda scores: scores),
        attention(weights=without_maximum),
        divided_at_the_end(),
    ],
    ids=lambda workload: workload.name,
)
def test_other_functions_are_refused(workload: Workload) -> None:
    with pytest.raises(UnsupportedFunction):
        find_chain(workload.graph)
    assert Attention().space(workload, TARGET) is None


def test_it_is_the_only_sketch_of_an_attention() -> None:
    names = [sketch.name for sketch, _ in sketches_for(operators.attention(2, 17, 35, 8, 19), TARGET)]
    assert names == ["attention"]


def allocated(workload: Workload, target: Cpu) -> dict[str, int]:
    """The elements of the buffers of the default schedule, by name."""
    space = Attention().space(workload, target)
    assert space is not None
    main = Attention().apply(workload, target, space.config(space.origin)).main
    assert isinstance(main.body, SBlockRealize)
    sizes: dict[str, int] = {}
    for buffer in main.body.block.alloc_buffers:
        elements = 1
        for extent in shape_of(buffer):
            elements *= extent
        sizes[str(buffer.name)] = elements
    return sizes


def test_scores_stay_in_the_second_cache() -> None:
    workload = operators.attention(2, 512, 256, 8, 8)
    small = replace(TARGET, l2=64 << 10)
    scores = allocated(workload, small)["scores"]
    assert 256 <= scores <= 12 << 10, "at least a row, and three quarters of 64 KiB at most"
    assert scores < allocated(workload, replace(TARGET, l2=1 << 20))["scores"]
    assert max(allocated(workload, small).values()) < 2 * 512 * 256, "nothing holds all scores"


def test_caches_of_which_nothing_is_known_hold_blocks_of_many_rows() -> None:
    assert allocated(operators.attention(2, 512, 256, 8, 8), replace(TARGET, l1=0, l2=0))["scores"] > 256 * 16


@pytest.mark.parametrize("workload", [attention(weights=without_maximum), divided_at_the_end()], ids=["max", "divided"])
@pytest.mark.compiles
def test_what_is_refused_has_another_sketch(workload: Workload) -> None:
    (sketch, space), *_ = sketches_for(workload, TARGET)
    check_point(sketch, workload, TARGET, space, space.origin)


def test_rows_that_are_larger_than_the_cache_have_blocks_of_one() -> None:
    workload, small = operators.attention(1, 16, 4096, 4, 4), replace(TARGET, l2=8 << 10)
    space = Attention().space(workload, small)
    assert space is not None
    assert {(space.config(point)["rows"], space.config(point)["block"]) for point in space.points()} == {(1, 1)}


@pytest.mark.compiles
def test_blocks_that_overlap_compute_the_same_twice() -> None:
    workload = operators.attention(2, 17, 35, 8, 19)
    space = Attention().space(workload, WIDE)
    assert space is not None

    def overlaps(config: Mapping[str, Any]) -> bool:
        return bool(17 % (config["rows"] * config["block"])) and config["block"] > 1

    overlapping = next(point for point in space.points() if overlaps(space.config(point)))
    check_point(Attention(), workload, WIDE, space, overlapping)
