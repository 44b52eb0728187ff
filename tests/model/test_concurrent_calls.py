"""One compiled model, called from several threads and after a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.machine.cpu import Cpu
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.artifact.call_inputs import aligned
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.inputs.samples import random_feeds

pytestmark = pytest.mark.compiles

THREADS, CALLS = 4, 200

FORK = """
import os, signal, sys
import numpy as np
import stormdrop
from stormdrop.errors import ArtifactError
folder, order = sys.argv[1:]
model = stormdrop.load(folder)
x = np.ones(model.inputs[0].shape, np.float32)
if order == "run first":
    model(x)
child = os.fork()
if child == 0:
    signal.alarm(20)  # the former code hangs here
    try:
        print(model(x).shape)
        print(stormdrop.load(folder)(x).shape)
    except ArtifactError as error:
        print(error)
    sys.stdout.flush()
    os._exit(0)
print(os.waitpid(child, 0)[1])
if order == "run first":
    print(model(x).shape)
"""


@pytest.fixture(scope="module")
def model(residual: Graph, target: Cpu) -> CompiledModel:
    return build(residual, {}, target)


@pytest.mark.parametrize("copied", [False, True])
def test_threads_get_the_answers_that_one_thread_gets(model: CompiledModel, copied: bool) -> None:
    """`copied`: each input is copied into memory that all calls share."""
    inputs = [random_feeds(model.inputs, seed)["x"] for seed in range(16)]
    given = [np.asfortranarray(x) if copied else aligned(x) for x in inputs]
    expected = [model(x).copy() for x in given]
    assert len({y.tobytes() for y in expected}) == len(inputs)

    def calls(thread: int) -> list[tuple[int, NDArray[np.float32]]]:
        order = np.random.default_rng(thread).integers(len(given), size=CALLS)
        return [(int(index), model(given[index])) for index in order]

    with ThreadPoolExecutor(THREADS) as pool:
        results = [result for answers in pool.map(calls, range(THREADS)) for result in answers]
    assert len(results) == THREADS * CALLS
    assert all(np.array_equal(output, expected[index]) for index, output in results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("order", ["run first", "fork first"])
def test_a_fork(model: CompiledModel, tmp_path: Path, order: str) -> None:
    folder = model.save(tmp_path / "model.sd")
    command = [sys.executable, "-c", FORK, str(folder), order]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.stderr == ""
    shape = str(model.outputs[0].shape)
    if order == "fork first":
        assert done.stdout.splitlines() == [shape, shape, "0"]
    else:
        reason, *rest = done.stdout.splitlines()
        assert reason.startswith("a model has run before this process was forked") and "'spawn'" in reason
        assert rest == ["0", shape]
