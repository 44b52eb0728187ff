"""An operator that is tuned on an OpenCL device: PoCL on this machine's cores will do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.ir.reference import evaluate_graph
from stormdrop.machine.opencl import opencl_devices
from stormdrop.records import Filter, State, open_store


@pytest.mark.compiles
def test_tune_measure_check_and_record(tmp_path: Path) -> None:
    if not opencl_devices():
        pytest.skip("OpenCL finds no device here (it needs pyopencl and a driver such as PoCL)")
    target, work = sd.parse_machine("opencl"), sd.operators.reduce(shape=(6, 40), axis=1)
    with open_store(f"sqlite:///{tmp_path}/records.db") as store:
        result = sd.tune(work, target=target, trials=2, search="random", store=store)
        (session,) = store.sessions(Filter(target="opencl", machine=target.machine))
        assert session.state is State.FINISHED and session.trials == 2
        assert (result.trials, result.failed, result.reused) == (2, 0, 0)
        inputs = work.random_inputs(1)
        assert result.best is not None and result.best.kernel is not None
        np.testing.assert_allclose(result.best.kernel(*inputs), evaluate_graph(work.graph, inputs)[0], rtol=1e-5)
