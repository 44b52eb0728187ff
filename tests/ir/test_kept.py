"""What is found out about a value once: kept with it, with its failures, and for as long as it lives only."""

from __future__ import annotations

import gc
import pickle
import weakref

import pytest

from stormdrop import operators
from stormdrop.errors import UnsupportedFunction
from stormdrop.ir.kept import kept


class Value:
    """Something about which things are found out."""


def test_what_was_found_is_kept_for_each_value_and_each_argument() -> None:
    asked = []

    @kept
    def double(value: Value, number: int = 1) -> list[int]:
        asked.append(number)
        return [2 * number]

    first, second = Value(), Value()
    assert double(first, 2) is double(first, 2)
    assert double(first, number=3) is double(first, number=3)
    assert double(second, 2) is not double(first, 2)
    assert asked == [2, 3, 2]


def test_that_there_is_nothing_is_kept_too() -> None:
    asked = []

    @kept
    def nothing(value: Value) -> None:
        asked.append(value)
        raise UnsupportedFunction("there is nothing")

    value = Value()
    for _ in range(2):
        with pytest.raises(UnsupportedFunction, match="there is nothing"):
            nothing(value)
    assert asked == [value]


def test_two_functions_do_not_take_each_others_results() -> None:
    one, other = kept(lambda value: "one"), kept(lambda value: "other")
    value = Value()
    assert (one(value), other(value), one(value)) == ("one", "other", "one")


def test_a_contraction_is_found_once_and_lives_no_longer_than_its_workload() -> None:
    workload = operators.dense(8, 16, 32)
    contraction = workload.contraction
    assert workload.contraction is contraction
    assert pickle.loads(pickle.dumps(workload)).contraction.row_extents == contraction.row_extents
    alive = weakref.ref(workload), weakref.ref(contraction)
    del workload, contraction
    gc.collect()
    assert [reference() for reference in alive] == [None, None]


def test_what_was_kept_does_not_go_to_another_process() -> None:
    workload = operators.dense(8, 16, 32)
    contraction = workload.contraction
    assert any(vars(stage).get("_kept") for stage in workload.graph.stages)
    graph = pickle.loads(pickle.dumps(workload.graph))
    assert not any(vars(stage).get("_kept") for stage in graph.stages)
    assert pickle.loads(pickle.dumps(contraction)).row_extents == contraction.row_extents


def test_a_workload_without_a_contraction_says_so_each_time() -> None:
    workload = operators.softmax(8, 16)
    for _ in range(2):
        with pytest.raises(UnsupportedFunction, match="0 contractions"):
            _ = workload.contraction
