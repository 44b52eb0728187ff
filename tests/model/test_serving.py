"""What a server needs of a model: threads= per model, shared weights, threads that sleep, the host as it was."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tiny_models import make_model

import stormdrop
from stormdrop.errors import InputError
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.threads import thread_count
from stormdrop.model.artifact import machines
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.inputs.samples import random_feeds

CORES = thread_count()

IDLE = """
import sys, time
import numpy as np
import stormdrop
model = stormdrop.load(sys.argv[1])
x = np.ones(model.inputs[0].shape, np.float32)
for _ in range(20):
    model(x)
begin = time.process_time()
time.sleep(0.5)
print(time.process_time() - begin)
"""


@pytest.fixture(scope="module")
def model(residual: Graph, target: Cpu) -> CompiledModel:
    return build(residual, {}, target)


@pytest.mark.parametrize("threads", [0, -1, CORES + 1, "x", 1.0, True])
def test_bad_numbers_of_threads_are_one_line(threads: Any) -> None:
    with pytest.raises(InputError, match=f"^threads={threads!r}: must be a whole number from 1 to {CORES}, .*$"):
        stormdrop.load("nowhere.sd", threads=threads)


@pytest.mark.compiles
def test_a_model_has_its_number_of_threads(
    model: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, used = model.save(tmp_path / "model.sd"), []
    use = machines._use_threads
    monkeypatch.setattr(machines, "_use_threads", lambda count: used.append(count) or use(count))
    x = random_feeds(model.inputs, 1)["x"]
    expected = model(x)
    for threads in (None, 1):
        loaded = stormdrop.load(folder, threads=threads)
        assert loaded.threads == (threads or CORES)
        assert np.array_equal(loaded(x), expected)
    assert used == [CORES, CORES, 1] and model.threads == CORES


@pytest.mark.compiles
def test_calls_that_meet_share_the_cores(model: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    used, meeting, cores = [], threading.Barrier(2, timeout=20), machines.CoreShares(2)  # type: ignore[attr-defined]

    def meet(machine: machines.Machine) -> None:
        meeting.wait()  # both calls are in progress
        used.append(id(machine))
        meeting.wait()

    def call() -> None:
        model._calls.machines.call(1, meet)  # type: ignore[attr-defined]

    monkeypatch.setattr(machines, "_shares", lambda: cores)
    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert len(set(used)) == 2  # a machine for each


@pytest.mark.compiles
def test_machines_share_the_weights(target: Cpu) -> None:
    psutil = pytest.importorskip("psutil")
    size = 2048
    source = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": (size, size)}, {"x": (1, size)}, {"y": (1, size)}
    )
    model = build(load_graph(source), {}, target)
    before = psutil.Process().memory_info().rss
    kept = [model.observed(lambda *_: None) for _ in range(4)]  # each has a machine
    assert psutil.Process().memory_info().rss - before < 4 * size * size  # a copy for each would be 4 times that
    assert len(kept) == 4


@pytest.mark.compiles
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not say on which cores a thread runs")
def test_the_callers_thread_may_still_run_on_all_of_its_cores(model: CompiledModel) -> None:
    before, after = os.sched_getaffinity(0), []

    def call() -> None:
        model(random_feeds(model.inputs, 1)["x"])
        after.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=call)  # which has a pool of its own
    thread.start()
    thread.join(30)
    assert after == [before]


@pytest.mark.compiles
def test_no_thread_is_busy_between_calls(model: CompiledModel, tmp_path: Path) -> None:
    folder = model.save(tmp_path / "model.sd")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TVM_")}
    environment["PYTHONPATH"] = str(Path(stormdrop.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", IDLE, str(folder)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert float(done.stdout) < 0.05, done.stderr  # seconds; with the runtime's own default a thread is busy for 0.13
