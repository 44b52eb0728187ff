"""What cost models are shown of schedules: knobs, analytic figures, Ansor's 164 of each statement."""

from __future__ import annotations

import numpy as np
import pytest

from stormdrop import operators
from stormdrop.errors import InputError
from stormdrop.machine.contract import Machine
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.contract import AnySketch
from stormdrop.sketches.cpu.contractions import cost_model as prior
from stormdrop.sketches.gpu.features import NAMES
from stormdrop.sketches.knowledge import features
from stormdrop.sketches.registry import sketches_for
from stormdrop.sketches.statements.features import WIDTH
from stormdrop.space import Space
from stormdrop.trial import Candidate

CONVOLUTION = operators.conv2d(1, 14, 14, 32, 32, 3, 3, pad=1)


def candidates(target: Machine, number: int = 6) -> tuple[list[tuple[AnySketch, Space]], list[Candidate]]:
    rng = np.random.default_rng(0)
    sketches = sketches_for(CONVOLUTION, target)
    return sketches, [Candidate(space.name, space.sample(rng)) for _, space in sketches for _ in range(number)]


def test_knobs_need_not_be_shown() -> None:
    target = Cpu.detect()
    assert features(sketches_for(CONVOLUTION, target), CONVOLUTION, target, "knobs") is None
    with pytest.raises(InputError, match="unknown features 'analytical'; did you mean 'analytic'"):
        features([], CONVOLUTION, target, "analytical")


def test_each_sketch_has_columns_of_its_own() -> None:
    target = Cpu.detect()
    sketches, several = candidates(target)
    assert len(sketches) > 1
    describe = features(sketches, CONVOLUTION, target, "analytic")
    assert describe is not None
    rows = describe(several)
    assert len({row.shape for row in rows}) == 1 and rows[0].shape[0] == 1
    table = np.concatenate(rows)
    names = [space.name for _, space in sketches]
    np.testing.assert_array_equal(table[:, : len(names)].argmax(axis=1), [names.index(c.sketch) for c in several])
    blocked = names.index("register_blocked")
    # Those of another sketch are zero; its own are the figures that it computes of its knobs.
    begin = len(names) + sum(describe_width(sketches, target, index) for index in range(blocked))
    own = table[:, begin : begin + len(prior.FEATURES)]
    mine = np.array([candidate.sketch == "register_blocked" for candidate in several])
    assert (own[~mine] == 0).all() and (own[mine] != 0).any(axis=1).all()


def test_both_are_knobs_and_what_a_sketch_says_of_them() -> None:
    target = Cpu.detect()
    workload = operators.matmul(512, 512, 512)
    sketches = sketches_for(workload, target)[:1]
    space = sketches[0][1]
    chosen = [Candidate(space.name, space.sample(np.random.default_rng(seed))) for seed in range(5)]
    tables = {}
    for kind in ("analytic", "both"):
        describe = features(sketches, workload, target, kind)
        assert describe is not None
        tables[kind] = np.concatenate(describe(chosen))
    knobs = np.array([space.encode(candidate.point) for candidate in chosen])
    np.testing.assert_array_equal(tables["both"], np.hstack([knobs, tables["analytic"]]))


def describe_width(sketches: list[tuple[AnySketch, Space]], target: Cpu, index: int) -> int:
    describe = features(sketches[index : index + 1], CONVOLUTION, target, "analytic")
    assert describe is not None
    space = sketches[index][1]
    return int(describe([Candidate(space.name, space.origin)])[0].shape[1])


def test_the_eight_of_a_cpu() -> None:
    target = Cpu.detect()
    (sketch, space), *_ = sketches_for(operators.matmul(512, 512, 512), target)
    workload, rng = operators.matmul(512, 512, 512), np.random.default_rng(0)
    points = [space.sample(rng) for _ in range(100)]
    columns = space.columns(points)
    table = dict(zip(prior.FEATURES, sketch.features(workload, target, columns).T, strict=True))  # type: ignore[attr-defined]
    operations, once = 2 * 512**3, 4 * 3 * 512**2
    for level in ("OI_L2", "OI_L3", "OI_Memory"):
        # Nothing is moved less than once.
        assert (table[level] > 0).all() and (table[level] <= operations / once * 1.001).all()
    assert (table["OI_L2"] <= table["OI_L3"] + 1e-9).all() and (table["OI_L3"] <= table["OI_Memory"] + 1e-9).all()
    assert (table["Vectors"] > 0).all() and (table["Vectors"] <= 1).all()
    assert (table["Load_Balance"] > 0).all() and (table["Load_Balance"] <= 1).all()
    # Tiles of whole vectors that divide 512 compute nothing that is not wanted.
    whole = (columns["columns"] % target.lanes == 0) & (512 % columns["columns"] == 0) & (512 % columns["rows"] == 0)
    assert whole.any() and (table["Vectors"][whole] == 1).all()


def test_the_seven_of_a_gpu() -> None:
    a100 = GPUS["a100"]
    sketches, several = candidates(a100)
    for sketch, space in sketches:
        describe = features([(sketch, space)], CONVOLUTION, a100, "analytic")
        assert describe is not None
        own = [candidate for candidate in several if candidate.sketch == space.name]
        assert {row.shape for row in describe(own)} == {(1, len(NAMES))}


@pytest.mark.parametrize("target", [Cpu.detect(), GPUS["a100"]], ids=["cpu", "a100"])
def test_the_164_of_each_statement(target: Machine) -> None:
    sketches, several = candidates(target, 3)
    describe = features(sketches, CONVOLUTION, target, "statements")
    assert describe is not None
    rows = describe([several[0], several[1], several[0]])
    assert all(row.shape[1] == WIDTH and len(row) >= 1 and np.isfinite(row).all() for row in rows)
    np.testing.assert_array_equal(rows[0], rows[2])
    assert not np.array_equal(rows[0], rows[1])
