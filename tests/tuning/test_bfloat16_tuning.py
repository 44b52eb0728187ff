"""A workload in bfloat16 is tuned as any other: measured in workers, checked, raced and recorded."""

from __future__ import annotations

import numpy as np
import pytest

import stormdrop as sd
from stand_ins.faults import RandomFaults
from stormdrop.records import Filter
from stormdrop.sketches.cpu.contractions.register_blocked import RegisterBlocked

pytestmark = pytest.mark.compiles
WORKLOAD = sd.operators.dense(12, 32, 48, bias=1, act="relu", residual=1, dtype="bfloat16")


def test_a_workload_in_bfloat16_is_tuned_and_recorded() -> None:
    with sd.open_store("sqlite://") as store:
        result = sd.tune(WORKLOAD, trials=6, store=store)
        (session,) = store.sessions(Filter(workload_name=WORKLOAD.name))
    assert result.best is not None and result.failed == 0
    assert session.workload_name == WORKLOAD.name
    inputs = WORKLOAD.random_inputs(5)
    found = result.kernel(*inputs)
    (expected,) = WORKLOAD.reference(inputs)
    assert str(found.dtype) == "bfloat16"
    np.testing.assert_array_equal(found.astype("float32"), expected.astype("float32"))


def test_a_kernel_that_writes_nothing_is_noticed() -> None:
    sketch = RandomFaults(RegisterBlocked(), share=1.0, kinds=("unwritten",))
    with sd.open_store("sqlite://") as store:
        result = sd.tune(WORKLOAD, trials=2, store=store, sketches=[sketch])
    assert result.best is None and result.failed == result.trials > 0
    assert "y0[" in result.error
