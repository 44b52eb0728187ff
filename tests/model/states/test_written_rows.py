"""The kernel that writes the new rows only: what the whole one writes there, or none where that is not so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import te, tirx

from stormdrop.ir.reference import evaluate
from stormdrop.model.states.written_rows import written_rows

HEADS, ROWS, NEW, WIDTH = 2, 5, 3, 4


def whole(value: Any, *, along: int = 1) -> tirx.PrimFunc:
    """A function of new rows and former ones: `value` gives an element of its output."""
    new = te.placeholder((NEW, HEADS, WIDTH), name="new")
    shape = [HEADS, WIDTH]
    past = te.placeholder((*shape[:along], ROWS, *shape[along:]), name="past")
    turned = te.compute((HEADS, NEW, WIDTH), lambda h, i, d: new[i, h, d] * 2.0, name="turned")
    made = te.compute((*shape[:along], ROWS + NEW, *shape[along:]), lambda *at: value(turned, past, *at), name="made")
    return te.create_prim_func([new, past, made])


def joined(turned: Any, past: Any, h: Any, i: Any, d: Any) -> Any:
    return te.if_then_else(i >= ROWS, turned[h, i - ROWS, d], past[h, i, d])


def test_the_new_rows_are_those_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    new = rng.normal(size=(NEW, HEADS, WIDTH)).astype("float32")
    past = rng.normal(size=(HEADS, ROWS, WIDTH)).astype("float32")
    rows = written_rows(whole(joined), 1, 1)
    assert rows is not None and rows.order == (0, 1, 2)
    assert [tuple(map(int, each.shape)) for each in rows.function.params] == [
        (NEW, HEADS, WIDTH),
        (HEADS, ROWS + NEW, WIDTH),
    ]
    (right,) = evaluate(whole(joined), [new, past])
    (written,) = evaluate(rows.function, [new])
    np.testing.assert_array_equal(written[:, ROWS:], right[:, ROWS:])
    np.testing.assert_array_equal(right[:, :ROWS], past)


def reader(value: Any, shape: tuple[int, ...]) -> tirx.PrimFunc:
    """A function of what `whole` makes."""
    made = te.placeholder((HEADS, ROWS + NEW, WIDTH), name="made")
    return te.create_prim_func([made, te.compute(shape, lambda *at: value(made, *at), name="read")])


def test_the_new_rows_as_their_reader_turns_them() -> None:
    turned = reader(lambda made, h, d, i: made[h, i, d], (HEADS, WIDTH, ROWS + NEW))
    rows = written_rows(whole(joined), 1, 1, turned)
    assert rows is not None and rows.order == (0, 2, 1)
    rng = np.random.default_rng(0)
    new = rng.normal(size=(NEW, HEADS, WIDTH)).astype("float32")
    (right,) = evaluate(whole(joined), [new, np.zeros((HEADS, ROWS, WIDTH), "float32")])
    (written,) = evaluate(rows.function, [new])
    np.testing.assert_array_equal(written[:, :, ROWS:], right[:, ROWS:].swapaxes(1, 2))


@pytest.mark.parametrize(
    "other",
    [
        reader(lambda made, h, d, i: made[h, i, d] * 0.5, (HEADS, WIDTH, ROWS + NEW)),
        reader(lambda made, h, i, d: made[h // 2, i, d], (2 * HEADS, ROWS + NEW, WIDTH)),
        reader(lambda made, h, i, d: made[h, i + NEW, d], (HEADS, ROWS, WIDTH)),
    ],
    ids=["scaled", "repeated", "a part"],
)
def test_a_reader_that_does_more_is_none(other: tirx.PrimFunc) -> None:
    assert written_rows(whole(joined), 1, 1, other) is None


def test_other_forms_of_the_choice() -> None:
    def other(turned: Any, past: Any, h: Any, i: Any, d: Any) -> Any:
        return tirx.Select(i < ROWS, past[h, i, d], turned[h, i - ROWS, d])

    assert written_rows(whole(other), 1, 1) is not None


@pytest.mark.parametrize(
    "value",
    [
        lambda turned, past, h, i, d: te.if_then_else(i >= ROWS, turned[h, i - ROWS, d], past[h, i, d] * 2.0),
        lambda turned, past, h, i, d: te.if_then_else(i >= ROWS, turned[h, i - ROWS, d], past[h, ROWS - 1 - i, d]),
        lambda turned, past, h, i, d: te.if_then_else(i >= ROWS, turned[h, i - ROWS, d], past[1 - h, i, d]),
        lambda turned, past, h, i, d: te.if_then_else(i >= ROWS, turned[h, i - ROWS, d] + past[h, 0, d], past[h, i, d]),
        lambda turned, past, h, i, d: te.if_then_else(i >= NEW, past[h, i - NEW, d], turned[h, i, d]),
        lambda turned, past, h, i, d: te.if_then_else(i >= ROWS - 1, turned[h, 0, d], past[h, i, d]),
        lambda turned, past, h, i, d: te.max(joined(turned, past, h, i, d), 0.0),
    ],
    ids=["scaled", "reversed", "other heads", "new ones see it", "in front", "one is lost", "activated"],
)
def test_what_is_no_concatenation_behind_is_none(value: Any) -> None:
    assert written_rows(whole(value), 1, 1) is None


def test_another_axis_is_none() -> None:
    assert written_rows(whole(joined), 1, 0) is None
    assert written_rows(whole(joined), 0, 1) is None
