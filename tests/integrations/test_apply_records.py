"""The pass that gives functions the schedules of the records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import tvm

import stormdrop as sd
from stormdrop.codegen.needed_features import needed_features
from stormdrop.errors import InputError
from stormdrop.integrations.apply_records import ApplyRecords
from stormdrop.machine import gpu
from stormdrop.machine.cpu import Cpu
from stormdrop.measure.contract import Measurer
from stormdrop.records import Store
from stormdrop.trial import Candidate, Measurement, Request, Status

pytestmark = pytest.mark.compiles

TUNED, OTHER = sd.operators.matmul(24, 16, 32), sd.operators.matmul(24, 16, 40)


class MadeUp(Measurer):
    """Times that are made up, so that no other load can disturb them: later points are faster."""

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request in requests:
            seconds = 1e-3 / (1 + sum(request.candidate.point))
            yield Measurement(Status.OK, (seconds,) * request.repeats)

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        return list(self.measure([Request(candidate, rounds) for candidate in candidates]))

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with sd.open_store("sqlite://") as opened:
        sd.tune(TUNED, trials=3, store=opened, measurer=MadeUp())
        yield opened


def test_what_was_tuned_is_scheduled_and_computes_the_same(store: Store) -> None:
    tuned = TUNED.function.with_attr("global_symbol", "multiply").with_attr("op_pattern", 4)
    mod = tvm.IRModule({"multiply": tuned, "other": OTHER.function.with_attr("global_symbol", "other")})
    after = tvm.transform.Sequential([ApplyRecords(store)])(mod)
    assert after["multiply"].attrs["tirx.is_scheduled"] and after["multiply"].attrs["op_pattern"] == 4
    assert after["multiply"].script() != mod["multiply"].script()
    tvm.ir.assert_structural_equal(after["other"], mod["other"])  # it was not tuned
    tvm.ir.assert_structural_equal(ApplyRecords(store)(after), after)
    kernel = tvm.compile(tvm.IRModule({"main": after["multiply"].with_attr("global_symbol", "main")}), "llvm").jit()
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(spec.shape).astype(np.float32) for spec in TUNED.inputs]
    output = tvm.runtime.tensor(np.zeros(TUNED.outputs[0].shape, np.float32))
    kernel["main"](*map(tvm.runtime.tensor, inputs), output)
    np.testing.assert_allclose(output.numpy(), inputs[0] @ inputs[1], rtol=1e-4, atol=1e-4)


def test_a_gpu_is_refused(store: Store) -> None:
    with pytest.raises(InputError, match="ApplyRecords schedules for CPUs; the target is"):
        ApplyRecords(store, gpu.parse("cuda/h200"))


def test_a_schedule_that_tvm_cannot_lower_is_left_out() -> None:
    """Only our own lowering makes the instructions of arithmetic units."""
    target = replace(Cpu.detect(), lanes=16, features=("avx512vnni",))
    work = sd.operators.matmul(8, 16, 12, dtype="uint8")
    with sd.open_store("sqlite://") as opened:
        result = sd.tune(work, target=target, trials=2, store=opened, measurer=MadeUp())
        assert result.best is not None
        assert needed_features(result.best.apply(work, target, result.best.config).main) == {"avx512vnni"}
        mod = tvm.IRModule({"multiply": work.function.with_attr("global_symbol", "multiply")})
        tvm.ir.assert_structural_equal(ApplyRecords(opened, target)(mod), mod)
