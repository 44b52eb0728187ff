"""MetaSchedule's design spaces as sketches: they hold what its traces sample, and compute the right thing."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

import stormdrop as sd
from stormdrop import operators
from stormdrop.errors import SpaceError, UnsupportedFunction
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.sketches.meta_schedule import MetaSchedule, _design, meta_schedule_sketches, replay
from stormdrop.space import Ordinal, Space, Tile
from stormdrop.testing.sketches import check_points
from stormdrop.testing.spaces import SpaceConformance

TARGET = Cpu.detect()
MATMUL = operators.matmul(24, 20, 16)
CONVOLUTION = operators.conv2d(1, 9, 9, 8, 12, 3, 3, pad=1, bias=1, act="relu")
SOFTMAX = operators.softmax(12, 35)
POOLING = operators.pool2d(1, 9, 9, 12, 3, 3, stride=2, pad=1)


def spaces(workload: Workload) -> list[Space]:
    applicable = [sketch.space(workload, TARGET) for sketch in meta_schedule_sketches(workload, TARGET)]
    return [space for space in applicable if space is not None]


class TestSpaces(SpaceConformance):
    def make_spaces(self) -> list[Space]:
        return [*spaces(POOLING)[2:], *spaces(operators.reduce((60,), 0)), *spaces(operators.matmul(1, 2, 60))]


@pytest.mark.compiles
@pytest.mark.parametrize("workload", [MATMUL, CONVOLUTION, POOLING], ids=lambda workload: workload.name)
def test_the_origin_and_random_points_are_right(workload: Workload) -> None:
    for sketch in meta_schedule_sketches(workload, TARGET):
        check(sketch, workload, 5)


def test_a_function_that_its_rules_cannot_schedule_is_named_in_one_line() -> None:
    workload = operators.attention_scores(2, 17, 35, 8, mask=1)
    with pytest.raises(
        UnsupportedFunction, match=r"^attention_scores .*: MetaSchedule's rules fail on it: The primitive"
    ):
        meta_schedule_sketches(workload, parse_machine("cpu/cortex-a72"))


@pytest.mark.compiles
def test_other_operators_are_right() -> None:
    for workload in (operators.dense(7, 12, 20, bias=1), operators.depthwise_conv2d(1, 7, 7, 12, 3, 3)):
        check(MetaSchedule(1), workload, 1)


@pytest.mark.compiles
@pytest.mark.parametrize("index", range(9))
def test_softmax(index: int) -> None:
    assert len(meta_schedule_sketches(SOFTMAX, TARGET)) == 9
    check(MetaSchedule(index), SOFTMAX, 2)


def check(sketch: MetaSchedule, workload: Workload, samples: int) -> None:
    space = sketch.space(workload, TARGET)
    assert space is not None and space.name == sketch.name
    rng = np.random.default_rng(sketch.index)
    points = dict.fromkeys([space.origin, *(space.sample(rng) for _ in range(samples))])
    check_points(sketch, workload, TARGET, space, list(points))


def test_knobs_are_the_samplings_of_the_trace() -> None:
    sketch = MetaSchedule(0)
    space = sketch.space(CONVOLUTION, TARGET)
    assert space is not None
    assert [knob.name for knob in space.knobs] == [*(f"tile{at}" for at in range(7)), "choice0", "location0"]
    rows = space.knobs[1]
    assert isinstance(rows, Tile) and (rows.extent, rows.levels, rows.max_inner) == (9, 4, 64)
    unroll, location = space.knobs[-2:]
    assert isinstance(unroll, Ordinal) and unroll.values == (0, 16, 64, 512)
    assert isinstance(location, Ordinal) and location.values[0] == -1 and location.values[-1] == -2
    assert list(location.values[:-1]) == sorted(location.values[:-1])


def test_decisions_are_taken() -> None:
    config = {"tile0": [2, 3, 1, 4], "tile1": [1, 2, 2, 5], "tile2": [8, 2], "choice0": 64}  # as JSON brings it
    text = str(MetaSchedule(2).apply(MATMUL, TARGET, config).main.script())
    assert "T.vectorized(5)" in text and '"pragma_auto_unroll_max_step": 64' in text


def test_a_convolution_is_padded_where_the_knob_says() -> None:
    sketch = MetaSchedule(0)
    space = sketch.space(CONVOLUTION, TARGET)
    assert space is not None
    origin = space.config(space.origin)
    inlined, apart = (sketch.apply(CONVOLUTION, TARGET, {**origin, "location0": at}).main for at in (-2, -1))
    assert 'T.sblock("s0")' not in inlined.script()
    assert 'T.sblock("s0")' in apart.script()


@pytest.mark.long
def test_weights_are_laid_out_anew_and_data_are_not() -> None:
    for workload, constants in ((CONVOLUTION, {1, 2}), (operators.dense(7, 12, 20), {1}), (MATMUL, set())):
        for sketch in meta_schedule_sketches(workload, TARGET):
            space = sketch.space(workload, TARGET)
            assert space is not None
            variant = sketch.apply(workload, TARGET, space.config(space.origin))
            assert set(variant.transforms) == constants


def test_tiles_that_do_not_fit_are_refused() -> None:
    config = {"tile0": (2, 3, 1, 5), "tile1": (1, 2, 2, 5), "tile2": (8, 2), "choice0": 64}
    with pytest.raises(SpaceError, match=r"tile0=.* does not fit"):
        MetaSchedule(0).apply(MATMUL, TARGET, config)


def test_a_postprocessor_may_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        def apply(self, schedule: object) -> bool:
            return False

        def __str__(self) -> str:
            return "Never"

    design = _design(MATMUL, TARGET)
    monkeypatch.setattr(
        "stormdrop.sketches.meta_schedule._design",
        lambda *_: type(design)(*[design.module, design.traces, [*design.postprocessors, Never()]]),
    )
    sketch = MetaSchedule(0)
    space = sketch.space(MATMUL, TARGET)
    assert space is not None
    with pytest.raises(SpaceError, match="Never refuses"):
        sketch.apply(MATMUL, TARGET, space.config(space.origin))


def test_there_are_no_more_sketches_than_design_spaces() -> None:
    assert MetaSchedule(3).space(MATMUL, TARGET) is None
    assert len(meta_schedule_sketches(MATMUL, TARGET)) == 3


@pytest.mark.compiles
def test_other_processes_make_the_same_spaces() -> None:
    here = [space.fingerprint for space in spaces(POOLING)]
    payload = pickle.dumps((POOLING, TARGET, meta_schedule_sketches(POOLING, TARGET))).hex()
    script = (
        "import json, pickle, sys; sys.modules['torch'] = None\n"
        f"workload, target, sketches = pickle.loads(bytes.fromhex('{payload}'))\n"
        "print(json.dumps([sketch.space(workload, target).fingerprint for sketch in sketches]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout) == here


def test_a_whole_trace_is_replayed() -> None:
    """A trace as a database holds it, postprocessors' instructions included, gives the same schedule."""
    import tvm_ffi
    from tvm.s_tir import Schedule

    design = _design(CONVOLUTION, TARGET)
    sketch = MetaSchedule(1)
    space = sketch.space(CONVOLUTION, TARGET)
    assert space is not None
    schedule = Schedule(design.module, seed=1)
    design.traces[1].apply_to_schedule(schedule, remove_postproc=True)
    for postprocessor in design.postprocessors:
        assert postprocessor.apply(schedule)
    text = json.dumps(schedule.trace.as_json(), default=lambda number: number.value)
    again = replay(CONVOLUTION, json.loads(text))
    wanted = sketch.apply(CONVOLUTION, TARGET, space.config(space.origin))
    assert tvm_ffi.structural_equal(again.main, wanted.main)
    assert set(again.transforms) == set(wanted.transforms) == {1, 2}


@pytest.mark.compiles
def test_a_search_tunes_them() -> None:
    with sd.open_store("sqlite://") as store:
        result = sd.tune(
            MATMUL, sketches=meta_schedule_sketches(MATMUL, TARGET), search="evolutionary", trials=8, store=store
        )
    assert result.trials == 8 and result.statuses["ok"] > 0, result.error
    assert result.best is not None and result.best.sketch.startswith("meta_schedule.")
    inputs = MATMUL.random_inputs(3)
    np.testing.assert_array_equal(result.kernel(*inputs), MATMUL.reference(inputs)[0])
