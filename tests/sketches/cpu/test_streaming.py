"""Memory-bound operators on awkward extents: every point is right to the last element; what the schedules look like."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tvm import te, tirx

from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.cpu.streaming import Streaming
from stormdrop.testing.sketches import check_sketch

TARGET = Cpu.detect()


def created(*tensors: Any) -> Workload:
    return Workload.create("function", te.create_prim_func(list(tensors)))


def residual_and_norm(m: int, n: int) -> Workload:
    x, z, r, s = te.placeholder((m, n)), te.placeholder((m, n)), te.reduce_axis((0, n)), te.reduce_axis((0, n))
    t = te.compute((m, n), lambda i, j: x[i, j] + z[i, j])
    total = te.compute((m,), lambda i: te.sum(t[i, r], axis=r))
    centred = te.compute((m, n), lambda i, j: t[i, j] - total[i] * (1 / n))
    square = te.compute((m,), lambda i: te.sum(centred[i, s] * centred[i, s], axis=s))
    return created(x, z, te.compute((m, n), lambda i, j: centred[i, j] / te.sqrt(square[i] * (1 / n) + 1e-5)))


def masked_attention_scores(b: int, h: int, q: int, k: int) -> Workload:
    x, mask = te.placeholder((b, h, q, k)), te.placeholder((b, 1, 1, k))
    r, s = te.reduce_axis((0, k)), te.reduce_axis((0, k))
    score = te.compute((b, h, q, k), lambda a, c, d, e: x[a, c, d, e] * 0.125 + mask[a, 0, 0, e])
    top = te.compute((b, h, q), lambda a, c, d: te.max(score[a, c, d, r], axis=r))
    exp = te.compute((b, h, q, k), lambda a, c, d, e: te.exp(score[a, c, d, e] - top[a, c, d]))
    total = te.compute((b, h, q), lambda a, c, d: te.sum(exp[a, c, d, s], axis=s))
    return created(x, mask, te.compute((b, h, q, k), lambda a, c, d, e: exp[a, c, d, e] / total[a, c, d]))


def softmax_of_columns(a: int, b: int, c: int) -> Workload:
    x, r, s = te.placeholder((a, b, c)), te.reduce_axis((0, b)), te.reduce_axis((0, b))
    top = te.compute((a, c), lambda i, k: te.max(x[i, r, k], axis=r))
    exp = te.compute((a, b, c), lambda i, j, k: te.exp(x[i, j, k] - top[i, k]))
    total = te.compute((a, c), lambda i, k: te.sum(exp[i, s, k], axis=s))
    return created(x, te.compute((a, b, c), lambda i, j, k: exp[i, j, k] / total[i, k]))


def concatenation(extents: Sequence[int]) -> Workload:
    parts = [te.placeholder((2, 7, extent), name=f"p{at}") for at, extent in enumerate(extents)]

    def element(i: Any, j: Any, k: Any) -> Any:
        start, value = extents[0], parts[0][i, j, k]
        for part, extent in zip(parts[1:], extents[1:], strict=True):
            value = tirx.if_then_else(k >= start, part[i, j, k - start], value)
            start += extent
        return value

    return created(*parts, te.compute((2, 7, sum(extents)), element))


def two_outputs(m: int, n: int) -> Workload:
    x = te.placeholder((m, n))
    y = te.compute((m, n), lambda i, j: te.exp(x[i, j]))
    return created(x, y, te.compute((m, n), lambda i, j: te.tanh(y[i, j]) + y[i, j]))


def chain(m: int, n: int) -> Workload:
    """Intermediates of a shape whose axes are walked as one, and whose last step overlaps the one before it."""
    x, r = te.placeholder((m, n)), te.reduce_axis((0, n))

    def link(y: Any) -> Any:
        return te.compute((m, n), lambda i, j: te.tanh(y[i, j]) * y[i, j] + y[i, j])

    y = link(link(link(x)))
    total = te.compute((m,), lambda i: te.sum(y[i, r], axis=r))
    return created(x, link(te.compute((m, n), lambda i, j: y[i, j] - total[i] * (1 / n))))


@pytest.mark.compiles
@pytest.mark.parametrize(
    "make",
    [
        lambda: operators.elementwise((7, 35, 3), kind="tanh"),
        lambda: operators.elementwise((2, 7, 35), kind="bias_add"),
        lambda: operators.reduce((7, 35, 17), (0, 2)),
        lambda: operators.reduce((13, 35, 149), (0, 1, 2), kind="mean"),
        lambda: operators.reduce((4001, 7), 0),
        lambda: operators.reduce((100003,), 0, kind="max"),
        lambda: operators.reduce((1000, 9), 1),
        lambda: operators.softmax(1, 1000),
        lambda: operators.softmax(17, 149),
        lambda: operators.layer_norm(7, 149),
        lambda: residual_and_norm(7, 149),
        lambda: masked_attention_scores(2, 3, 7, 35),
        lambda: softmax_of_columns(3, 17, 35),
        lambda: operators.pool2d(2, 17, 17, 35, 3, 3, stride=2, pad=1),
        lambda: operators.pool2d(1, 15, 17, 7, 3, 3, pad=1, kind="avg", layout="NCHW"),
        lambda: operators.pool2d(1, 7, 7, 149, 7, 7, kind="avg", layout="NCHW"),
        lambda: operators.pool2d(2, 19, 19, 7, 1, 1, stride=2, kind="avg", layout="NCHW"),
        lambda: operators.transpose((149, 35), (1, 0)),
        lambda: operators.transpose((3, 17, 19, 5), (0, 2, 3, 1)),
        lambda: operators.transpose((1, 35, 3, 17), (0, 2, 1, 3)),
        lambda: operators.transpose((2, 35, 3, 17), (0, 2, 3, 1)),
        lambda: operators.concatenate((2, 7, 17), (2, 3, 17), 1),
        lambda: concatenation([17, 35, 1, 5]),
        lambda: concatenation([9] + [4] * 49),  # as in the densely connected networks
        lambda: two_outputs(7, 149),
        lambda: chain(5, 37),
        lambda: operators.elementwise((128, 3072), kind="gelu"),
    ],
)
def test_every_point_is_right(make: Callable[[], Workload]) -> None:
    check_sketch(Streaming(), make(), TARGET, samples=2)


def origin(workload: Workload, **changed: Any) -> str:
    """The text of the schedule at the origin, some knobs changed."""
    space = Streaming().space(workload, TARGET)
    assert space is not None
    config = {**space.config(space.origin), **changed}
    return str(Streaming().apply(workload, TARGET, config).main.script())


def allocated(text: str) -> list[int]:
    """The elements of the buffers in a schedule that are no parameters."""
    shapes = re.findall(r"sblock_alloc_buffer\(\(([^)]*)\)", text)
    sizes = []
    for shape in shapes:
        size = 1
        for extent in filter(None, shape.replace(" ", "").split(",")):
            size *= int(extent)
        sizes.append(size)
    return sizes


def test_no_element_of_a_concatenation_of_many_parts_looks_for_its_part() -> None:
    assert "if_then_else" not in origin(concatenation([8] * 50))


def test_rows_stay_in_the_first_cache() -> None:
    """What one nest of a softmax or a layer norm hands to the next is one row, and one loop runs them all."""
    for workload in (
        operators.softmax(640, 100),
        operators.layer_norm(640, 100),
        masked_attention_scores(4, 4, 40, 100),
    ):
        together, apart = origin(workload), origin(workload, together=0)
        assert max(allocated(together)) <= 8 * TARGET.lanes + 100
        assert together.count("T.parallel") == 1 < apart.count("T.parallel")
        assert max(allocated(apart)) >= 640


def test_few_results_are_reduced_on_all_cores() -> None:
    workload = operators.reduce((128, 64, 1024), (0, 1, 2))
    parts = 4 * TARGET.cores
    assert f"T.parallel({parts})" in origin(workload, parts=parts)
    assert "T.parallel" not in origin(workload, parts=1)


def test_axes_are_walked_as_one() -> None:
    """A shape whose last axes are short still fills its vectors."""
    text = origin(operators.elementwise((40, 3, 2)))
    assert f"T.vectorized({TARGET.lanes})" in text
    assert "for i2" not in text


def test_no_point_has_a_predicate() -> None:
    for workload in (operators.softmax(17, 149), operators.elementwise((149,)), operators.transpose((37, 17), (1, 0))):
        space = Streaming().space(workload, TARGET)
        assert space is not None
        for point in [space.origin, *space.neighbours(space.origin)]:
            text = Streaming().apply(workload, TARGET, space.config(point)).main.script()
            assert "T.where" not in text and "if_then_else" not in text


def test_concatenation_along_the_last_axis_decides_ahead() -> None:
    text = origin(concatenation([32, 64, 16]))
    assert "if_then_else" not in text
    assert "if_then_else" in origin(operators.concatenate((2, 7, 17), (2, 3, 17), 1))  # one branch for whole vectors


def test_padding_is_a_branch_where_it_holds_for_whole_vectors() -> None:
    padded = 2 * 35 * 35 * 32
    last, second = (operators.pool2d(2, 33, 33, 32, 3, 3, pad=1, layout=layout) for layout in ("NHWC", "NCHW"))
    assert padded not in allocated(origin(last))
    assert padded in allocated(origin(last, padding="apart"))
    # In NCHW the vectors run into the padding: it is copied, one image at a time.
    computing = origin(second).split('T.sblock("s1_init")', 1)[1]
    assert "if_then_else" in origin(second) and "if_then_else" not in computing
    assert 35 * 35 in allocated(origin(second))


def test_a_transpose_is_tiled_in_both_axes() -> None:
    space = Streaming().space(operators.transpose((64, 48), (1, 0)), TARGET)
    assert space is not None and {"across", "columns"} <= set(space.config(space.origin))
    text = origin(operators.transpose((64, 48), (1, 0)), across=16, columns=8)
    assert "T.unroll(16)" in text and "T.vectorized(8)" in text
    straight = Streaming().space(operators.transpose((1, 35, 3, 17), (0, 2, 1, 3)), TARGET)
    assert straight is not None and "across" not in straight.config(straight.origin)


def test_little_work_stays_on_one_core() -> None:
    assert "T.parallel" not in origin(operators.softmax(2, 100))
    assert "T.parallel" in origin(operators.softmax(640, 100))
