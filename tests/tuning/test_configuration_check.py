"""`sd.autotune(check=...)`: configurations that are fast because they compute something else never win.

Each cheat is right, or looks so, where nothing but the result of one call is compared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.errors import InputError, MeasureError

Function = Callable[..., Any]


def honest(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    time.sleep(1e-3)  # so that each cheat is faster
    return a @ b


def leftover(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.empty((len(a), b.shape[1]), a.dtype)  # the memory of the reference's outputs, maybe


def changes_inputs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    c = a @ b
    a[0, 0] = 0
    return c


def returns_its_input(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a[...] = a @ b
    return a


def in_another_thread(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    c = np.zeros((len(a), b.shape[1]), a.dtype)

    def work() -> None:
        time.sleep(0.02)
        c[...] = a @ b

    threading.Thread(target=work).start()
    return c


def by_address() -> Function:
    known: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}

    def call(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        place = a.ctypes.data, b.ctypes.data
        if place not in known:
            known[place] = a, b, a @ b  # with the inputs, so that no others get their addresses
        return known[place][2].copy()

    return call


def by_shape() -> Function:
    known: dict[tuple[int, ...], np.ndarray] = {}

    def call(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return known.setdefault(a.shape, a @ b).copy()

    return call


def first_rows(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    c = np.ones((len(a), b.shape[1]), a.dtype)
    c[:-1] = a[:-1] @ b
    return c


def for_positive_numbers(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.abs(a) @ np.abs(b)


def in_float16(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype("float16").astype("float32") @ b.astype("float16").astype("float32")).astype(a.dtype)


def in_tf32(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = ((each.view("uint32") + 0x1000 & 0xFFFFE000).view("float32") for each in (a, b))  # 10 digits of 23
    return a @ b


def in_float64(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a @ b).astype("float64")


def flat(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a @ b).ravel()


def column_major(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asfortranarray(a @ b)


class Lazy:
    """An array that is computed when it is looked at, which is after the timed call."""

    def __init__(self, compute: Callable[[], np.ndarray]) -> None:
        self._compute = compute

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._compute()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compute(), name)


def lazy(a: np.ndarray, b: np.ndarray) -> Any:
    return Lazy(lambda: a @ b)


def only_the_first_calls() -> Function:
    calls = []

    def call(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        calls.append(1)
        return a @ b if len(calls) < 5 else np.ones((len(a), b.shape[1]), a.dtype)

    return call


def stops_the_clock(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    time.perf_counter = lambda: 0.0
    return a @ b


def replaces_the_comparison(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    np.abs = lambda value: np.zeros_like(value)  # type: ignore[assignment]
    return a @ b + 1


def not_a_number(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.full((len(a), b.shape[1]), np.nan, a.dtype)


def infinite(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(a @ b > 0, np.inf, -np.inf).astype(a.dtype)


CHEATS = [
    (lambda: leftover, r"the output\[.*\] is .*, not .* elements differ"),
    (lambda: changes_inputs, "it changes its argument a$"),
    (lambda: returns_its_input, "the output is memory of its argument a$"),
    (lambda: in_another_thread, r"it still works after it has returned: the output\[|elements differ"),
    (by_address, r"elements differ by more than .* when its arrays hold other values than before"),
    (by_shape, r"the output\[.*elements differ"),
    (lambda: first_rows, r"the output\[23, \d+\] is 1, not"),
    (lambda: for_positive_numbers, r"the output\[.*elements differ"),
    (lambda: in_float16, r"the output\[.*elements differ"),
    (lambda: in_tf32, r"the output\[.*elements differ"),
    (lambda: in_float64, "the dtype of the output is float64, not float32"),
    (lambda: flat, r"the shape of the output is \(576,\), not \(24, 24\)"),
    (lambda: column_major, r"the strides of the output is \(4, 96\), not \(96, 4\)"),
    (lambda: lazy, "the type of the output is .*Lazy, not numpy.ndarray"),
    (only_the_first_calls, r"the output\[.*elements differ by more than .* in a timed call"),
    (lambda: stops_the_clock, "it replaces time.perf_counter"),
    (lambda: replaces_the_comparison, "it replaces numpy.abs"),
    (lambda: not_a_number, r"the output\[.*\] is nan, not"),
    (lambda: infinite, r"the output\[.*\] is -?inf, not"),
]


@pytest.mark.parametrize(("make", "message"), CHEATS, ids=lambda value: getattr(value, "__name__", None) or str(value))
@pytest.mark.parametrize("by", ["default", "function"])
def test_a_cheat_is_found_and_does_not_win(
    make: Callable[[], Function], message: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "perf_counter", time.perf_counter)  # what a cheat replaces is put back in any case
    monkeypatch.setattr(np, "abs", np.abs)
    cheat = make()

    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a @ b

    @sd.autotune(
        {"how": ["honest", "cheat"]}, trials=2, search="grid", check="default" if by == "default" else reference
    )
    def product(a: np.ndarray, b: np.ndarray, how: str = "honest") -> Any:
        return (cheat if how == "cheat" else honest)(a, b)

    a, b = (np.random.default_rng(seed).random((24, 24), np.float32) for seed in range(2))
    mine = a.copy(), b.copy()
    np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-5)
    (result,) = product.results.values()
    assert result.best is not None and result.best.config == {"how": "honest"} and result.failed == 1
    assert np.array_equal(a, mine[0]) and np.array_equal(b, mine[1])

    @sd.autotune({"how": ["cheat"]}, trials=1, check=reference)
    def alone(a: np.ndarray, b: np.ndarray, how: str = "cheat") -> Any:
        return make_again(a, b)

    make_again = make()
    with pytest.raises(MeasureError, match=message) as caught:
        alone(a, b)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int32", "bool"])
def test_sums_in_another_order_pass_and_missing_terms_do_not(dtype: str) -> None:
    @sd.autotune({"block": [7, 64, 1000]}, trials=3, search="grid", check="default")
    def total(values: np.ndarray, block: int = 1000) -> np.ndarray:
        parts = [values[:, i : i + block].sum(axis=1, dtype=values.dtype) for i in range(0, 1000, block)]
        return sum(parts[: None if block > 7 else -1], start=np.zeros(len(values), values.dtype))

    total((np.random.default_rng(0).random((8, 1000)) * 3).astype(dtype))
    (result,) = total.results.values()
    assert result.failed == (dtype != "bool") and result.best is not None and result.best.config["block"] != 7


def test_an_output_that_is_an_argument_is_checked_and_the_callers_stays_until_the_call() -> None:
    seen: list[np.ndarray] = []

    @sd.autotune({"part": [1, 2, 4]}, trials=3, search="grid", check="default")
    def double(values: np.ndarray, out: np.ndarray, part: int = 1) -> None:
        seen.append(out)
        out[: len(values) // part] = 2 * values[: len(values) // part]

    for dtype in ("float32", "int64"):
        values, out = np.arange(8, dtype=dtype), np.zeros(8, dtype)
        out[4:] = 2 * values[4:]  # right from the start
        double.config(values, out)
        assert not any(np.shares_memory(each, out) for each in seen)
        double(values, out)
        np.testing.assert_array_equal(out, 2 * values)
    assert [result.failed for result in double.results.values()] == [2, 2]
    assert all(seconds > 0 for seconds in double.check_seconds.values())


def test_an_argument_that_is_read_and_changed_is_restored() -> None:
    def reference(sums: np.ndarray, values: np.ndarray) -> None:
        sums += values

    @sd.autotune({"x": [1, 2]}, trials=2, search="grid", restore=("sums",), check=reference)
    def add(sums: np.ndarray, values: np.ndarray, x: int = 1) -> None:
        sums += values if x == 1 else 0

    sums = np.ones(3)
    add(sums, np.ones(3))
    np.testing.assert_array_equal(sums, np.full(3, 2.0))
    (result,) = add.results.values()
    assert result.failed == 1


def test_a_result_that_nothing_has_checked_is_no_answer() -> None:
    def tuned(store: Any, check: Any) -> Any:
        @sd.autotune({"x": [1, 2]}, trials=2, search="grid", store=store, check=check)
        def double(values: np.ndarray, x: int = 1) -> np.ndarray:
            time.sleep(1e-3 * (x == 1))
            return 2 * values if x == 1 else values.copy()

        return double.config(np.ones(3))

    with sd.open_store("sqlite://") as store:
        assert tuned(store, None) == {"x": 2}
        assert tuned(store, "default") == {"x": 1}


def test_inputs_without_a_sign_and_nested_ones_are_checked() -> None:
    @sd.autotune({"x": [1, 2]}, trials=2, search="grid", check="default")
    def logarithms(arrays: list[np.ndarray], x: int = 1) -> dict[str, np.ndarray]:
        return {"log": np.log(arrays[0] if x == 1 else arrays[0][:1].repeat(4)), "sum": arrays[0].sum(keepdims=True)}

    with np.errstate(invalid="ignore", divide="ignore"):
        logarithms([np.arange(1.0, 5.0)])
    (result,) = logarithms.results.values()
    assert result.failed == 1 and result.best is not None and result.best.config == {"x": 1}


def test_torch_is_checked() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

    @sd.autotune({"how": [0, 1, 2, 3]}, trials=4, search="grid", check=torch.matmul)
    def product(a: Any, b: Any, how: int = 0) -> Any:
        if how == 1:
            return (a.bfloat16() @ b.bfloat16()).to(a.dtype)
        if how == 2:
            a.mul_(1.5)
        return (b.T @ a.T).T if how == 3 else a @ b

    for dtype in (torch.float32, torch.bfloat16):
        product(torch.rand(32, 48).to(dtype), torch.rand(48, 16).to(dtype))
    in_float32, in_bfloat16 = (result.failed for result in product.results.values())
    assert (in_float32, in_bfloat16) == (3, 2)  # bfloat16 inside is right for bfloat16


def test_work_in_another_stream_is_found_and_timed_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    streams: dict[str, list[Callable[[], Any]]] = {"current": [], "other": []}

    def finish(*names: str) -> None:
        for name in names:
            while streams[name]:
                streams[name].pop(0)()

    tensor: Any = torch.Tensor

    class OnCuda(tensor):
        device = torch.device("cuda", 0)

        def cpu(self) -> Any:
            finish("current")
            return self.as_subclass(tensor).clone()

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: finish("current", "other"))
    values = torch.rand(16).as_subclass(OnCuda)

    def tuned(synchronize: Callable[[], object] | None, names: list[str]) -> Any:
        @sd.autotune({"stream": names}, trials=2, search="grid", check=torch.negative, synchronize=synchronize)
        def negative(values: Any, stream: str = "current") -> Any:
            out = torch.zeros(16).as_subclass(OnCuda)
            streams[stream].append(lambda: torch.neg(values, out=out))
            return out

        negative.config(values)
        (result,) = negative.results.values()
        return result

    assert tuned(lambda: finish("current"), ["current", "other"]).failed == 1
    assert tuned(None, ["current", "other"]).failed == 0  # all streams are waited for, in the timed calls, too
    with pytest.raises(MeasureError, match="it still works after it has returned: the output"):
        tuned(lambda: finish("current"), ["other"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"check": "defualt"}, "check='defualt' is neither a function nor 'default'"),
        ({"tolerance": 0.1}, "tolerance=0.1 must be from 0 to 1, and needs check="),
        ({"check": "default", "tolerance": 2}, "tolerance=2 must be from 0 to 1"),
        ({"check": lambda n: object()}, "compares arrays, numbers and text; the output is a builtins.object"),
    ],
)
def test_bad_input_is_one_line(settings: dict[str, Any], message: str) -> None:
    def work(n: int, block: int = 1) -> None: ...

    with pytest.raises(InputError, match=message):
        sd.autotune({"block": [1]}, trials=1, **settings)(work)(1)
