"""What counts as the right answer, and what outputs hold before a kernel writes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Target
from stormdrop.measure.jobs import Build, Data, Run
from stormdrop.measure.timing import TimingPlan
from stormdrop.measure.workbench import Workbench, difference, fill
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Status

NAN, INF = float("nan"), float("inf")


def floats(*values: float) -> Any:
    return np.array(values, "float32")


@pytest.mark.parametrize("tolerance", [0.0, 1e-4])
def test_the_same_values_that_are_not_finite_are_equal(tolerance: float) -> None:
    expected = floats(1, NAN, INF, -INF)
    assert difference("out", expected.copy(), expected, tolerance) == ""
    assert difference("out", floats(NAN, NAN), floats(NAN, NAN), tolerance) == ""


@pytest.mark.parametrize("tolerance", [0.0, 1e-4])
@pytest.mark.parametrize(
    ("actual", "expected", "said"),
    [
        (7, NAN, "out[1] is 7, not nan; 1 of 2 elements"),
        (NAN, 7, "out[1] is nan, not 7; 1 of 2 elements"),
        (INF, NAN, "out[1] is inf, not nan; 1 of 2 elements"),
        (-INF, INF, "out[1] is -inf, not inf; 1 of 2 elements"),
        (7, INF, "out[1] is 7, not inf; 1 of 2 elements"),
        (INF, 7, "out[1] is inf, not 7; 1 of 2 elements"),
    ],
)
def test_other_values_that_are_not_finite_differ(tolerance: float, actual: float, expected: float, said: str) -> None:
    assert difference("out", floats(1, actual), floats(1, expected), tolerance).startswith(said)


def test_an_expected_infinity_allows_no_error_elsewhere() -> None:
    assert difference("out", floats(1.5, INF), floats(1, INF), 1e-4).startswith("out[0] is 1.5, not 1; 1 of 2")
    assert difference("out", floats(1.5, NAN), floats(1, NAN), 1e-4).startswith("out[0] is 1.5, not 1; 1 of 2")
    assert difference("out", floats(1.00001, INF), floats(1, INF), 1e-4) == ""


def test_the_tolerance_is_relative_to_the_largest_element() -> None:
    assert difference("out", floats(0.005, 100), floats(0, 100), 1e-4) == ""
    assert difference("out", floats(0.02, 100), floats(0, 100), 1e-4) == (
        "out[0] is 0.02, not 0; 1 of 2 elements differ by more than 0.01"
    )
    assert difference("out", floats(0, 100.001), floats(0, 100), 0.0).startswith("out[1] is 100.001, not 100")


def test_truth_values_and_integers() -> None:
    yes, no = np.array([True, True]), np.array([True, False])
    assert difference("out", yes, no, 0.0).startswith("out[1] is 1, not 0; 1 of 2")
    assert difference("out", yes, yes, 0.0) == ""
    assert difference("out", np.array([3], "int32"), np.array([2], "int32"), 0.0).startswith("out[0] is 3, not 2")
    assert difference("out", np.zeros((0, 3)), np.zeros((0, 3)), 0.0) == ""


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_not_written_is_finite_and_unlike_any_answer(dtype: str) -> None:
    view = np.zeros((3, 5), dtype)
    fill(view)
    assert np.isfinite(view).all()
    assert np.abs(view.astype("float64")).min() > 2**15
    assert view.min() < 0 < view.max()  # neither a maximum nor a minimum over the old values goes unnoticed
    for expected in (np.full_like(view, NAN), np.full_like(view, INF), np.ones_like(view)):
        assert "15 of 15 elements differ" in difference("out", view, expected, 1e-4)


class _Partial:
    """A sketch that copies its input and leaves the last `holes` elements out."""

    name = "partial"
    max_error = 0.0

    def apply(self, workload: Workload, target: Target, config: Any) -> Any:
        from stormdrop.sketches.contract import Variant

        return Variant(copy_function(8 - int(config["holes"])))


def copy_function(count: int) -> Any:
    """`b[i] = a[i]` for the first `count` of 8 elements."""
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            a = T.arg("a", T.buffer((8,), "float32"))
            b = T.arg("b", T.buffer((8,), "float32"))
            with T.serial(count) as i:
                T.buffer_store(b, a[i], [i])
        return builder.get()


@pytest.mark.parametrize(("holes", "status"), [(0, None), (1, Status.WRONG_ANSWER)])
@pytest.mark.parametrize("value", [NAN, INF, 1.0])
def test_a_kernel_is_judged_where_its_answer_is_not_finite(holes: int, status: Status | None, value: float) -> None:
    from tvm import te

    a = te.placeholder((8,), "float32", name="a")
    b = te.compute((8,), lambda i: a[i], name="b")
    target = Target.detect()
    workload = Workload.create("copy", te.create_prim_func([a, b]))
    bench = Workbench(workload, target, {"partial": _Partial()}, lambda step: None)  # type: ignore[dict-item]
    values = floats(1, 2, 3, 4, 5, 6, 7, value)
    bench.take(Data(inputs=(values,), outputs=(values,), tolerance=0.0))
    built = bench.build(Build(key=0, sketch="partial", config={"holes": holes}))
    assert not hasattr(built, "status"), built
    ran = bench.run(Run(key=0, plan=TimingPlan(1, 1e-4), check=True))
    assert getattr(ran, "status", None) is status
    if status:
        assert f"not {value:.6g}; 1 of 8 elements" in getattr(ran, "error", "")


@pytest.mark.parametrize(("passing", "copies"), [(0, 1), (100 << 10, 1), (200 << 10, 2), (1 << 20, 8)])
def test_constants_pass_through_the_caches_between_executions(passing: int, copies: int) -> None:
    from tvm import te

    a, b = (te.placeholder((128, 256), "float32", name=name) for name in "ab")
    c = te.compute((128, 256), lambda i, j: a[i, j] + b[i, j], name="c")
    target = Target.detect()
    workload = Workload.create("add", te.create_prim_func([a, b, c]), [1])
    sketches = {sketch.name: (sketch, space) for sketch, space in sketches_for(workload, target)}
    name, (sketch, space) = next(iter(sketches.items()))
    bench = Workbench(workload, target, {name: sketch}, lambda step: None, passing)
    inputs = tuple(np.full((128, 256), value, np.float32) for value in (1, 2))
    bench.take(Data(inputs=inputs, outputs=(inputs[0] + inputs[1],), tolerance=1e-6))
    assert not hasattr(bench.build(Build(0, name, space.config(space.origin))), "status")
    assert not hasattr(bench.run(Run(0, TimingPlan(1, 1e-4), check=True)), "status")
    seen: list[Any] = []
    built = bench._built[0]
    bench._built[0] = replace(built, kernel=replace(built.kernel, call=lambda *arguments: seen.append(arguments)))
    call = bench._call(0)
    for _ in range(16):
        call()
    places = [np.from_dlpack(arguments[1]).ctypes.data for arguments in seen]
    assert len(set(places)) == copies and places[:copies] == places[copies : 2 * copies]
    assert all(np.array_equal(np.from_dlpack(arguments[1]), inputs[1]) for arguments in seen)
    assert len({np.from_dlpack(arguments[0]).ctypes.data for arguments in seen}) == 1
