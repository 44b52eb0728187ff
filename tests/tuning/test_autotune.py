"""`sd.autotune`: what it finds, what it remembers, and what it refuses."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import stormdrop as sd
from simulated_clock import simulated
from stormdrop.errors import InputError, MeasureError


def test_it_finds_the_fastest_configuration_once_per_key(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = simulated(monkeypatch)
    calls: list[Any] = []

    @sd.autotune({"block": [1, 2, 4, 8], "order": ["ij", "ji"]}, trials=8, search="grid")
    def work(values: np.ndarray, scale: int = 1, *, block: int = 1, order: str = "ij") -> tuple[int, str, int]:
        calls.append(block)
        best = 8 if len(values) > 4 else 2
        clock.sleep(1e-4 + 4e-4 * (block != best) + 4e-4 * (order != "ji"))
        return block, order, scale

    assert work(np.ones(8)) == (8, "ji", 1)
    assert work(np.ones(4), scale=3) == (2, "ji", 3)
    before = len(calls)
    assert work(np.zeros(8)) == (8, "ji", 1)
    assert len(calls) == before + 1  # known by now
    assert set(work.results) == {(((8,), "float64"), 1), (((4,), "float64"), 3)}
    assert work(np.ones(8), block=1, order="ij") == (1, "ij", 1)  # as the caller says
    assert work.__name__ == "work" and work.results[(((8,), "float64"), 1)].trials == 8  # type: ignore[attr-defined]


def test_what_the_key_says_matters() -> None:
    @sd.autotune({"x": [1, 2]}, key=("n",), trials=2)
    def by_name(values: list[float], n: int, x: int = 1) -> int:
        return x

    @sd.autotune({"x": [1, 2]}, key=lambda values, n: [n], trials=2)  # type: ignore[arg-type, return-value]
    def not_hashable(values: list[float], n: int, x: int = 1) -> int:
        return x

    by_name([1.0], 3)
    by_name([1.0, 2.0], n=3)
    assert list(by_name.results) == [(3,)]
    with pytest.raises(InputError, match="is not hashable"):
        not_hashable([], 3)


def test_a_list_of_configurations_is_taken_as_it_is() -> None:
    tried = set()

    @sd.autotune([{"block": 4, "warps": 2}, {"block": 8, "warps": 1}, {"block": 8, "warps": 2}], trials=9)
    def work(block: int = 8, warps: int = 1) -> None:
        tried.add((block, warps))

    work()
    assert tried == {(4, 2), (8, 1), (8, 2)}
    assert work.space.config(work.space.origin) == {"block": 8, "warps": 1}  # the function's own defaults


def test_what_is_changed_gets_its_contents_back() -> None:
    @sd.autotune({"block": [1, 2, 4]}, trials=3, restore=("sums",))
    def add(sums: np.ndarray, block: int = 1) -> None:
        sums += 1

    sums = np.zeros(3)
    add(sums)
    np.testing.assert_array_equal(sums, np.ones(3))


def test_failures_are_left_out_and_if_all_fail_it_says_why() -> None:
    @sd.autotune({"block": [1, 2]}, trials=2)
    def half(block: int = 1) -> int:
        if block == 1:
            raise ValueError("too small")
        return block

    @sd.autotune({"block": [1, 2]}, trials=2)
    def none(block: int = 1) -> int:
        raise ValueError("does not compile")

    assert half() == 2
    with pytest.raises(MeasureError, match=r"no configuration of .*none works: ValueError: does not compile"):
        none()


def test_a_store_answers_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = simulated(monkeypatch)

    def make(store: Any, calls: list[int]) -> Any:
        @sd.autotune({"block": [1, 2, 4]}, trials=3, search="grid", store=store)
        def work(n: int, block: int = 1) -> int:
            calls.append(block)
            clock.sleep(5e-5 * block)
            return block

        return work

    with sd.open_store("sqlite://") as store:
        first: list[int] = []
        later: list[int] = []
        assert make(store, first)(5) == make(store, later)(5) == 1
    assert len(first) > 10 and later == [1]


def test_a_method_a_recursion_and_threads() -> None:
    class Sorter:
        @sd.autotune({"leaf": [1, 4]}, key=("values",), trials=2)
        def sort(self, values: tuple[int, ...], leaf: int = 1) -> tuple[int, ...]:
            if len(values) <= leaf:
                return tuple(sorted(values))
            pivot, *rest = values
            low = self.sort(tuple(value for value in rest if value < pivot))
            return (*low, pivot, *self.sort(tuple(value for value in rest if value >= pivot)))

    sorter, sorted_values = Sorter(), []
    threads = [threading.Thread(target=lambda: sorted_values.append(sorter.sort((3, 1, 2, 9, 5)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted_values == [(1, 2, 3, 5, 9)] * 3


@pytest.mark.parametrize(
    ("configurations", "settings", "message"),
    [
        ({"blok": [1, 2]}, {}, "has no parameter 'blok'; did you mean 'block'"),
        ({"block": [None, 2]}, {}, "is a number, a truth value or text, not NoneType"),
        ({"block": []}, {}, "knob 'block' has no values"),
        ({}, {}, "may vary"),
        ([], {}, "list of configurations of .* is empty"),
        ([{"block": 1}, {"n": 1}], {}, "set different parameters"),
        ({"block": [1]}, {"restore": ["m"]}, "has no argument 'm'; did you mean 'n'|choose from n"),
        ({"block": [1]}, {"key": "n"}, "is text; give a sequence of names"),
        ({"block": [1]}, {"trials": 0}, "trials=0 must be 1 or more"),
    ],
)
def test_bad_input_is_one_line(configurations: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:

        @sd.autotune(configurations, **settings)
        def work(n: int, block: int = 1) -> None: ...

    assert "\n" not in str(caught.value)


def test_numba_is_tuned_and_computes_the_same() -> None:
    numba = pytest.importorskip("numba", reason="Numba is not installed: pip install numba")

    @numba.njit
    def transpose(source: np.ndarray, target: np.ndarray, rows: int, columns: int) -> None:
        n, m = source.shape
        for i in range(0, n, rows):
            for j in range(0, m, columns):
                for k in range(i, min(i + rows, n)):
                    for l in range(j, min(j + columns, m)):
                        target[l, k] = source[k, l]

    @sd.autotune({"rows": [1, 8, 64], "columns": [1, 8, 64]}, trials=6)
    def tuned(source: np.ndarray, target: np.ndarray, rows: int = 1, columns: int = 1) -> np.ndarray:
        transpose(source, target, rows, columns)
        return target

    source = np.random.default_rng(0).random((96, 160))
    np.testing.assert_array_equal(tuned(source, np.empty((160, 96))), source.T)
    (result,) = tuned.results.values()
    assert result.trials == 6 and result.failed == 0
