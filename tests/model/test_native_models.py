"""Native models that `stormdrop.load` has loaded: run by their library, without TVM."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_models import gelu_inside, only_a_loop
from onnx import TensorProto, helper, numpy_helper
from sized_models import pooled_model
from tiny_models import make_model

import native_models
import stormdrop
from stormdrop.errors import ArtifactError, InputError, ModelError
from stormdrop.machine.cpu import Cpu
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.artifact.call_inputs import aligned
from stormdrop.model.building.compile import build
from stormdrop.model.call_record import CallRecorder
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.together import together
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.profile import part_times, profile

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(native_models.compiler() is None, reason="there is no C compiler"),
]

HEAVY = ("tvm", "tvm_ffi", "scipy", "onnx", "onnxruntime", "optuna", "sqlalchemy", "matplotlib", "psutil")

FIRST_ANSWER = """
import sys
import numpy as np
import stormdrop
folder, inputs, outputs = sys.argv[1:]
model = stormdrop.load(folder)
np.savez(outputs, **model.run(dict(np.load(inputs))))
model.profile(dict(np.load(inputs)))
print(model, model.program, model.metadata.tvm, model.inputs, model.sizes, model.digest, model.threads, file=sys.stderr)
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def model(residual: Graph, target: Cpu) -> CompiledModel:
    return build(residual, {}, target)


@pytest.fixture(scope="module")
def folder(model: CompiledModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.save(tmp_path_factory.mktemp("native") / "model.sd", native=True)


@pytest.fixture(scope="module")
def sized(target: Cpu, tmp_path_factory: pytest.TempPathFactory) -> tuple[CompiledModel, CompiledModel]:
    """A model of three sizes, and its native form."""
    made = build(together([load_graph(pooled_model(), {"x": (rows, 3, 8, 8)}) for rows in (1, 2, 4)]), {}, target)
    return made, stormdrop.load(made.save(tmp_path_factory.mktemp("sized") / "model.sd", native=True))


def as_another_process(*command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(stormdrop.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_heavy_is_imported_for_an_answer(model: CompiledModel, folder: Path, tmp_path: Path) -> None:
    feeds = random_feeds(model.inputs, 1)
    np.savez(tmp_path / "x.npz", **feeds)  # type: ignore[arg-type]
    loaded = as_another_process("-c", FIRST_ANSWER, str(folder), str(tmp_path / "x.npz"), str(tmp_path / "y.npz"))
    assert not {name.partition(".")[0] for name in loaded.split()} & set(HEAVY)
    answer = np.load(tmp_path / "y.npz")
    assert all(np.array_equal(answer[name], value) for name, value in model.run(feeds).items())


def test_parts_are_run_without_tvm(target: Cpu, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    for source in (gelu_inside(), only_a_loop()):
        made = build(load_graph(source), {}, target)
        feeds = random_feeds(made.inputs, 1)
        np.savez(tmp_path / "x.npz", **feeds)  # type: ignore[arg-type]
        native = made.save(tmp_path / "model.sd", native=True)
        loaded = as_another_process("-c", FIRST_ANSWER, str(native), str(tmp_path / "x.npz"), str(tmp_path / "y.npz"))
        assert "onnxruntime" in loaded.split() and not {"tvm", "tvm_ffi"} & set(loaded.split())
        answer = np.load(tmp_path / "y.npz")
        assert all(np.array_equal(answer[name], value) for name, value in made.run(feeds).items())


def test_the_library_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "m")
    for name in ("metadata.json", "program.json"):
        document = json.loads((tmp_path / "m" / name).read_text())
        size = document if name == "metadata.json" else document["sizes"][0]
        size["inputs"][0]["name"] = "another"
        (tmp_path / "m" / name).write_text(json.dumps(document))
    document = json.loads((tmp_path / "m" / "metadata.json").read_text())
    document["digest"] = "0" * 64
    document["checksums"]["program.json"] = hashlib.sha256((tmp_path / "m" / "program.json").read_bytes()).hexdigest()
    (tmp_path / "m" / "metadata.json").write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match="its library is that of another model"):
        stormdrop.load(tmp_path / "m")


def test_the_command_line_runs_it_without_tvm(folder: Path) -> None:
    main = "import sys; from stormdrop.cli import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    environment = {**os.environ, "PYTHONPATH": str(Path(stormdrop.__file__).parents[1])}
    command = [sys.executable, "-c", main, "run", str(folder), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["digest"] == stormdrop.load(folder).digest
    assert not {name.partition(".")[0] for name in done.stderr.split()} & {"tvm", "tvm_ffi", "scipy", "onnx"}


def test_the_answers_are_the_same_to_the_last_bit(model: CompiledModel, folder: Path) -> None:
    for threads in (None, 1):
        loaded = stormdrop.load(folder, model_digest(folder), threads)
        assert loaded.native and loaded.threads == (threads or model.threads) and loaded.folder == folder
        assert loaded.program == model.program and loaded.metadata == model.metadata
        for seed in range(3):
            x = random_feeds(model.inputs, seed)["x"]
            for given in (x, aligned(x), np.asfortranarray(x), x.astype(">f4")):
                answer = loaded(given)
                np.testing.assert_array_equal(answer, model(x))
                kept = answer.copy()
                loaded(np.zeros_like(x))
                np.testing.assert_array_equal(answer, kept)
    with pytest.raises(InputError, match=r"^threads=0: must be a whole number from 1 to"):
        stormdrop.load(folder, threads=0)


def model_digest(folder: Path) -> str:
    return str(json.loads((folder / "metadata.json").read_text())["digest"])


def test_sizes(sized: tuple[CompiledModel, CompiledModel]) -> None:
    model, loaded = sized
    for rows in (1, 2, 4):
        x = np.random.default_rng(rows).random((rows, 3, 8, 8), np.float32)
        np.testing.assert_array_equal(loaded(x), model(x))
    with pytest.raises(InputError, match=r"has no size x=5x3x8x8; its sizes are"):
        loaded(np.zeros((5, 3, 8, 8), np.float32))


def test_an_observer_sees_the_steps_after_the_folder_is_gone(model: CompiledModel, tmp_path: Path) -> None:
    loaded = stormdrop.load(model.save(tmp_path / "model.sd", native=True))
    (tmp_path / "model.sd").rename(tmp_path / "elsewhere")
    feeds, seen, arrays = random_feeds(model.inputs, 1), list[str](), list[Any]()

    def observe(step: Any, before: bool, arguments: Callable[[], list[Any]]) -> None:
        if not before:
            seen.append(step.symbol)
            arrays.append([each.copy() for each in arguments()])

    observed = loaded.observed(observe)
    for each in (observed, loaded, observed):
        np.testing.assert_array_equal(each.run(feeds)["y"], model.run(feeds)["y"])
    assert seen == [step.symbol for step in loaded.program.sizes[0].steps] * 2
    assert [name for name, _ in loaded.profile(feeds)] == seen[: len(seen) // 2]
    ours, theirs = arrays.copy(), arrays
    theirs.clear()
    model.observed(observe).run(feeds)
    for values, expected in zip(ours, theirs * 2, strict=True):
        assert all(map(np.array_equal, values, expected))


def test_a_profile_and_a_trace(model: CompiledModel, folder: Path) -> None:
    loaded, feeds = stormdrop.load(folder), random_feeds(model.inputs, 1)
    calls = {kernel.name: (kernel.calls, kernel.layers) for kernel in profile(model, feeds, rounds=3).kernels}
    result = profile(loaded, feeds, rounds=3)
    assert {kernel.name: (kernel.calls, kernel.layers) for kernel in result.kernels} == calls
    assert all(seconds > 0 for kernel in result.kernels for seconds in kernel.rounds)
    recorder = CallRecorder()
    assert len(profile(loaded, feeds, rounds=2, timer=recorder).kernels) == len(calls)
    assert len(recorder.executions) == 2


def test_another_tvm_runs_it_and_does_not_observe_it(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model.sd"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    document = json.loads((copy / "metadata.json").read_text()) | {"tvm": "0.1", "digest": "0" * 64}
    (copy / "metadata.json").write_text(json.dumps(document))
    loaded = stormdrop.load(copy)
    loaded.run(random_feeds(loaded.inputs))
    with pytest.raises(ArtifactError, match=r"^tiny: was made with TVM 0\.1; this is .*; tune it again$"):
        loaded.observed(lambda *_: None)


def test_threads_call_two_models(
    model: CompiledModel, folder: Path, sized: tuple[CompiledModel, CompiledModel]
) -> None:
    loaded, (_, of_sizes), wrong = stormdrop.load(folder), sized, list[int]()
    xs = [np.random.default_rng(seed).random((1, 3, 8, 8), np.float32) for seed in range(8)]
    expected = [(model(x), sized[0](x)) for x in xs]

    def call(seed: int) -> None:
        for turn in range(200):
            at = (seed + turn) % len(xs)
            answers = loaded(xs[at]), of_sizes(xs[at])
            if not all(map(np.array_equal, answers, expected[at])):
                wrong.append(at)

    before = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []
    deadline = time.monotonic() + 30
    while len(os.listdir("/proc/self/task")) - before >= loaded.threads and time.monotonic() < deadline:  # noqa: PTH208
        time.sleep(0.01)  # a thread that was joined is there for a moment more
    assert len(os.listdir("/proc/self/task")) - before < loaded.threads  # noqa: PTH208  workers are shared


def _answer(model: CompiledModel, x: Any, queue: Any) -> None:
    queue.put(model(x))


def _refusal(model: CompiledModel, feeds: Any, queue: Any) -> None:
    try:
        model.run(feeds)
        queue.put("it ran")
    except ArtifactError as error:
        queue.put(str(error))


@pytest.mark.parametrize("order", ["run first", "fork first"])
def test_both_processes_run_it_after_a_fork(folder: Path, model: CompiledModel, order: str) -> None:
    loaded, x = stormdrop.load(folder), random_feeds(model.inputs, 1)["x"]
    if order == "run first":
        loaded(x)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_answer, args=(loaded, x, queue))
    child.start()
    np.testing.assert_array_equal(queue.get(timeout=60), model(x))
    child.join()
    np.testing.assert_array_equal(loaded(x), model(x))


def test_a_part_is_refused_after_a_fork(target: Cpu, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = build(load_graph(gelu_inside()), {}, target)
    loaded, feeds = stormdrop.load(model.save(tmp_path / "model.sd", native=True)), random_feeds(model.inputs, 1)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_refusal, args=(loaded, feeds, queue))
    child.start()
    assert "do not survive a fork" in queue.get(timeout=60)
    child.join()


def test_onnxruntime_runs_parts(target: Cpu, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    for source in (gelu_inside(), only_a_loop()):
        model = build(load_graph(source), {}, target)
        loaded = stormdrop.load(model.save(tmp_path / "model.sd", native=True))
        feeds = random_feeds(model.inputs, 1)
        for name, value in model.run(feeds).items():
            np.testing.assert_array_equal(loaded.run(feeds)[name], value)
        assert [each.part for each in part_times(loaded, feeds)] == list(loaded.foreign.reports)


def test_what_onnxruntime_refuses_is_said_as_in_process(target: Cpu, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = build(load_graph(gelu_inside()), {}, target)
    loaded = stormdrop.load(model.save(tmp_path / "model.sd", native=True))

    def refuse(*_: Any) -> Any:
        raise ModelError("not these")

    for session in loaded.foreign.sessions_of(loaded.metadata, loaded.threads):
        session.run_into = refuse  # type: ignore[assignment, method-assign]
    with pytest.raises(ModelError, match=r"^not these$"):
        loaded.run(random_feeds(loaded.inputs))


def test_what_needs_tvm_is_run_by_it(target: Cpu, tmp_path: Path) -> None:
    k = numpy_helper.from_array(np.array([2]), "k")
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "places"])]
    source = make_model(nodes, {}, {"x": (1, 8)}, {"y": (1, 2), "places": (1, 2)}, extra=[k])
    source.graph.output[1].type.tensor_type.elem_type = TensorProto.INT64
    model = build(load_graph(source), {}, target)
    loaded = stormdrop.load(model.save(tmp_path / "model.sd", native=True))
    assert not loaded.native
    feeds = random_feeds(model.inputs, 1)
    for name, value in model.run(feeds).items():
        np.testing.assert_array_equal(loaded.run(feeds)[name], value)
    with pytest.raises(ArtifactError, match="copy its folder"):
        loaded.save(tmp_path / "again.sd")
