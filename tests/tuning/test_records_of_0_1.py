"""Records that version 0.1.0 took are still valid: `data/version_0_1.db.gz` was made by its code.

It holds a matmul, a convolution, a softmax, an unfinished session of a dense layer, and SqueezeNet's kernels, as they
were tuned on a Cascade Lake with 2 cores, whose description is `data/version_0_1.target.json`.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

import stormdrop as sd
from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.measure.contract import Measurer
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.random_weights import seed_weights
from stormdrop.records import Store
from stormdrop.sketches.contract import AnySketch, Variant
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked
from stormdrop.sketches.cpu.prefetch import PREFETCH
from stormdrop.sketches.cpu.streaming import Streaming
from stormdrop.sketches.registry import cpu_sketches
from stormdrop.space import Space
from stormdrop.trial import Candidate, Measurement, Request, Status
from stormdrop.tuning.kernel import KernelTask
from stormdrop.tuning.options import TuneOptions

DATA = Path(__file__).parent / "data"
TARGET = Cpu(**json.loads((DATA / "version_0_1.target.json").read_text()))
SQUEEZENET = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"

MATMUL = operators.matmul(96, 128, 64)
CONVOLUTION = operators.conv2d(1, 28, 28, 16, 32, 3, 3, stride=1, pad=1, bias=1, act="relu", layout="NHWC")
OF_CONVOLUTIONS = [sketch for sketch in cpu_sketches() if sketch.name.startswith(("register_blocked", "winograd"))]
SOFTMAX = operators.softmax(64, 512)
OPERATORS = [(MATMUL, 16), (CONVOLUTION, 24), (SOFTMAX, 12)]


class Counting(Measurer):
    """Answers one millisecond to everything, and counts."""

    def __init__(self) -> None:
        self.asked: set[Candidate] = set()

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request in requests:
            self.asked.add(request.candidate)
            yield Measurement(Status.OK, (1e-3,) * request.repeats)

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        return [Measurement(Status.OK, (1e-3,) * rounds) for _ in candidates]

    def close(self) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    path = tmp_path / "records.db"
    path.write_bytes(gzip.decompress((DATA / "version_0_1.db.gz").read_bytes()))
    with sd.open_store(str(path)) as opened:
        yield opened


@pytest.mark.parametrize(("workload", "trials"), OPERATORS, ids=lambda value: getattr(value, "name", ""))
def test_operators_are_answered(workload: Workload, trials: int, store: Store) -> None:
    measurer = Counting()
    result = sd.tune(workload, target=TARGET, trials=trials, seed=3, store=store, measurer=measurer)
    assert result.best is not None
    assert (result.trials, result.reused, len(measurer.asked)) == (trials, trials, 0)


@pytest.mark.long
def test_every_kernel_of_a_model_whose_spaces_are_the_same_is_answered(store: Store) -> None:
    """Spaces of kernels with large weights have one more knob since then. The first convolution is another function."""
    graph = load_graph(seed_weights(onnx.load(SQUEEZENET), seed=0))
    tasks = [
        KernelTask.create(Workload.create(task.name, task.function, task.constants), TARGET, TuneOptions(seed=3))
        for task in graph.tasks[1:]
    ]
    same = [
        task for task in tasks if not any(PREFETCH in {knob.name for knob in space.knobs} for _, space in task.sketches)
    ]
    assert (len(tasks), len(same)) == (27, 21)
    answered = [task.answered(store, trials=1, seconds=None) for task in same]
    assert all(result is not None and result.reused == result.trials > 0 for result in answered)


def test_an_unfinished_session_goes_on(store: Store) -> None:
    measurer = Counting()
    dense = operators.dense(32, 64, 48)
    result = sd.tune(dense, target=TARGET, trials=20, seed=3, store=store, resume=True, measurer=measurer)
    assert result.reused == 8
    assert result.trials == 20
    assert len(measurer.asked) >= 12


@dataclasses.dataclass(frozen=True)
class Changed:
    """A sketch whose domain or whose schedules are not those of its records."""

    inner: AnySketch
    domain: bool
    schedule: bool

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def max_error(self) -> float:
        return self.inner.max_error

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        space = self.inner.space(workload, target)
        if space is None or not self.domain:
            return space
        return Space(space.name, [*space.knobs, sd.Ordinal("more", [0, 1])], space.constraints)

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        variant = self.inner.apply(workload, target, {key: value for key, value in config.items() if key != "more"})
        return Variant(variant.main.with_attr("changed", 1), variant.transforms) if self.schedule else variant


@pytest.mark.parametrize(
    ("domain", "schedule", "reused"),
    [(False, False, True), (True, False, False), (False, True, False)],
    ids=["unchanged", "another domain", "another schedule"],
)
@pytest.mark.parametrize(
    ("workload", "trials", "own"),
    [(MATMUL, 16, [RegisterBlocked()]), (CONVOLUTION, 24, OF_CONVOLUTIONS), (SOFTMAX, 12, [Streaming()])],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_is_scheduled_otherwise_is_measured_anew(
    workload: Workload, trials: int, own: Sequence[AnySketch], domain: bool, schedule: bool, reused: bool, store: Store
) -> None:
    measurer, changed = Counting(), [Changed(sketch, domain, schedule) for sketch in own]
    result = sd.tune(workload, target=TARGET, trials=trials, seed=3, store=store, sketches=changed, measurer=measurer)
    assert (result.reused > 0) is reused
    assert bool(measurer.asked) is not reused
